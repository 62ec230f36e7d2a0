"""The lab's agents as processes: a keeper, which the lab starts and records, and its child."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from lab.cluster import until
from lab.processes import Recorded, children, is_same
from lab.state import StateDir
from lab.tools import LabError


def keeper_of(state: StateDir, node: str) -> Recorded:
    """What the lab has started there. Raises `LabError` when it does not run."""
    for one in state.ledger.alive():
        if one.name == f"agent of {node}":
            return one
    raise LabError(f"no agent runs on {node}")


def agent_of(state: StateDir, node: str) -> Recorded | None:
    """The agent itself; None when there is none just now."""
    return next(iter(children(keeper_of(state, node).pid)), None)


def kill_agent(state: StateDir, node: str) -> None:
    """kill -9 of the agent alone: its keeper starts the next."""
    until(lambda: agent_of(state, node) is not None, f"{node} has no agent")
    agent = agent_of(state, node)
    if agent is not None:
        kill_all_of((agent,))


def end_agent(state: StateDir, node: str) -> None:
    """kill -9 of keeper and agent: there is none until somebody starts it."""
    keeper = keeper_of(state, node)
    kill_all_of((keeper, *children(keeper.pid)))


def kill_all_of(processes: Sequence[Recorded]) -> None:
    """kill -9; returns when none of them runs."""
    for one in processes:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    until(lambda: not any(map(is_same, processes)), f"{processes[0].name} does not die")
