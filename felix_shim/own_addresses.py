"""Sees that this node has the tunnel addresses its pools need, and no empty block of no use.

A thread of its own, at the agent's start, soon after pools, FelixConfiguration or this node's Node
changed, after trouble, and at the latest every five minutes. Each pass judges what is stored
(`ipam.tunnels`, `ipam.tidy`): what woke it does not matter. Nobody waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from felix_shim.cluster import FELIX, NODES, POOLS
from felix_shim.events import Event, Listed, Stored, Unstored
from ipam.attempts import Attempts
from ipam.client import IPAMClient
from ipam.tunnels import Ensured, ensure_tunnel_addresses
from libtortie.complaint import Complaint
from libtortie.datastore.port import Datastore
from libtortie.errors import NotFound, TortieError, first_line
from libtortie.jsonlog import Log
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import FelixConfiguration, FelixConfigurationSpec

PERIOD_SECONDS = 300.0
TROUBLE_SECONDS = 30.0
SPACING_SECONDS = 1.0
"""Least time between two passes: many pools may change at once."""


def encrypted(specs: Iterable[FelixConfigurationSpec]) -> frozenset[int]:
    """The families that WireGuard is on for, by FelixConfigurations, weakest first."""
    found = {4: False, 6: False}
    for spec in specs:
        for version, said in ((4, spec.wireguard_enabled), (6, spec.wireguard_enabled_v6)):
            found[version] = found[version] if said is None else said
    return frozenset(version for version, on in found.items() if on)


@dataclass(slots=True)
class OwnAddresses:
    """`run` is a thread's body; `notice` takes every event of the datastore.

    `pod_cidr`: addresses come from the node's pod CIDR, so that IPAM has none for it.
    """

    store: Datastore
    ipam: IPAMClient
    attempts: Attempts
    node: str
    log: Log
    pod_cidr: bool = False
    _complaint: Complaint = field(init=False)
    _nudged: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "own_addresses_wait")

    def run(self) -> None:
        """Pass after pass, until `stop`."""
        while not self._stop.is_set():
            self._nudged.clear()
            seconds = self.attempt()
            if not self._stop.wait(SPACING_SECONDS):
                self._nudged.wait(seconds - SPACING_SECONDS)

    def stop(self) -> None:
        """Make `run` return after the pass it is at."""
        self._stop.set()
        self._nudged.set()

    def notice(self, event: Event) -> None:
        """Make a pass soon, if the event is of anything that one judges."""
        if not isinstance(event, Listed | Stored | Unstored):
            return
        if event.scope == NODES and not isinstance(event, Listed):
            key = event.record.key if isinstance(event, Stored) else event.key
            if key != ResourceKey(Kind.NODE, self.node):
                return
        if event.scope in (POOLS, FELIX, NODES):
            self._nudged.set()

    def attempt(self) -> float:
        """One pass; returns in how many seconds there should be another."""
        reasons: list[str] = []
        try:
            if not self.pod_cidr:
                reasons = self._tunnels()
            for cidr in self.ipam.give_up_stranded():
                self.log.info("block_given_up", cidr=str(cidr))
        except TortieError as error:
            reasons.append(first_line(error))
        complaint = "; ".join(reasons)
        self._complaint.about(complaint)
        return TROUBLE_SECONDS if complaint else PERIOD_SECONDS

    def _tunnels(self) -> list[str]:
        """What keeps this node from having the tunnel addresses it should have."""
        families = encrypted(self._felix())
        done = ensure_tunnel_addresses(self.store, self.ipam, self.node, self.attempts, families)
        for one in done:
            if one.changed:
                address = "" if one.address is None else str(one.address)
                self.log.info("tunnel_address", type=one.tunnel.type, address=address)
        return [_trouble(one) for one in done if one.error]

    def _felix(self) -> Iterable[FelixConfigurationSpec]:
        for name in ("default", f"node.{self.node}"):
            try:
                found = self.store.get(ResourceKey(Kind.FELIX_CONFIGURATION, name)).value
            except NotFound:
                continue
            if isinstance(found, FelixConfiguration):
                yield found.spec


def _trouble(one: Ensured) -> str:
    return f"{one.tunnel.type}: {one.error}"
