"""A node is two pinned namespaces and a few directories; this enters them.

Network namespace: `tlab-<node>`. Mount namespace: the machine's file system with the node's own
directories bound over the usual places, so that agent, CNI plugin and user see standard paths.
Mounts made outside still arrive inside (slave propagation): the handle of a pod's namespace, made
under /run/netns after the node started, is there too.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from lab import names
from lab.state import NODE_MOUNTS, StateDir
from lab.tools import run

PLACES = (names.TOR, names.EXT, names.API)
"""What has a network of its own but is no node."""


def missing_mount_points(directories: Sequence[str] = tuple(NODE_MOUNTS)) -> tuple[str, ...]:
    """Directories the nodes mount over that the machine lacks, parents first.

    `lab up` writes them down, then makes them; `lab down` removes those that are empty.
    """
    found: list[str] = []
    for directory in directories:
        for path in reversed((Path(directory), *Path(directory).parents)):
            if not path.exists() and str(path) not in found:
                found.append(str(path))
    return tuple(found)


def pin_filesystem(state: StateDir) -> None:
    """The tmpfs for pins; it must not propagate, or the kernel refuses to bind namespaces on it."""
    state.pins.mkdir(parents=True, exist_ok=True)
    run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tortie-lab", str(state.pins)])
    run(["mount", "--make-private", str(state.pins)])


def mount_script(state: StateDir, node: str) -> str:
    """The shell script that makes a fresh mount and UTS namespace into the node's."""
    lines = [f"hostname {shlex.quote(node)}"]
    for place, part in NODE_MOUNTS.items():
        lines.append(f"mount --bind {shlex.quote(str(state.node(node, part)))} {place}")
    return "set -e\n" + "\n".join(lines)


def make_node(state: StateDir, node: names.LabNode) -> None:
    """A node's directories and its pinned mount and UTS namespaces."""
    for part in NODE_MOUNTS.values():
        state.node(node.name, part).mkdir(parents=True, exist_ok=True)
    for pin in (state.mount_pin(node.name), state.uts_pin(node.name)):
        pin.touch()
    run(
        [
            "unshare",
            f"--mount={state.mount_pin(node.name)}",
            f"--uts={state.uts_pin(node.name)}",
            "--propagation=slave",
            "sh",
            "-c",
            mount_script(state, node.name),
        ]
    )


def in_node(state: StateDir, node: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` as a process of a node."""
    return [
        "nsenter",
        f"--net={names.netns_path(names.netns(node))}",
        f"--mount={state.mount_pin(node)}",
        f"--uts={state.uts_pin(node)}",
        "--",
        *argv,
    ]


def in_netns(netns: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` in a network namespace only."""
    return ["nsenter", f"--net={names.netns_path(netns)}", "--", *argv]
