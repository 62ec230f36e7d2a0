"""One VM at a glance: where it runs, whose its addresses are, what its migration does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipam import vm_handles
from ipam.vm_handles import VMHandle
from libtortie.history import sentence
from libtortie.json_lines import objects
from libtortie.kube.migrations import Migration
from libtortie.model.history import Fact, stamp, to_wire
from libtortie.model.ipam import Owner
from libtortie.model.policy_wire import read_policy
from libtortie.model.resources import Resource, WorkloadEndpoint
from libtortie.model.selectors import parse
from libtortie.past_migrations import APART, PastMigration
from tortiectl.kubevirt.objects import VMI
from tortiectl.text_tables import columns

by_vm = vm_handles.by_vm
HEADINGS = ("NAMESPACE", "NAME", "PHASE", "NODE", "ADDRESSES", "MIGRATION", "HANDLE")
MOVES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Overview:
    """A VM's instance and what the network knows of it."""

    vmi: VMI
    handle: VMHandle | None
    migrations: tuple[Migration, ...]
    endpoints: tuple[WorkloadEndpoint, ...]
    policies: tuple[str, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """By IPAM, else by what KubeVirt says."""
        if self.handle is not None:
            return tuple(str(one) for one in self.handle.addresses)
        return self.vmi.addresses

    @property
    def moving(self) -> str:
        """`name: phase` of live migrations, else how the last one ended."""
        live = [one for one in self.migrations if not one.final]
        if live:
            return "; ".join(f"{one.metadata.name}: {one.status.phase or 'new'}" for one in live)
        state = self.vmi.status.migration_state
        if not state.target_node:
            return "-"
        end = "failed" if state.failed else "done"
        return f"{end}: {state.source_node or '?'} to {state.target_node}"


def overview(
    vmi: VMI,
    handles: Mapping[tuple[str, str], VMHandle],
    migrations: Iterable[Migration],
    endpoints: Iterable[WorkloadEndpoint],
    policies: Sequence[Resource],
) -> Overview:
    """Everything about one VM out of everything about all."""
    meta = vmi.metadata
    handle = handles.get((meta.namespace, meta.name))
    mine = tuple(one for one in migrations if one.spec.vmi_name == meta.name)
    own = tuple(one for one in endpoints if _is_of(one, vmi, handle))
    names = tuple(
        dict.fromkeys(name for one in own for name in selecting(policies, one.metadata.labels))
    )
    return Overview(vmi, handle, mine, own, names)


def _is_of(endpoint: WorkloadEndpoint, vmi: VMI, handle: VMHandle | None) -> bool:
    meta = endpoint.metadata
    if meta.namespace != vmi.metadata.namespace:
        return False
    if meta.annotations.get("tortie.io/vmi-uid") == vmi.metadata.uid:
        return True
    held = {f"{one}/{one.max_prefixlen}" for one in handle.addresses} if handle else set()
    return bool(held & set(endpoint.spec.ip_networks))


def selecting(policies: Iterable[Resource], labels: Mapping[str, str]) -> Iterator[str]:
    """The names of the policies that select an endpoint with these labels."""
    for one in policies:
        policy = read_policy(one)
        if parse(policy.selector).matches(labels):
            yield f"{policy.id}{' (cannot be obeyed)' if policy.problem else ''}"


def table(found: Sequence[Overview]) -> str:
    """A line for each."""
    rows = [
        (
            one.vmi.metadata.namespace,
            one.vmi.metadata.name,
            one.vmi.status.phase or "-",
            one.vmi.status.node_name or "-",
            ",".join(one.addresses) or "-",
            one.moving,
            one.handle.handle_id if one.handle else "-",
        )
        for one in found
    ]
    return columns(HEADINGS, rows)


def lines(one: Overview, audit: Sequence[str], past: Sequence[PastMigration] = ()) -> Iterator[str]:
    """All about one; of `past`, newest first, the last few."""
    vmi = one.vmi
    yield f"VM {vmi.id}"
    yield f"  phase       {vmi.status.phase or '-'}"
    yield f"  node        {vmi.status.node_name or '-'}"
    yield f"  addresses   {', '.join(one.addresses) or '-'}"
    yield f"  handle      {one.handle.handle_id if one.handle else '- (not of this IPAM)'}"
    for piece in one.handle.pieces if one.handle else ():
        yield f"    {piece.address}"
        yield f"      active     {_owner(piece.owners.active)}"
        if piece.owners.alternate:
            yield f"      alternate  {_owner(piece.owners.alternate)}"
    yield f"  migration   {one.moving}"
    mark = vmi.status.evacuation_node_name
    if mark:
        yield f"  evacuation  marked to leave {mark}"
    if not one.endpoints:
        yield "  policy      no endpoint is stored for it"
    for endpoint in one.endpoints:
        yield f"  endpoint    {endpoint.spec.interface_name} on {endpoint.spec.node}"
    if one.endpoints:
        yield f"  policies    {', '.join(one.policies) or 'none selects it'}"
    for each in past[:MOVES_SHOWN]:
        yield f"  moved       {moved(each)}"
    if past[MOVES_SHOWN:]:
        yield f"  moved       {len(past) - MOVES_SHOWN} times before (-o json has all)"
    for text in audit:
        yield f"  audit       {text}"


def moved(one: PastMigration) -> str:
    """A migration that the history knows."""
    when = stamp(one.began) if one.began else "?"
    took = "" if one.downtime_ms is None else f", network downtime {one.downtime_ms:g} ms"
    doubt = f" ({APART.format(one.apart.total_seconds())})" if one.apart else ""
    return f"{when} {one.source or '?'} to {one.target or '?'}: {one.outcome}{took}{doubt}"


def _move_document(one: PastMigration) -> dict[str, Any]:
    return {
        "uid": one.migration_uid,
        "began": stamp(one.began) if one.began else None,
        "ended": stamp(one.ended) if one.ended else None,
        "source": one.source,
        "target": one.target,
        "outcome": one.outcome,
        "networkDowntimeMs": one.downtime_ms,
        "signToRouteMs": one.sign_to_route_ms,
        "clocksApartSeconds": one.apart.total_seconds(),
    }


def _owner(owner: Owner) -> str:
    if not owner:
        return "nobody"
    pod = owner.get("pod") or "no pod: the VM is stopped"
    since = f" since {owner['timestamp']}" if owner.get("timestamp") else ""
    return f"{pod} on {owner.get('node', '?')}{since}"


def document(
    one: Overview, audit: Sequence[str], past: Sequence[PastMigration] = ()
) -> dict[str, Any]:
    """For programs."""
    vmi = one.vmi
    return {
        "namespace": vmi.metadata.namespace,
        "name": vmi.metadata.name,
        "phase": vmi.status.phase,
        "node": vmi.status.node_name,
        "addresses": list(one.addresses),
        "handle": one.handle.handle_id if one.handle else "",
        "owners": [
            {
                "address": str(piece.address),
                "active": dict(piece.owners.active),
                "alternate": dict(piece.owners.alternate),
            }
            for piece in (one.handle.pieces if one.handle else ())
        ],
        "migration": one.moving,
        "evacuation": vmi.status.evacuation_node_name,
        "endpoints": [
            {"node": each.spec.node, "interface": each.spec.interface_name}
            for each in one.endpoints
        ],
        "policies": list(one.policies),
        "migrations": [_move_document(each) for each in past],
        "audit": list(audit),
    }


def audit_of(text: str, addresses: Sequence[str]) -> Iterator[str]:
    """Who had an address, by an agent's log: each pod that came or went with it."""
    wanted = set(addresses)
    for body in objects(text):
        verb = _EVENTS.get(str(body.get("event")))
        if verb is None:
            continue
        listed = body.get("addresses")
        had = {str(one).partition("/")[0] for one in listed} if isinstance(listed, list) else set()
        for address in sorted(had & wanted):
            pod = str(body.get("endpoint", "?")).rpartition("/")[0]
            yield f"{body.get('time', '?')} {body.get('node', '?')}: {pod} {verb} {address}"


def audit_of_history(
    facts: Iterable[Fact], vm: tuple[str, str], addresses: Sequence[str]
) -> Iterator[str]:
    """Who had a VM's addresses, and what became of the VM, by the history."""
    wanted = set(addresses)
    for fact in facts:
        if (fact.namespace, fact.vm) == vm or wanted & set(map(str, fact.addresses)):
            yield f"{to_wire(fact)['at']} {fact.by}: {sentence(fact)}"


_EVENTS = {"endpoint_added": "got", "endpoint_removed": "gave up"}
