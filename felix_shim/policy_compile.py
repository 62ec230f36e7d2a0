"""A policy's rules → the rule model. Pure, and a function of one policy alone.

A rule may need several of the model: one for each IP version where sets are looked into (a set has
one version), and one for each way its ports can be given (by number, by name). They are
alternatives with one verdict, so their order means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from felix_shim.rules import (
    Chain,
    InNets,
    InSet,
    IsIcmp,
    IsProtocol,
    IsVersion,
    Log,
    Match,
    OnPort,
    Plain,
    Rule,
    SetKey,
    SetKind,
    Side,
    Verdict,
)
from libtortie.model import felix_values
from libtortie.model.policy import (
    ICMP,
    Action,
    Entity,
    Icmp,
    IPNetwork,
    PolicyRule,
    PortRange,
)

LABEL_SERVICE = "service"
"""What says whose an EndpointSlice is, among EndpointSlices."""
LOG_PREFIX = felix_values.LOG_PREFIX + felix_values.LOG_END
"""Calico's default, which people's log filters know."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Where a packet goes on that a rule allows, or passes to the next tier."""

    allow: Verdict
    passed: Verdict = Plain.DROP
    log_prefix: str = LOG_PREFIX

    def of(self, action: Action) -> Verdict:
        """What a rule with this action does."""
        match action:
            case Action.ALLOW:
                return self.allow
            case Action.PASS:
                return self.passed
            case Action.LOG:
                return Log(self.log_prefix)
            case Action.DENY:
                return Plain.DROP


def compile_rules(rules: Iterable[PolicyRule], verdicts: Verdicts) -> Chain:
    """A policy's rules of one direction, in order."""
    return tuple(
        Rule(matches, verdicts.of(rule.action)) for rule in rules for matches in _ways(rule)
    )


def of_service(name: str) -> str:
    """The selector of what a Service (`namespace/name`) leads to."""
    return f"{LABEL_SERVICE} == '{name}'"


def sets_of(chain: Chain) -> frozenset[SetKey]:
    """The sets that a chain's rules look into."""
    return frozenset(
        match.key for rule in chain for match in rule.matches if isinstance(match, InSet)
    )


def _ways(rule: PolicyRule) -> Iterator[tuple[Match, ...]]:
    """The conjunctions any of which makes a packet match the rule."""
    common = tuple(_packet(rule))
    for version in _versions(rule):
        ends = [
            tuple(_end(end, side, version, rule.protocol))
            for end, side in ((rule.source, Side.SOURCE), (rule.destination, Side.DESTINATION))
        ]
        ports = [
            tuple(_ports(end, side, version, rule.protocol))
            for end, side in ((rule.source, Side.SOURCE), (rule.destination, Side.DESTINATION))
        ]
        family = (IsVersion(version),) if version and version == rule.version else ()
        for source, destination in product(*ports):
            yield family + common + ends[0] + ends[1] + source + destination


def _versions(rule: PolicyRule) -> tuple[int, ...]:
    """The IP versions to write a rule for; 0: it can be written for both at once."""
    ends = (rule.source, rule.destination)
    nets = [net for end in ends for net in (*end.nets, *end.not_nets)]
    given = {net.version for net in nets} | ({rule.version} if rule.version else set())
    if len(given) > 1:
        return ()  # no packet is of both
    if given:
        return tuple(given)
    if rule.icmp or rule.not_icmp:
        return (4,) if rule.protocol == ICMP else (6,)
    return (4, 6) if any(_has_sets(end) for end in ends) else (0,)


def _has_sets(end: Entity) -> bool:
    named = any(isinstance(port, str) for port in (*end.ports, *end.not_ports))
    looked_up = (end.selector, end.not_selector, end.nodes, end.service or None)
    return named or any(one is not None for one in looked_up)


def _packet(rule: PolicyRule) -> Iterator[Match]:
    if rule.protocol is not None:
        yield IsProtocol(rule.protocol)
    if rule.not_protocol is not None:
        yield IsProtocol(rule.not_protocol, negated=True)
    if rule.icmp:
        yield _icmp(rule.icmp)
    if rule.not_icmp:
        yield _icmp(rule.not_icmp, negated=True)


def _icmp(icmp: Icmp, *, negated: bool = False) -> IsIcmp:
    return IsIcmp(icmp.type, icmp.code, negated)


