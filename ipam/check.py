"""Is what IPAM has stored sound, and does it agree with who lives? Pure; nothing is changed.

It stands on one observation of the collector's (`gc.opinions`) and its rules, so what it calls
leaked is what the collector would doubt: never a stopped VM's address, never a living node's
tunnel. Beyond that it looks into each block, and at what is in use without being allocated, or by
another than it is allocated to. An address whose owner cannot be asked about is no problem, and
no proof of health either: `unjudged` has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from libtortie.kube.objects import LAUNCHER_PREFIX
from libtortie.model.ipam import Block, IPAddress, Owner
from libtortie.model.keys import IPNetwork

from .gc import Opinions
from .gc_addresses import owner_of
from .gc_claims import Flaw
from .gc_endpoints import Endpoint
from .gc_inventory import Allocated, Inventory, place_of
from .gc_verdicts import Opinion, Subject, Unknown
from .ownership import Owners, is_pod


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `address` is what it is about, if it is about an address."""

    text: str
    address: IPAddress | None = None


@dataclass(frozen=True, slots=True)
class User:
    """Who has an address: a workload's endpoint, or a node's tunnel (without an endpoint).

    `gone`: its pod is known to be gone or to have finished.
    """

    node: str
    endpoint: Endpoint | None = None
    gone: bool = False

    @property
    def name(self) -> str:
        """For people."""
        if self.endpoint is None:
            return f"Node tunnel ({self.node})"
        note = ", which is gone" if self.gone else ""
        return f"Workload ({self.node}/{self.endpoint.called}){note}"

    @property
    def pod(self) -> str:
        """The pod's name; "" for what is no pod."""
        return self.endpoint.pod if self.endpoint else ""


Users = Mapping[IPAddress, tuple[User, ...]]


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, by kind. `leaked` are addresses that nobody uses, with the reason."""

    users: Users
    leaked: Mapping[IPAddress, str]
    unjudged: Mapping[IPAddress, str]
    unallocated: tuple[Problem, ...]
    disputed: tuple[Problem, ...]
    handles: tuple[Problem, ...]
    claims: tuple[Problem, ...]
    blocks: tuple[Problem, ...]
    unreadable: tuple[Problem, ...]
    foreign: tuple[IPAddress, ...]
    """In use, but in no pool: allowed (`ipAddrsNoIpam`)."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong."""
        leaked = (
            Problem(f"{address} is leaked: {reason}", address)
            for address, reason in self.leaked.items()
        )
        kinds = (self.unallocated, self.disputed, self.handles, self.claims, self.blocks)
        return tuple(chain(leaked, *kinds, self.unreadable))


def examine(seen: Opinions) -> Examination:
    """Judge one observation."""
    inventory = seen.inventory
    claimants = users_of(seen)
    users = {a: live for a, all_ in claimants.items() if (live := _living(all_))}
    held = {one.piece.address: one for one in inventory.allocated}
    strangers = [address for address in users if address not in held]
    pooled = [address for address in strangers if _in_pool(address, inventory)]
    leaked, unjudged = _doubts(seen, users)
    return Examination(
        users=users,
        leaked=leaked,
        unjudged=unjudged,
        unallocated=tuple(
            Problem(f"{one} is used by {_names(users[one])} and not allocated", one)
            for one in pooled
        ),
        disputed=tuple(_disputes(held, claimants)),
        handles=tuple(
            Problem(f"{one.subject.name}: {one.reason}") for one in seen.handles if one.doubted
        ),
        claims=tuple(
            Problem(f"{one.subject.name}: {one.reason}")
            for one in seen.claims
            if one.doubted and one.subject.flaw is not Flaw.EMPTY
        ),
        blocks=tuple(
            Problem(f"block {where}: {what}") for where, what in _unsound(inventory, inventory.now)
        ),
        unreadable=tuple(Problem(f"unreadable: {text}") for text in inventory.unreadable),
        foreign=tuple(address for address in strangers if address not in pooled),
    )


def users_of(seen: Opinions) -> Users:
    """Every address that a stored endpoint or a node's tunnel names, and who."""
    found: dict[IPAddress, tuple[User, ...]] = {}
    for endpoint in seen.inventory.endpoints:
        user = (_workload(endpoint, seen),)
        for address in dict.fromkeys(endpoint.addresses):
            found[address] = found[address] + user if address in found else user
    for address, nodes in seen.cluster.tunnels.items():
        found[address] = found.get(address, ()) + tuple(User(node) for node in sorted(nodes))
    return found


def _living(users: tuple[User, ...]) -> tuple[User, ...]:
    """Those that are not known to be gone; most often all of them."""
    gone = any(user.gone for user in users)
    return tuple(user for user in users if not user.gone) if gone else users


