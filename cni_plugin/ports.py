"""Everything a verb reaches the world through."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cni_plugin.delegate import Delegate
from cni_plugin.identity import Identifier
from cni_plugin.locks import AttachmentLocks
from cni_plugin.policy_gate import PolicyGate
from cni_plugin.readiness import nothing_is_reached
from cni_plugin.undo import Log
from ipam.client import IPAMClient
from libtortie.datastore.port import Datastore
from libtortie.linux.port import Kernel, Namespaces

MTU_FILE = Path("/var/lib/tortie/mtu")


def it_is_asked_by_one() -> bool:
    """`agent_listens` of the agent's own calls."""
    return True


@dataclass(frozen=True, slots=True)
class Ports:
    """`kernel` is the host's namespace; `mtu_file` is the agent's; `now` is wall-clock time,
    `monotonic` and `sleep` measure in seconds. `delegate` is another program's IPAM, None where
    `ipam` gives the addresses; `reaches` says whether a readiness gate's URL answers well;
    `agent_listens` whether an agent serves calls (whoever is asked by one knows that)."""

    identify: Identifier
    ipam: IPAMClient
    store: Datastore
    kernel: Kernel
    namespaces: Namespaces
    policy: PolicyGate
    locks: AttachmentLocks
    node: str
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    log: Log
    sleep: Callable[[float], None] = time.sleep
    delegate: Delegate | None = None
    reaches: Callable[[str], bool] = nothing_is_reached
    mtu_file: Path = field(default=MTU_FILE)
    agent_listens: Callable[[], bool] = it_is_asked_by_one
