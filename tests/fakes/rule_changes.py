"""Rules of every kind that the rule model has, in states that follow one another."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from hypothesis import strategies as st

from felix_shim.host_order import HostStage
from felix_shim.host_rules import HOST_CHAINS
from felix_shim.nat_rules import NAT_CHAIN
from felix_shim.policy import NODE_CHAINS, EndpointPolicy, PolicySet
from felix_shim.policy_sets import Elements, literal
from felix_shim.rules import (
    Chain,
    ConnState,
    Goto,
    HasState,
    InNets,
    InSet,
    IsIcmp,
    IsProtocol,
    IsVersion,
    Jump,
    Log,
    Masquerade,
    Match,
    OnLink,
    OnPort,
    Plain,
    Rule,
    SetKey,
    SetKind,
    Side,
    Verdict,
    Way,
)
from libtortie.model.felix_values import EndpointToHost
from libtortie.model.policy import PortRange

_CHAINS = ("closed", "pi-gnp/a.b", "pe-np/red/x", "ci-0123456789abcdef")
_OF_NODE = (HOST_CHAINS[HostStage.IN], HOST_CHAINS[HostStage.OUT], NAT_CHAIN)
"""Chains that are always there."""
_LINKS = ("eth0", "lo", "eth*", "cali23456789abc", "fifteen-and-no*")
_ENDS = ("allowed-to",)
"""Not `allowed-from`, which leads to the receiver's chains: that would be a loop."""
_HOSTS = {
    4: ["10.65.0.1", "10.65.0.2", "10.65.0.3", "0.0.0.0", "255.255.255.255", "10.0.1.0"],
    6: ["fd00:65::1", "fd00:65::2", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
}
_NETS = {
    4: ["10.0.0.0/24", "10.0.2.0/25", "10.0.2.128/25", "192.0.2.4/30", "128.0.0.0/2"],
    6: ["fd00::/64", "fd00:0:0:1::/64", "2001:db8::/33", "ff00::/8"],
}
"""Some touch each other or a host; the last IPv6 ones reach to where nothing is behind."""

_LISTS = ("80-80 90-95", "1-79 81-443 500-65535", "0-0 22-23")
_sides = st.sampled_from(Side)
_flags = st.booleans()
_numbers = st.sampled_from([0, 22, 80, 81, 443, 65535])


@st.composite
def ranges(draw: st.DrawFn) -> tuple[PortRange, ...]:
    """Ports as the compiler gives them: apart, in order."""
    points = sorted(draw(st.sets(_numbers, min_size=1, max_size=4)))
    if draw(_flags):
        return tuple(PortRange(one, one) for one in points if one != 81 or 80 not in points)
    return (PortRange(points[0], points[-1]),)


@st.composite
def keys(draw: st.DrawFn, version: int) -> SetKey:
    """The key of a set."""
    if draw(st.integers(0, 3)) == 0:
        nets = draw(st.lists(st.sampled_from(_NETS[version]), min_size=1, max_size=3, unique=True))
        return SetKey(SetKind.NETS, version, " ".join(_apart(nets)))
    kind = draw(st.sampled_from([one for one in SetKind if not one.literal]))
    names = ("http",) if kind is SetKind.PORTS else ()
    return SetKey(kind, version, draw(st.sampled_from(["a == 'x'", "all()"])), names)


@st.composite
def matches(draw: st.DrawFn, version: int) -> tuple[Match, ...]:
    """Matches that can hold together."""
    found: list[Match] = [IsVersion(version)] if draw(_flags) else []
    protocol, other = draw(st.sampled_from([0, 1, 6, 17, 58, 132])), draw(_flags)
    if protocol:
        found.append(IsProtocol(protocol, negated=other))
    has_ports = protocol in (6, 17, 132)
    for _ in range(draw(st.integers(0, 2))):
        side, negated = draw(_sides), draw(_flags)
        match draw(st.integers(0, 3)):
            case 0:
                pool = _HOSTS[version] + _NETS[version]
                nets = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4, unique=True))
                found.append(InNets(side, version, tuple(_apart(nets)), negated))
            case 1:
                key = draw(keys(version))
                if not key.has_ports or side is not Side.ORIGINAL or (has_ports and not other):
                    found.append(InSet(side, key, negated))
            case 2 if has_ports and not (other and side is Side.ORIGINAL):
                found.append(OnPort(side, draw(ranges()), negated))
            case 3 if has_ports and not (other and side is Side.ORIGINAL):
                key = SetKey(SetKind.PORT_RANGES, 0, draw(st.sampled_from(_LISTS)))
                found.append(InSet(side, key, negated))
    if protocol in (1, 58) and draw(_flags):
        code = draw(st.sampled_from([None, 0, 3]))
        found.append(IsIcmp(draw(st.sampled_from([3, 8, 128])), code, draw(_flags)))
    if draw(st.integers(0, 4)) == 0:
        states = draw(st.lists(st.sampled_from(ConnState), min_size=1, unique=True))
        found.append(HasState(tuple(states)))
    if draw(st.integers(0, 4)) == 0:
        found.append(OnLink(draw(st.sampled_from(Way)), draw(st.sampled_from(_LINKS))))
    return tuple(found)


