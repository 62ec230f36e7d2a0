"""BGPFilters as values, and as functions in BIRD's language. Pure.

A rule's conditions are all of one route; the first rule that holds decides, and what no rule takes
goes on to what the agent does with every route. A priority is a metric, which a route carries as
the local preference `2147483647 - priority`.

An import that is accepted here is given its preference as any other: a raised route of another
node stays the better one, and so does one that a rule raises.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from libtortie.linux.port import IPNetwork
from libtortie.model.bgp_spec import (
    BGPFilterWire,
    FilterRuleWire,
    OperationWire,
    PrefixLengthWire,
    community_of,
)
from libtortie.model.fields import network_of

LOCAL_PREF_ZERO = 2147483647
"""Local preference of metric 0."""
SYMBOL_MAX = 64
_HASH_LENGTH = 16


class Direction(StrEnum):
    """Which way a route goes: to us or from us."""

    IMPORT = "import"
    EXPORT = "export"


class Operator(StrEnum):
    """How a route's network and a rule's must be to each other."""

    EQUAL = "Equal"
    NOT_EQUAL = "NotEqual"
    IN = "In"
    NOT_IN = "NotIn"


@dataclass(frozen=True, slots=True)
class AddCommunity:
    """Two numbers, or three for a large one."""

    community: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrependASPath:
    """The first number is the outermost."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetPriority:
    """A metric."""

    metric: int


Operation = AddCommunity | PrependASPath | SetPriority


@dataclass(frozen=True, slots=True)
class Networks:
    """A rule's network; `lengths` restrict the route's prefix length, both ends inclusive."""

    cidr: IPNetwork
    operator: Operator
    lengths: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FilterRule:
    """See the module; what is None, empty or false does not restrict."""

    accept: bool
    networks: Networks | None = None
    from_peers: bool = False
    interface: str = ""
    same_as: bool | None = None
    community: tuple[int, ...] = ()
    as_path: tuple[int, ...] = ()
    priority: int | None = None
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteFilter:
    """A BGPFilter, as four lists of rules."""

    name: str
    import_v4: tuple[FilterRule, ...] = ()
    export_v4: tuple[FilterRule, ...] = ()
    import_v6: tuple[FilterRule, ...] = ()
    export_v6: tuple[FilterRule, ...] = ()

    def of(self, direction: Direction, version: int) -> tuple[FilterRule, ...]:
        """The rules of one function."""
        if direction is Direction.IMPORT:
            return self.import_v4 if version == 4 else self.import_v6
        return self.export_v4 if version == 4 else self.export_v6

    @property
    def speaks_of_peers_routes(self) -> bool:
        """Whether it says of an export that it is to be what neighbours told us."""
        return any(rule.accept and rule.from_peers for rule in self.export_v4 + self.export_v6)


def route_filter(name: str, wire: BGPFilterWire) -> RouteFilter:
    """The filter that a resource's spec, already checked, describes."""
    return RouteFilter(
        name,
        import_v4=tuple(map(_rule, wire.import_v4)),
        export_v4=tuple(map(_rule, wire.export_v4)),
        import_v6=tuple(map(_rule, wire.import_v6)),
        export_v6=tuple(map(_rule, wire.export_v6)),
    )


def _rule(wire: FilterRuleWire) -> FilterRule:
    networks = None
    if wire.cidr:
        cidr = network_of(wire.cidr)
        lengths = _lengths(wire.prefix_length, cidr.max_prefixlen)
        networks = Networks(cidr, Operator(wire.match_operator), lengths)
    return FilterRule(
        accept=wire.action == "Accept",
        networks=networks,
        from_peers=bool(wire.source),
        interface=wire.interface,
        same_as={"iBGP": True, "eBGP": False}.get(wire.peer_type),
        community=community_of(wire.communities.values[0]) if wire.communities else (),
        as_path=wire.as_path_prefix,
        priority=wire.priority,
        operations=tuple(map(_operation, wire.operations)),
    )


def _lengths(wire: PrefixLengthWire | None, longest: int) -> tuple[int, int] | None:
    if wire is None or (wire.min is None and wire.max is None):
        return None
    return wire.min or 0, longest if wire.max is None else wire.max