def _end(end: Entity, side: Side, version: int, protocol: int | None) -> Iterator[Match]:
    """What must hold of an end apart from the ports it may have."""
    if end.nets:
        yield in_nets(side, version, _texts(end.nets))
    if end.not_nets:
        yield in_nets(side, version, _texts(end.not_nets), negated=True)
    if end.selector is not None:
        yield InSet(side, SetKey(SetKind.ADDRESSES, version, end.selector))
    if end.not_selector is not None:
        yield InSet(side, SetKey(SetKind.ADDRESSES, version, end.not_selector), negated=True)
    if end.nodes is not None:
        yield InSet(side, SetKey(SetKind.KUBE_NODES, version, end.nodes))
    if end.service:
        kind = SetKind.SERVICE_PORTS if side is Side.DESTINATION else SetKind.SERVICES
        yield InSet(side, SetKey(kind, version, of_service(end.service)))
    numbers, names = _split(end.not_ports)
    if numbers:
        yield on_port(side, numbers, negated=True)
    if names:
        yield InSet(side, _named(end, version, names, protocol), negated=True)


def _ports(
    end: Entity, side: Side, version: int, protocol: int | None
) -> Iterator[tuple[Match, ...]]:
    """The ways in which an end can have one of the ports; one without matches if any will do."""
    numbers, names = _split(end.ports)
    if not end.ports:
        yield ()
    if numbers:
        yield (on_port(side, numbers),)
    if names:
        yield (InSet(side, _named(end, version, names, protocol)),)


def in_nets(side: Side, version: int, nets: tuple[str, ...], *, negated: bool = False) -> Match:
    """An end's address is in one of these networks, or in none. Several, unless they are all hosts,
    are a set of their own: see `docs/adr/0020`."""
    hosts = "/32" if version == 4 else "/128"
    if len(nets) == 1 or all(net.endswith(hosts) for net in nets):
        return InNets(side, version, nets, negated)
    return InSet(side, SetKey(SetKind.NETS, version, " ".join(nets)), negated)


def on_port(side: Side, ranges: tuple[PortRange, ...], *, negated: bool = False) -> Match:
    """An end's port is one of these, or none; behind a match of a protocol that has ports. Several
    ranges are a set of their own, too."""
    if len(ranges) == 1 or all(one.first == one.last for one in ranges):
        return OnPort(side, ranges, negated)
    texts = (f"{one.first}-{one.last}" for one in ranges)
    return InSet(side, SetKey(SetKind.PORT_RANGES, 0, " ".join(texts)), negated)


def _named(end: Entity, version: int, names: tuple[str, ...], protocol: int | None) -> SetKey:
    """The ports of these names, of the endpoints that the rule selects on this side."""
    return SetKey(SetKind.PORTS, version, end.selector or "", names, protocol or 0)


def _split(
    ports: tuple[PortRange | str, ...],
) -> tuple[tuple[PortRange, ...], tuple[str, ...]]:
    numbers = sorted(port for port in ports if isinstance(port, PortRange))
    names = sorted({port for port in ports if isinstance(port, str)})
    return tuple(merged(numbers)), tuple(names)


def merged(ranges: Iterable[PortRange]) -> Iterator[PortRange]:
    """Sorted ranges, those that overlap or touch made one: a set in the kernel has no overlaps."""
    current: PortRange | None = None
    for one in ranges:
        if current is None:
            current = one
        elif one.first <= current.last + 1:
            current = PortRange(current.first, max(current.last, one.last))
        else:
            yield current
            current = one
    if current is not None:
        yield current


def _texts(nets: tuple[IPNetwork, ...]) -> tuple[str, ...]:
    """Networks that hold all the others, as text, in order."""
    return tuple(text for net in collapsed(nets) for text in halves(net))


def halves(net: IPNetwork) -> tuple[str, ...]:
    """A network as sets have it: the one of everything is two halves, for nft knows no /0."""
    if net.prefixlen:
        return (str(net),)
    return tuple(str(half) for half in net.subnets())


def collapsed(nets: Iterable[IPNetwork]) -> list[IPNetwork]:
    """The networks that lie in no other of them, in order; all are of one version."""
    found: list[IPNetwork] = []
    for net in sorted(set(nets), key=lambda one: (int(one.network_address), one.prefixlen)):
        if not found or int(net.network_address) > int(found[-1].broadcast_address):
            found.append(net)
    return found
