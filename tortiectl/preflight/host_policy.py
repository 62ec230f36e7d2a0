"""Whether the nodes' own policy lets migration streams through: TCP 49152 and 49153. Pure.

Evaluated are new connections between the nodes' own addresses, for each HostEndpoint that is about
them and for both directions, as the agents do: failsafe ports, then policies in order of tier and
order, then profiles, then drop. All other nodes are followed at once, as the set of addresses for
which nothing is decided yet. The agents' own switch (`open_migration_ports` in node.yaml) is not to
be seen from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

from libtortie.model.policy import (
    DEFAULT_TIER,
    PROTOCOLS,
    Action,
    Entity,
    HostEnd,
    Item,
    Policy,
    PolicyRule,
    PortRange,
    Profile,
)
from libtortie.model.policy_wire import (
    labelled_item,
    read_host_end,
    read_network_set,
    read_policy,
    read_profile,
)
from libtortie.model.resources import FelixConfiguration, Resource
from libtortie.model.selectors import parse
from tortiectl.preflight.findings import Finding, Severity, Subject

PORTS = (49152, 49153)
TCP = PROTOCOLS["TCP"]
DEFAULT_ORDER = 1_000_000.0
ALLOWS_ALL = "projectcalico-default-allow"
Address = IPv4Address | IPv6Address
Addresses = frozenset[Address]


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """What decides. `nodes` are the nodes' addresses by name; `felix` by name of its object."""

    ends: Sequence[Resource]
    policies: Sequence[Resource]
    tiers: Sequence[Resource]
    profiles: Sequence[Resource]
    sets: Sequence[Resource]
    felix: Mapping[str, FelixConfiguration]
    nodes: Mapping[str, Address]


@dataclass(frozen=True, slots=True)
class _Flow:
    """New connections between a node and others: to it (`in`) or from it (`out`)."""

    own: Address
    port: int
    way: str


def check_host_policy(world: HostPolicy) -> Iterator[Finding]:
    """One finding for each HostEndpoint that keeps a migration port closed."""
    if not world.ends:
        return
    judge = _Judge(world)
    for resource in world.ends:
        end = read_host_end(resource)
        own = world.nodes.get(end.node)
        if own is None or (end.expected and own not in end.expected):
            continue  # of a node that is gone, or of another network's link
        flows = [_Flow(own, port, way) for port in PORTS for way in ("in", "out")]
        closed = [flow for flow in flows if judge.closed(resource, end, flow)]
        if closed:
            yield _finding(end, closed)


def _finding(end: HostEnd, closed: Sequence[_Flow]) -> Finding:
    ports = ", ".join(f"{flow.port} {flow.way}" for flow in closed)
    sure = end.link in ("", "*") or bool(end.expected)
    return Finding(
        Severity.BLOCKS if sure else Severity.RISK,
        Subject("HostEndpoint", end.name), "MigrationPorts",
        f"TCP {ports} is closed between {end.node} and other nodes: migration streams do not "
        "come through",
        "add the ports to failsafeInboundHostPorts and failsafeOutboundHostPorts, allow them by "
        "a policy for host endpoints, or set open_migration_ports on the nodes",
    )  # fmt: skip


