"""Put the plugin where a container runtime finds it, and take it away again.

What executables fall back on first (`bundle.py`), then executables, kubeconfig, and the network's
configuration last: at every moment, and after a crash at any, a runtime finds the network it had
or ours whole. Other networks whose
configuration would come first are refused, or set aside by `take_over` and put back by
`uninstall`. Both may be repeated, and run at once; files of others are never changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cni_plugin import kubeconfig as kubeconfigs
from cni_plugin.bundle import Bundle, Home
from cni_plugin.conflist import CONFLIST, networks_ahead, our_conflists, require_name
from cni_plugin.durable import (
    make_directory,
    move_file,
    only_writer,
    read_file,
    remove_file,
    remove_unfinished,
    replace_file,
)
from cni_plugin.program import is_program
from libtortie.errors import InvalidInput

EXECUTABLES = ("tortie", "tortie-ipam")
SET_ASIDE = ".tortie-set-aside"


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """A kubeconfig to be written for the plugin."""

    path: Path
    content: bytes


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the fallback runs with, where it goes, and how many versions may stand side by side."""

    bundle: Bundle
    home: Home
    keep: int = 2


def install(
    bin_dir: Path,
    conf_dir: Path,
    *,
    program: bytes,
    conflist: bytes,
    kubeconfig: Kubeconfig | None = None,
    runtime: Runtime | None = None,
    conflist_name: str = CONFLIST,
    take_over: bool = False,
) -> None:
    """Write what a node needs; `program` becomes both executables.

    Raises `InvalidInput` before anything is written where another network would come first, a
    directory cannot be written to, or a file is in the way, and for a runtime that does not run;
    OSError from then on.
    """
    require_name(conflist_name)
    programs = [bin_dir / name for name in EXECUTABLES]
    others = [kubeconfig.path] if kubeconfig else []
    _require_first(conf_dir, conflist_name, take_over)
    if runtime is not None:
        runtime.home.require_ours()
    for path in (*programs, *others):
        _require_ours(path, is_program if path in programs else kubeconfigs.is_ours)
    if (place := conf_dir / conflist_name).is_dir() and not place.is_symlink():
        raise InvalidInput(f"{place} is a directory: move it away")
    make_directory(bin_dir, "--bin-dir")
    make_directory(conf_dir, "--conf-dir")
    for path in others:
        make_directory(path.parent, "cni_kubeconfig")
    homes = [runtime.home.directory] if runtime else []
    for directory in homes:
        make_directory(directory, "--prefix")
    with only_writer([bin_dir, conf_dir, *(path.parent for path in others), *homes]):
        ahead = _require_first(conf_dir, conflist_name, take_over)
        if runtime is not None:
            runtime.home.put_in_use(runtime.bundle)
        for path in programs:
            replace_file(path, program, 0o755)
        if kubeconfig is not None:
            replace_file(kubeconfig.path, kubeconfig.content, 0o600)
        _replace_network(conf_dir, conflist_name, conflist, ahead)
        if runtime is not None:
            runtime.home.prune(runtime.keep)


def _replace_network(conf_dir: Path, name: str, conflist: bytes, ahead: list[str]) -> None:
    """Our network's file comes, then go the others' that would win, then our earlier ones."""
    if name in ahead:
        _keep_copy(conf_dir / name)
    replace_file(conf_dir / name, conflist, 0o600)
    for other in ahead:
        if other != name:
            move_file(conf_dir / other, _aside(conf_dir / other))
    for earlier in our_conflists(conf_dir):
        if earlier != name:
            remove_file(conf_dir / earlier)


def uninstall(
    bin_dir: Path, conf_dir: Path, kubeconfig: Path | None = None, home: Home | None = None
) -> list[str]:
    """Remove what `install` wrote, put back what it set aside; what was left alone, and why.

    The other networks come back before ours goes, and what ours needs goes last. Raises OSError.
    """
    left: list[str] = []
    wanted = [bin_dir, conf_dir, *([kubeconfig.parent] if kubeconfig else [])]
    wanted += [home.directory] if home else []
    directories = [one for one in wanted if one.is_dir()]
    if not directories:  # and so no lock: what comes now is an installation's at work
        return left
    with only_writer(directories):
        left += _put_back(conf_dir)
        for name in our_conflists(conf_dir):
            remove_file(conf_dir / name)
        if kubeconfig is not None:
            left += _remove(kubeconfig, kubeconfigs.is_ours)
        for name in EXECUTABLES:
            left += _remove(bin_dir / name, is_program)
        for directory in directories:
            if home is None or directory != home.directory:
                remove_unfinished(directory)
        if home is not None and home.directory in directories:
            left += home.remove_all()
    return left


def _require_first(conf_dir: Path, name: str, take_over: bool) -> list[str]:
    """Other networks' files that would win. Raises `InvalidInput` if that is not to be changed."""
    ahead = networks_ahead(conf_dir, name)
    if not ahead or take_over:
        return ahead
    if ahead[-1] == name:
        raise InvalidInput(f"{conf_dir / name} was not written by this command: {_WAYS}")
    raise InvalidInput(
        f"{conf_dir / ahead[0]} sorts before {name}, so the runtime would use it: {_WAYS}"
    )


_WAYS = "remove it, or let it be set aside with --takeover"


def _require_ours(path: Path, is_ours: Callable[[bytes], bool]) -> None:
    """Raises `InvalidInput` for somebody else's file in our place."""
    content = read_file(path)
    if content is not None and not is_ours(content):
        raise InvalidInput(f"{path} is not ours: move it away")


def _remove(path: Path, is_ours: Callable[[bytes], bool]) -> list[str]:
    content = read_file(path)
    if content is not None and not is_ours(content):
        return [f"{path} is not ours and stays"]
    if content is not None:
        remove_file(path)
    return []


def _put_back(conf_dir: Path) -> list[str]:
    """What was set aside has its place again, unless somebody else has taken it."""
    left = []
    ours = our_conflists(conf_dir)
    for path in sorted(conf_dir.iterdir()) if conf_dir.is_dir() else []:
        if not path.name.endswith(SET_ASIDE):
            continue
        place = path.with_name(path.name.removesuffix(SET_ASIDE))
        if not os.path.lexists(place) or place.name in ours:
            move_file(path, place)
        elif os.path.samestat(place.lstat(), path.lstat()):  # it was not yet replaced
            remove_file(path)
        else:
            left.append(f"{path} stays: there is another {place.name} by now")
    return left


def _aside(path: Path) -> Path:
    return path.with_name(path.name + SET_ASIDE)


def _keep_copy(path: Path) -> None:
    """Set aside what is about to be replaced: its place is never empty."""
    _aside(path).unlink(missing_ok=True)
    os.link(path, _aside(path))