def _operation(wire: OperationWire) -> Operation:
    if wire.add_community is not None:
        return AddCommunity(community_of(wire.add_community.value))
    if wire.prepend_as_path is not None:
        return PrependASPath(wire.prepend_as_path.prefix)
    assert wire.set_priority is not None, "the spec's own check"
    return SetPriority(wire.set_priority.value)


def function_name(name: str, direction: Direction, version: int) -> str:
    """BIRD's quoted symbol for a filter's function: Calico's, hashed where it would be too long.

    A hash begins with `_`, which no name has: no filter can be called like another's hash.
    """
    tail = f"_{direction}FilterV{version}"
    room = SYMBOL_MAX - len("bgp_") - len(tail)
    if len(name) > room:
        name = "_" + hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
    return f"'bgp_{name}{tail}'"


def render_function(found: RouteFilter, direction: Direction, version: int) -> str:
    """The function of one direction and family; `same_as` says whether the neighbour is iBGP."""
    accepted = f"settle{version}(); accept;" if direction is Direction.IMPORT else "accept;"
    lines = [f"function {function_name(found.name, direction, version)}(bool same_as)", "{"]
    for rule in found.of(direction, version):
        conditions = " && ".join(f"({one})" for one in _conditions(rule))
        actions = [*(_statement(one, direction) for one in rule.operations)]
        body = " ".join([*actions, accepted]) if rule.accept else "reject;"
        lines.append(f"  if {conditions or 'true'} then {{ {body} }}")
    return "\n".join([*lines, "}\n"])


def _conditions(rule: FilterRule) -> list[str]:
    found = _networks(rule.networks) if rule.networks is not None else []
    if rule.from_peers:
        found.append("source = RTS_BGP")
    if rule.interface:
        found += ["defined(ifname)", f'ifname ~ "{rule.interface}"']
    if rule.same_as is not None:
        found.append("same_as" if rule.same_as else "!same_as")
    if rule.community:
        found.append(f"{_community(rule.community)} ~ {_list_of(rule.community)}")
    if rule.as_path:
        found.append(f"bgp_path ~ [= {' '.join(map(str, rule.as_path))} * =]")
    if rule.priority is not None:
        found.append("defined(bgp_local_pref)")
        found.append(f"bgp_local_pref = {LOCAL_PREF_ZERO - rule.priority}")
    return found


def _networks(networks: Networks) -> list[str]:
    """Conditions on the network. With lengths, In and NotIn are about networks of these lengths."""
    cidr, lengths = networks.cidr, networks.lengths
    if networks.operator in (Operator.IN, Operator.NOT_IN):
        sign = "~" if networks.operator is Operator.IN else "!~"
        if lengths is None:
            return [f"net {sign} {cidr}"]
        return [_within(sign, cidr, lengths)]
    sign = "=" if networks.operator is Operator.EQUAL else "!="
    found = [f"net {sign} {cidr}"]
    if lengths is not None:
        found += [f"net.len >= {lengths[0]}", f"net.len <= {lengths[1]}"]
    return found


def _within(sign: str, cidr: IPNetwork, lengths: tuple[int, int]) -> str:
    """A network is within another only if it is no shorter, which BIRD's sets do not ask."""
    least = max(lengths[0], cidr.prefixlen)
    if least > lengths[1]:
        return "false" if sign == "~" else "true"
    return f"net {sign} [ {cidr}{{{least},{lengths[1]}}} ]"


def _statement(operation: Operation, direction: Direction) -> str:
    match operation:
        case AddCommunity(community):
            return f"{_list_of(community)}.add({_community(community)});"
        case PrependASPath(numbers):
            return " ".join(f"bgp_path.prepend({one});" for one in reversed(numbers))
        case SetPriority(metric):
            also = f" bgp_med = {metric};" if direction is Direction.EXPORT else ""
            return f"bgp_local_pref = {LOCAL_PREF_ZERO - metric};{also}"


def _community(numbers: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, numbers))})"


def _list_of(numbers: tuple[int, ...]) -> str:
    return "bgp_community" if len(numbers) == 2 else "bgp_large_community"