class _Judge:
    """Policies read once, and what of them is asked again and again."""

    def __init__(self, world: HostPolicy) -> None:
        self._felix, self._nodes = world.felix, world.nodes
        self._everyone: Addresses = frozenset(world.nodes.values())
        self._policies = [read_policy(one) for one in world.policies]
        self._profiles = {one.metadata.name: read_profile(one) for one in world.profiles}
        self._items = [read_network_set(one) for one in world.sets]
        for one in world.ends:
            end = read_host_end(one)
            own = world.nodes.get(end.node)
            known = end.expected or ({own} if own is not None else set())
            nets = tuple(ip_network(address) for address in known)
            self._items.append(Item(labelled_item(one).labels, end.profiles, nets))
        specs = {one.metadata.name: _spec(one) for one in world.tiers}
        self._orders = {name: _order(spec.get("order"), name) for name, spec in specs.items()}
        self._passes = {name for name, spec in specs.items() if spec.get("defaultAction") == "Pass"}
        self._members = cache(self._find_members)
        self._selected = cache(_selects)

    def closed(self, resource: Resource, end: HostEnd, flow: _Flow) -> bool:
        """Whether some other node is kept out, or cannot be reached."""
        far = frozenset(
            one for one in self._everyone if one != flow.own and one.version == flow.own.version
        )
        left: Addresses | None = far - self._failsafe(end.node, flow, far)
        labels = labelled_item(resource).labels
        mine = [one for one in self._policies if self._selected(one.selector, labels)]
        for early in (True, False):  # what doNotTrack or preDNAT decides is not asked again
            if left:
                left = self._decide(self._tiers(mine, flow, early), left, flow, early)
        return left is None or (bool(left) and self._left_by_profiles(end, left, flow))

    def _failsafe(self, node: str, flow: _Flow, far: Addresses) -> Addresses:
        way = "inbound" if flow.way == "in" else "outbound"
        for name in (f"node.{node}", "default"):
            felix = self._felix.get(name)
            listed = None if felix is None else getattr(felix.spec, f"failsafe_{way}_host_ports")
            if listed is not None:
                return frozenset(one for one in far if _listed(listed, flow.port, one))
        return frozenset()

    def _tiers(self, mine: Iterable[Policy], flow: _Flow, early: bool) -> list[list[Policy]]:
        """Policies that say something, by tier, in order."""
        by_tier: dict[str, list[Policy]] = {}
        for one in mine:
            speaks = _rules(one, flow) is not None or one.problem
            if (one.untracked or one.pre_dnat) is early and speaks:
                by_tier.setdefault(one.tier, []).append(one)
        names = sorted(by_tier, key=lambda name: (self._orders.get(name, _order(None, name)), name))
        return [
            sorted(by_tier[name], key=lambda one: (_order(one.order, ""), one.id)) for name in names
        ]

    def _decide(
        self, tiers: list[list[Policy]], far: Addresses, flow: _Flow, early: bool
    ) -> Addresses | None:
        """The addresses for which nothing is decided; None when one of them is denied."""
        left = far
        for tier in tiers:
            passed: Addresses = frozenset()
            for policy in tier:
                if policy.problem and left:
                    return None
                for rule in _rules(policy, flow) or ():
                    hit = left & self._matching(rule, flow)
                    if hit and rule.action is Action.DENY:
                        return None
                    if rule.action is not Action.LOG:
                        left -= hit
                    if rule.action is Action.PASS:
                        passed |= hit
            if left and not early and tier[0].tier not in self._passes:
                return None
            left |= passed
        return left

    def _left_by_profiles(self, end: HostEnd, left: Addresses, flow: _Flow) -> bool:
        """Whether profiles leave someone out: what nobody allows is dropped."""
        for name in end.profiles:
            if name == ALLOWS_ALL:
                return False
            profile = self._profiles.get(name, Profile(name))
            for rule in profile.ingress if flow.way == "in" else profile.egress:
                hit = left & self._matching(rule, flow)
                if hit and rule.action is Action.DENY:
                    return True
                left -= hit if rule.action is Action.ALLOW else frozenset()
        return bool(left)

    def _matching(self, rule: PolicyRule, flow: _Flow) -> Addresses:
        """The far ends whose connections a rule is about."""
        source, destination = rule.source, rule.destination
        about_it = (
            rule.version in (None, flow.own.version)
            and rule.protocol in (None, TCP)
            and rule.not_protocol != TCP
            and rule.icmp is None
            and not source.ports  # the far end's own port is any
            and _on_port(destination, flow.port)
        )
        near, distant = (destination, source) if flow.way == "in" else (source, destination)
        if not about_it or flow.own not in self._members(near):
            return frozenset()
        return self._members(distant)

    def _find_members(self, entity: Entity) -> Addresses:
        """The nodes' addresses of which an entity's networks and selectors are true."""
        found = self._everyone
        if entity.nets:
            found = _within(found, entity.nets)
        if entity.not_nets:
            found -= _within(found, entity.not_nets)
        if entity.selector is not None:
            found &= self._of_selector(entity.selector)
        if entity.not_selector is not None:
            found -= self._of_selector(entity.not_selector)
        return found

    def _of_selector(self, text: str) -> Addresses:
        nets = [
            net for item in self._items if self._selected(text, item.labels) for net in item.nets
        ]
        return _within(self._everyone, nets)


def _selects(text: str, labels: tuple[tuple[str, str], ...]) -> bool:
    return parse(text).matches(dict(labels))


def _rules(policy: Policy, flow: _Flow) -> tuple[PolicyRule, ...] | None:
    return policy.ingress if flow.way == "in" else policy.egress


def _within(addresses: Addresses, nets: Sequence[Any]) -> Addresses:
    return frozenset(one for one in addresses if _inside(one, nets))


def _inside(address: Address, nets: Iterable[Any]) -> bool:
    return any(net.version == address.version and address in net for net in nets)


def _on_port(entity: Entity, port: int) -> bool:
    ranges = [one for one in entity.ports if isinstance(one, PortRange)]
    if entity.ports and not any(one.first <= port <= one.last for one in ranges):
        return False
    outside = [one for one in entity.not_ports if isinstance(one, PortRange)]
    return not any(one.first <= port <= one.last for one in outside)


def _listed(listed: object, port: int, address: Address) -> bool:
    """Whether a failsafe list has a TCP port for an address."""
    for one in listed if isinstance(listed, list | tuple) else ():
        if not isinstance(one, Mapping) or one.get("port") != port:
            continue
        if str(one.get("protocol", "TCP")).upper() not in ("TCP", "6"):
            continue
        try:
            if not one.get("net") or _inside(address, [ip_network(str(one["net"]), strict=False)]):
                return True
        except ValueError:
            continue
    return False


def _spec(resource: Resource) -> Mapping[str, Any]:
    found = resource.to_wire().get("spec")
    return found if isinstance(found, Mapping) else {}


def _order(value: object, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return DEFAULT_ORDER if name == DEFAULT_TIER else float("inf")