def structure(block: Block, now: datetime) -> Iterator[str]:
    """What is unsound about a block that could be read (indices and ranges are sound then)."""
    free = Counter(block.unallocated)
    for ordinal in sorted(one for one, times in free.items() if times > 1):
        yield f"{block.address(ordinal)} is free more than once"
    for ordinal, index in enumerate(block.allocations):
        if (index is None) != (ordinal in free):
            state = "neither free nor allocated" if index is None else "free and allocated"
            yield f"{block.address(ordinal)} is {state}"
    used = {index for index in block.allocations if index is not None}
    for index in range(len(block.attributes)):
        if index not in used:
            yield f"attributes[{index}] is no address's"
    for ordinal, number in sorted(block.sequence_numbers.items()):
        if number >= block.sequence_number:
            yield f"{block.address(ordinal)} has a sequence number that is yet to come"
    for index, attribute in enumerate(block.attributes):
        if attribute.released_at is not None and attribute.released_at > now:
            yield f"attributes[{index}] was released in the future, {attribute.released_at}"


def _doubts(
    seen: Opinions, users: Users
) -> tuple[Mapping[IPAddress, str], Mapping[IPAddress, str]]:
    """Addresses that nobody uses, and those of which it is not known; why."""
    leaked: dict[IPAddress, str] = {}
    unjudged: dict[IPAddress, str] = {}
    judged: list[tuple[Opinion[Subject], tuple[IPAddress, ...]]] = [
        *((one, (one.subject.piece.address,)) for one in seen.addresses),
        *((one, one.subject.addresses) for one in seen.vms),
    ]
    for opinion, found in judged:
        for address in found:
            if opinion.doubted:
                leaked[address] = opinion.reason
            elif opinion.unknown and address not in users:
                unjudged[address] = opinion.reason
    return leaked, unjudged


def _disputes(held: Mapping[IPAddress, Allocated], users: Users) -> Iterator[Problem]:
    """Addresses that somebody uses to whom they are not allocated."""
    for address, theirs in users.items():
        allocated = held.get(address)
        if allocated is None:
            continue
        if allocated.nobodys:
            text = f"{address} is allocated to nobody, and used by {_names(theirs)}"
            yield Problem(text, address)
        owners = [one for one in (owner_of(allocated), allocated.piece.owners.alternate) if one]
        others = [user for user in theirs if owners and not any(_is(user, o) for o in owners)]
        if others:
            whose = " and ".join(_owner_name(owner) for owner in owners)
            text = f"{address} is allocated to {whose}, and used by {_names(others)}"
            yield Problem(text, address)
        left = _left_behind(allocated.piece.owners, _living(theirs))
        if left:
            yield Problem(f"{address} is used by {left} at once, and no migration runs", address)


def _left_behind(owners: Owners, users: Iterable[User]) -> str:
    """Both pods, if a migration's source lives on beside its promoted target; or "".

    A running migration is told by the target's `vmim-uid` as alternate; promotion makes the source
    the alternate, without one, until its DEL.
    """
    active, source = owners.active, owners.alternate
    if not (is_pod(active) and is_pod(source)) or source.get("vmim-uid"):
        return ""
    both = [user for user in users if user.pod and (_is(user, active) or _is(user, source))]
    return _names(both) if len(both) > 1 else ""


def _is(user: User, owner: Owner) -> bool:
    """Whether a user is who an address is allocated to."""
    if user.endpoint and user.pod:
        if owner.get("vmi-name") and not owner.get("pod"):
            return _runs(user.endpoint, owner)  # a stopped VM's
        if not owner.get("pod"):
            return "type" not in owner  # another orchestrator's
        return (user.endpoint.namespace, user.pod) == (owner.get("namespace"), owner["pod"])
    if "type" in owner:
        return owner.get("node") == user.node
    return not owner.get("pod") and owner.get("node", user.node) == user.node


def _runs(pod: Endpoint, owner: Owner) -> bool:
    """Whether a pod is the launcher of the VM that an owner names."""
    launcher = not pod.vm and pod.pod.startswith(LAUNCHER_PREFIX)
    return pod.namespace == owner.get("namespace") and (launcher or pod.vm == owner.get("vmi-name"))


def _unsound(inventory: Inventory, now: datetime) -> Iterator[tuple[object, str]]:
    for block in inventory.blocks.values():
        for what in structure(block, now):
            yield block.cidr, what
    widest: IPNetwork | None = None
    for cidr in sorted(inventory.blocks, key=place_of):
        if widest is not None and cidr.version == widest.version and cidr.overlaps(widest):
            yield cidr, f"overlaps block {widest}"
        else:
            widest = cidr


def _workload(endpoint: Endpoint, seen: Opinions) -> User:
    name, pods = endpoint.pod, seen.cluster.pods
    pod = None if isinstance(pods, Unknown) else pods.get((endpoint.namespace, name))
    gone = bool(name) and not isinstance(pods, Unknown) and (pod is None or pod.finished)
    return User(endpoint.node, endpoint, gone)


def _in_pool(address: IPAddress, inventory: Inventory) -> bool:
    return any(address in pool.cidr for pool in inventory.pools or ())


def _names(users: Iterable[User]) -> str:
    return ", ".join(user.name for user in users)


def _owner_name(owner: Owner) -> str:
    if owner.get("pod"):
        return f"pod {owner.get('namespace', '')}/{owner['pod']}"
    return f"{owner.get('type') or owner.get('vmi-name') or 'a container'} on {owner.get('node')}"