@st.composite
def chains(draw: st.DrawFn) -> dict[str, Chain]:
    """Chains that lead only to later ones."""
    names = [*_OF_NODE, *(name for name in _CHAINS if draw(_flags))]
    found: dict[str, Chain] = dict(NODE_CHAINS)
    for place, name in enumerate(names):
        ends = [one for one in names[place + 1 :] if one not in _OF_NODE]
        ends += _ENDS
        verdicts: st.SearchStrategy[Verdict] = st.one_of(
            st.sampled_from(Plain),
            st.sampled_from(ends).map(Jump),
            st.sampled_from(ends).map(Goto),
            st.just(Log("calico-packet: ")),
        )
        count = draw(st.integers(0, 4))
        found[name] = tuple(
            Rule(draw(st.sampled_from([4, 6]).flatmap(matches)), draw(verdicts))
            for _ in range(count)
        )
        if name == NAT_CHAIN:
            found[name] += tuple(draw(st.lists(translations(), max_size=3)))
    return found


@st.composite
def translations(draw: st.DrawFn) -> Rule:
    """A rule of the chain for addresses' translation."""
    ports = draw(st.sampled_from([None, PortRange(1024, 2000), PortRange(1024, 1024)]))
    address = draw(st.sampled_from(["", "192.0.2.1"]))
    return Rule((IsVersion(4), IsProtocol(6)), Masquerade(address, ports))


@st.composite
def elements(draw: st.DrawFn, key: SetKey) -> Elements:
    """What can be in a set."""
    if key.kind.literal:
        return literal(key)
    hosts = draw(st.sets(st.sampled_from(_HOSTS[key.version])))
    if key.has_ports:
        some = (f"{host} . {protocol} . 80" for host in hosts for protocol in (6, 17))
        return Elements.of(some)
    nets = draw(st.sets(st.sampled_from(_NETS[key.version])))
    if not nets:
        return Elements.of(hosts)
    return Elements.of(_apart(hosts | nets), interval=True)


def _apart(texts: Iterable[str]) -> list[str]:
    """Those that lie in no other."""
    found = list(texts)
    return [one for one in found if not ("ff00::/8" in found and one.startswith("ffff"))]


ENDPOINTS = (
    EndpointPolicy("cali1", "02:00:00:00:00:01", (ip_address("10.65.0.1"),)),
    EndpointPolicy("cali1", "02:00:00:00:00:01", (ip_address("10.65.0.9"),), vm=True),
    EndpointPolicy(
        "cali23456789abc",
        "02:00:00:00:00:02",
        (ip_address("10.65.0.2"), ip_address("fd00:65::2")),
    ),
    EndpointPolicy("cali3", "02:00:00:00:00:03", (ip_address("fd00:65::3"),)),
)


@st.composite
def policy_sets(draw: st.DrawFn) -> PolicySet:
    """One state."""
    found = draw(chains())
    rules = [rule for chain in found.values() for rule in chain]
    wanted = {match.key for rule in rules for match in rule.matches if isinstance(match, InSet)}
    names = [one for one in found if one not in NODE_CHAINS] + list(_ENDS)
    endpoints: dict[str, EndpointPolicy] = {}
    for one in draw(st.lists(st.sampled_from(ENDPOINTS), max_size=3)):
        ways = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        endpoints[one.interface] = EndpointPolicy(
            one.interface, one.mac, one.addresses, one.vm, *ways
        )
    return PolicySet(
        tuple(endpoints[name] for name in sorted(endpoints)),
        draw(st.sampled_from(EndpointToHost)),
        found,
        {key: draw(elements(key)) for key in sorted(wanted, key=str)},
    )
