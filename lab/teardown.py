"""`lab down`: nothing of the lab is left, whatever killed what before.

Processes first (nothing may make new things while they are removed), then namespaces, mounts,
directories, and the record of the lab last. Each step works from what the machine shows, not only
from what was recorded, and may be repeated. Only `tlab-*` namespaces, processes in them or in the
ledger, mounts under the state directory, directories that `lab up` made, and of the state directory
what a lab makes there are touched.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.processes import in_namespaces, kill_all, lab_namespaces, namespace_inodes
from lab.state import ACTIVE, StateDir, active_root
from lab.tools import LabError, run


@dataclass(frozen=True, slots=True)
class Removed:
    """What `lab down` found and removed."""

    processes: int
    namespaces: int


def tear_down(state: StateDir) -> Removed:
    """Remove everything of the lab. Raises `LabError` naming what resists.

    A lab that lives in another state directory is not touched, not even when somebody has removed
    that directory: `LabError` names it.
    """
    active = active_root()
    if active is not None and active != state.root and _is_there(active):
        raise LabError(f"the lab that is up is in {active}; to end it, give --state-dir {active}")
    made_dirs = _made_dirs(state)
    killed = kill_all(state.ledger)
    namespaces = remove_namespaces()
    for mount in reversed(mounts_under(state.root)):
        run(["umount", "-l", mount])
    for path in reversed(made_dirs):
        with suppress(OSError, ValueError):
            Path(path).rmdir()
    for entry in state.entries():
        _remove(entry)
    with suppress(OSError):  # it may be missing, or have what is not ours
        state.root.rmdir()
    ACTIVE.unlink(missing_ok=True)
    left = leftovers(state)
    if left:
        raise LabError(f"still there after lab down: {', '.join(left)}")
    return Removed(len(killed), len(namespaces))


def remove_namespaces() -> tuple[str, ...]:
    """Remove every `tlab-*` namespace, none of which has a process; returns their names."""
    namespaces = lab_namespaces()
    for name in namespaces:
        run(["ip", "netns", "del", name])
    return namespaces


def _is_there(root: Path) -> bool:
    """Whether the lab that was last started, in this directory, is recorded or lives."""
    return StateDir(root).record_file.exists() or is_alive(StateDir(root))


def is_alive(state: StateDir) -> bool:
    """Whether a process of a lab is left: in its namespaces, or one that it recorded.

    Files outlive a reboot; namespaces and mounts outlive whoever has ended all its processes.
    """
    return bool(state.ledger.alive() or in_namespaces(namespace_inodes(lab_namespaces())))


def leftovers(state: StateDir) -> tuple[str, ...]:
    """Everything of a lab that is on this machine, in words; empty after a clean `lab down`."""
    found = [f"namespace {name}" for name in lab_namespaces()]
    found += [f"mount {mount}" for mount in mounts_under(state.root)]
    found += [f"process {one.pid} ({one.name})" for one in state.ledger.alive()]
    return (*found, *map(str, state.entries()))


def mounts_under(root: Path) -> tuple[str, ...]:
    """Mount points at or below a directory, in the order they were made."""
    text = Path("/proc/self/mounts").read_text()
    return tuple(parse_mounts(text, root))


def parse_mounts(text: str, root: Path) -> list[str]:
    """Mount points at or below `root` in the text of /proc/self/mounts (spaces are `\\040`)."""
    points = [line.split(" ")[1].replace("\\040", " ") for line in text.splitlines() if line]
    return [point for point in points if point == str(root) or point.startswith(f"{root}/")]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _made_dirs(state: StateDir) -> tuple[str, ...]:
    try:
        return state.read().made_dirs
    except LabError:
        return ()
