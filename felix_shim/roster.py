"""The local endpoints and their machines, findable by address, VMI, interface and stored key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TypeVar

from felix_shim.migration import Machine
from felix_shim.model import Endpoint, EndpointId, same_sandbox
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import IPNetwork, Key

K = TypeVar("K")


@dataclass(slots=True)
class Local:
    """An endpoint of this node.

    `in_force` is the generation of the rules that first had it in the kernel, with its sysctls;
    0 while they are not there. `wire` stands for what they were made for: it is another one once
    link, MAC or addresses are, and what a job did for the one before does not count. `returned`:
    the VM left it once and came back. `reported`: its status file says, or is about to say, that it
    may start. `disputed`: the episode in which it was told that the VM speaks here though it is
    elsewhere. `destinations` are its addresses, then its floating ones, as
    host routes name them.
    """

    key: Key
    endpoint: Endpoint
    machine: Machine = field(default_factory=Machine)
    in_force: int = 0
    wire: object = field(default_factory=object, compare=False, repr=False)
    returned: bool = False
    reported: bool = False
    disputed: int = -1
    destinations: tuple[IPNetwork, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.destinations = tuple(ip_network(address) for address in self.endpoint.destinations)

    @property
    def id(self) -> EndpointId:
        """Its identity."""
        return self.endpoint.id


MOST_PARTED = 1024
"""Endpoints that are remembered after they went: a store may lose one and give it back."""


@dataclass(slots=True)
class Roster:
    """All local endpoints. Two stored keys never share an endpoint id: the later one wins."""

    _by_id: dict[EndpointId, Local] = field(default_factory=dict)
    _by_key: dict[Key, EndpointId] = field(default_factory=dict)
    _parted: dict[EndpointId, Local] = field(default_factory=dict)
    _by_address: defaultdict[IPAddress, set[EndpointId]] = field(
        default_factory=lambda: defaultdict(set)
    )
    _by_vmi: defaultdict[tuple[str, str], set[EndpointId]] = field(
        default_factory=lambda: defaultdict(set)
    )
    _by_interface: defaultdict[str, set[EndpointId]] = field(
        default_factory=lambda: defaultdict(set)
    )

    def get(self, endpoint: EndpointId) -> Local | None:
        """One endpoint."""
        return self._by_id.get(endpoint)

    def of_key(self, key: Key) -> Local | None:
        """The endpoint a stored key describes."""
        found = self._by_key.get(key)
        return None if found is None else self._by_id[found]

    def keys(self) -> frozenset[Key]:
        """Stored keys of all endpoints."""
        return frozenset(self._by_key)

    def with_address(self, address: IPAddress) -> tuple[Local, ...]:
        """The endpoints that an address leads to, in a fixed order (normally at most one)."""
        return self._found(self._by_address.get(address, set()))

    def of_vmi(self, vmi: tuple[str, str]) -> tuple[Local, ...]:
        """The endpoints of a VMI's pods, by (namespace, name)."""
        return self._found(self._by_vmi.get(vmi, set()))

    def on_interface(self, name: str) -> tuple[Local, ...]:
        """The endpoints behind a host interface (normally at most one)."""
        return self._found(self._by_interface.get(name, set()))

    def __iter__(self) -> Iterator[Local]:
        return iter(tuple(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def parted(self, local: Local) -> Local | None:
        """The same sandbox's endpoint as it was when it went, if it did."""
        known = self._parted.get(local.id)
        return known if known and same_sandbox(known.endpoint, local.endpoint) else None

    def add(self, local: Local) -> None:
        """Take an endpoint in, in place of one of the same id or key."""
        for known in (self.get(local.id), self.of_key(local.key)):
            if known is not None:
                self.remove(known)
        self._by_id[local.id] = local
        self._by_key[local.key] = local.id
        for address in local.endpoint.destinations:
            self._by_address[address].add(local.id)
        self._by_interface[local.endpoint.interface].add(local.id)
        if vm := local.endpoint.vm:
            self._by_vmi[vm.namespace, vm.vmi_name].add(local.id)

    def remove(self, local: Local, *, begun: bool = False) -> None:
        """Take an endpoint out, to be remembered if it had `begun`; one not in is left alone."""
        if self._by_id.get(local.id) is not local:
            return
        self._parted.pop(local.id, None)
        if begun:
            self._parted[local.id] = local
        if len(self._parted) > MOST_PARTED:
            del self._parted[next(iter(self._parted))]
        del self._by_id[local.id]
        self._by_key.pop(local.key, None)
        for address in local.endpoint.destinations:
            _discard(self._by_address, address, local.id)
        _discard(self._by_interface, local.endpoint.interface, local.id)
        if vm := local.endpoint.vm:
            _discard(self._by_vmi, (vm.namespace, vm.vmi_name), local.id)

    def _found(self, ids: set[EndpointId]) -> tuple[Local, ...]:
        return tuple(self._by_id[one] for one in sorted(ids, key=str))


def _discard(index: defaultdict[K, set[EndpointId]], key: K, value: EndpointId) -> None:
    index[key].discard(value)
    if not index[key]:
        del index[key]
