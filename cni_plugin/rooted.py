"""A node's paths, as they are reached where its file system is mounted somewhere else.

A symbolic link on the node means a place on the node: an absolute one begins at the mount again,
and none leads out of it, as for a process that has its root there. What is not there yet is
nobody's link.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from libtortie.errors import InvalidInput

_MOST_LINKS = 40
"""The kernel's own limit."""


def below(root: Path, path: str, *, follow: bool = True) -> Path:
    """Where a node's path is. Without `follow` its last part is taken as it is, link or not.

    Raises `InvalidInput` for a path that is not absolute, or whose links have no end.
    """
    if not path.startswith("/"):
        raise InvalidInput(f"{path} is not an absolute path")
    todo = list(reversed(PurePosixPath(path).parts[1:]))
    found, links = root, 0
    while todo:
        part = todo.pop()
        if part == "..":
            found = found if found == root else found.parent
            continue
        found /= part
        if not found.is_symlink() or (not todo and not follow):
            continue
        links += 1
        if links > _MOST_LINKS:
            raise InvalidInput(f"{path}: too many symbolic links, one is {found}")
        target = found.readlink()
        found = root if target.is_absolute() else found.parent
        todo += reversed([one for one in target.parts if one != "/"])
    return found
