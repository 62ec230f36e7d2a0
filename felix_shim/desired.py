"""From what the agent knows to what shall be, one function per outlet. Pure."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_network

from felix_shim.bird_workloads import Workload
from felix_shim.drivers.announcements import Watched
from felix_shim.migration import RAISED, State, wants_owner, wants_signs
from felix_shim.model import Endpoint, EndpointId
from felix_shim.owners import Ownership
from felix_shim.roster import Local
from ipam.ownership import pod_owner
from libtortie.model.ipam import IPAddress
from libtortie.model.names import status_file_name

_LED_HERE = RAISED | {State.BASE}
_REMEMBERED = 4096
"""Endpoints whose files' names and texts are not made anew for each file that changes."""

_STORED_ALREADY = datetime.fromtimestamp(0, UTC)
"""The time stamp of an owner that is only compared: the one stored at ADD stays."""


def status_name(endpoint: Endpoint) -> str:
    """Name of the endpoint's status file."""
    return _status_name(endpoint.orchestrator, endpoint.workload, endpoint.id.endpoint)


def status_body(endpoint: Endpoint, generation: int) -> str:
    """Calico's fields, and two of ours: the sandbox, and the rules that first had it."""
    one = endpoint
    return _status_body(one.interface, one.mac, one.addresses, one.container_id, generation)


_status_name = lru_cache(maxsize=_REMEMBERED)(status_file_name)


@lru_cache(maxsize=_REMEMBERED)
def _status_body(
    interface: str, mac: str, addresses: tuple[IPAddress, ...], container_id: str, generation: int
) -> str:
    families: dict[int, list[str]] = {4: [], 6: []}
    for address in addresses:
        families[address.version].append(str(ip_network(address)))
    body = {
        "ifaceName": interface,
        "mac": mac,
        "ipv4Nets": families[4],
        "ipv6Nets": families[6],
        "containerID": container_id,
        "generation": generation,
    }
    return json.dumps({key: value for key, value in body.items() if value})


def speaks_of(body: str, endpoint: Endpoint) -> bool:
    """Whether a status file's text is of this sandbox with these addresses, in whatever rules."""
    try:
        found = json.loads(body)
        nets = {*found.get("ipv4Nets", ()), *found.get("ipv6Nets", ())}
        same = found.get("containerID") == endpoint.container_id
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False
    return same and nets == {str(ip_network(address)) for address in endpoint.addresses}


def in_force(
    locals_: Iterable[Local], links_up: Container[str]
) -> tuple[tuple[Endpoint, int], ...]:
    """Each endpoint whose rules and sysctls are in force and whose veth is up, and since when."""
    return tuple(
        (local.endpoint, local.in_force)
        for local in locals_
        if local.in_force and local.endpoint.interface in links_up
    )


def bgp_workloads(locals_: Iterable[Local], links_up: Container[str]) -> tuple[Workload, ...]:
    """Who may be a BGP neighbour: whose rules are in force, and whom traffic is led to here."""
    found = (
        Workload(one.endpoint.interface, one.endpoint.addresses, one.endpoint.labels)
        for one in locals_
        if one.in_force and one.machine.state in _LED_HERE and one.endpoint.interface in links_up
    )
    return tuple(sorted(found, key=lambda one: one.interface))


def status_files(endpoints: Iterable[tuple[Endpoint, int]]) -> dict[str, str]:
    """Their files, by name."""
    return {
        status_name(endpoint): status_body(endpoint, generation)
        for endpoint, generation in endpoints
    }


def watched(locals_: Iterable[Local]) -> dict[EndpointId, Watched]:
    """The endpoints whose VM is to be listened for."""
    return {
        local.id: Watched(
            endpoint=local.id,
            interface=local.endpoint.interface,
            mac=local.endpoint.mac,
            addresses=local.endpoint.addresses,
            episode=local.machine.episode,
        )
        for local in locals_
        if wants_signs(local.machine)
    }


def owners(
    locals_: Iterable[Local], node: str, *, in_sync: bool = True
) -> dict[EndpointId, Ownership]:
    """The endpoints that must own their VM's addresses.

    Which migration gave an endpoint its VM makes a claim harmless that is out of date: IPAM knows
    it. One that names none waits until the API is `in_sync`: what was remembered may be of before
    the VM's departure.
    """
    return {
        local.id: Ownership(
            endpoint=local.id,
            handle_id=local.endpoint.vm.handle_id,
            owner=pod_owner(
                namespace=local.id.namespace,
                pod=local.id.pod,
                node=node,
                timestamp=_STORED_ALREADY,
                container_id=local.endpoint.container_id,
                pod_uid=local.endpoint.pod_uid,
                vmi_name=local.endpoint.vm.vmi_name,
                vmi_uid=local.endpoint.vm.vmi_uid,
                vmim_uid=_migration_of(local),
            ),
            episode=local.machine.episode,
        )
        for local in locals_
        if local.endpoint.vm is not None
        and local.endpoint.vm.handle_id
        and wants_owner(local.machine)
        and (in_sync or _migration_of(local))
    }


def _migration_of(local: Local) -> str:
    """The migration that a claim names."""
    return "" if local.returned else local.machine.migration_uid


def came_back(before: State, after: State) -> bool | None:
    """Whether this move brings a VM back to a node it had left; None: it says nothing about it."""
    if after is State.TARGET:
        return False
    if before is State.DEPARTED and after in (State.LIVE, State.BASE, State.TIME_WAIT):
        return True
    return None


def worth_asking(local: Local, learned: bool, known_raise: bool) -> bool:
    """Whether BGP must be asked if another node raised the endpoint's addresses.

    While ours is raised, BIRD keeps the other route out of the kernel, so only BIRD can tell;
    an ordinary endpoint is worth it only when the kernel shows a route of BIRD's.
    """
    if local.endpoint.vm is None:
        return False
    return local.machine.state is not State.BASE or learned or known_raise
