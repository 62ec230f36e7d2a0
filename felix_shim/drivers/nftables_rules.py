"""The rule model as nft text. Pure.

Which sets have networks among their elements decides how they are declared, and a set cannot be
declared anew under its name: one that has is another set (`…i`), and the rules that look into it
are written anew with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from felix_shim.policy_sets import Elements
from felix_shim.rules import (
    Chain,
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
)
from libtortie.model.policy import PortRange

Sets = Mapping[SetKey, Elements]
TABLE = "tortie"
_CHUNK = 2000
"""Elements in one command: what is sent to the kernel in one message has a limit."""


@dataclass(frozen=True, slots=True)
class SetSpec:
    """A set's declaration, or a map's from interface to the chain that is gone to.

    `fields`: what a key is made of, in nft's words.
    """

    family: str
    name: str
    fields: tuple[str, ...]
    interval: bool = False
    verdicts: bool = False

    @property
    def kind(self) -> str:
        """As nft calls it."""
        return "map" if self.verdicts else "set"

    @property
    def type(self) -> str:
        """Its type and flags, as nft writes them."""
        text = f"type {' . '.join(self.fields)}{' : verdict' if self.verdicts else ''}"
        return f"{text}; flags interval" if self.interval else text


def set_name(key: SetKey, sets: Sets, tag: str) -> str:
    """What a set is called in the kernel."""
    return f"{key.name}{'i' if sets[key].interval else ''}{tag}"


def declared(key: SetKey, sets: Sets, tag: str) -> SetSpec:
    """How a set is declared."""
    if key.kind is SetKind.PORT_RANGES:
        return SetSpec("inet", set_name(key, sets, tag), ("inet_service",), sets[key].interval)
    address = f"ipv{key.version}_addr"
    ports = ("inet_proto", "inet_service") if key.has_ports else ()
    return SetSpec("inet", set_name(key, sets, tag), (address, *ports), sets[key].interval)


def chain_text(chain: Chain, sets: Sets, tag: str) -> list[str]:
    """A chain's rules, one line each."""
    return [rule_text(rule, sets, tag) for rule in chain]


def element_lists(elements: Iterable[str]) -> list[str]:
    """Elements as they stand between braces, a bounded number at a time."""
    ordered = sorted(elements)
    return [", ".join(ordered[at : at + _CHUNK]) for at in range(0, len(ordered), _CHUNK)]


def rule_text(rule: Rule, sets: Sets, tag: str) -> str:
    """A rule as one line."""
    words = [_match(match, sets, tag) for match in rule.matches]
    return " ".join([*words, _verdict(rule.verdict)])


def _verdict(verdict: Verdict) -> str:
    match verdict:
        case Plain():
            return "counter drop" if verdict is Plain.DROP else str(verdict)
        case Jump(chain):
            return f"jump {chain}"
        case Goto(chain):
            return f"goto {chain}"
        case Log(prefix):
            return f'log prefix "{prefix}"'
        case Masquerade(address, ports):
            return _source_nat(address, ports)


def _source_nat(address: str, ports: PortRange | None) -> str:
    """`masquerade`, or `snat` where the address is given."""
    there = f"{address}:{_ranges((ports,), apart=False)}" if ports else address
    if address:
        return f"snat ip to {there}"
    return f"masquerade to :{_ranges((ports,), apart=False)}" if ports else "masquerade"


def _match(match: Match, sets: Sets, tag: str) -> str:
    match match:
        case IsVersion(version):
            return f"meta nfproto ipv{version}"
        case InNets(side, version, nets, negated):
            return f"{_address(side, version)} {_not(negated)}{{ {', '.join(nets)} }}"
        case InSet(side, key, negated):
            words = _looked_up(side, key)
            return f"{words} {_not(negated)}@{set_name(key, sets, tag)}"
        case OnLink(way, name):
            return f'{way}ifname "{name}"'
        case HasState(states):
            return f"ct state {','.join(states)}"
    return _transport(match)


def _looked_up(side: Side, key: SetKey) -> str:
    """What of a packet is looked up in a set."""
    if key.kind is SetKind.PORT_RANGES:
        return _port(side)
    words = _address(side, key.version)
    return f"{words} . meta l4proto . {_port(side)}" if key.has_ports else words


def _transport(match: IsProtocol | OnPort | IsIcmp) -> str:
    match match:
        case IsProtocol(number, negated):
            return f"meta l4proto {_not(negated)}{number}"
        case OnPort(side, ranges, negated):
            return f"{_port(side)} {_not(negated)}{_ranges(ranges, apart=negated)}"
        case IsIcmp(kind, None, negated):
            return f"@th,0,8 {_not(negated)}{kind}"
        case IsIcmp(kind, code, negated):  # type and code are the header's first two bytes
            return f"@th,0,16 {_not(negated)}{kind << 8 | (code or 0)}"


def _address(side: Side, version: int) -> str:
    family = "ip" if version == 4 else "ip6"
    return f"ct original {family} daddr" if side is Side.ORIGINAL else f"{family} {side}addr"


def _port(side: Side) -> str:
    return "ct original proto-dst" if side is Side.ORIGINAL else f"th {side}port"


def _not(negated: bool) -> str:
    return "!= " if negated else ""


def _ranges(ranges: tuple[PortRange, ...], *, apart: bool) -> str:
    """Ports. nft 1.0.6 makes `th sport != 1 th dport != 2` one comparison of both ports at once,
    which holds when either differs; it leaves a range alone."""
    texts = [
        str(one.first) if one.first == one.last else f"{one.first}-{one.last}" for one in ranges
    ]
    if len(texts) > 1:
        return f"{{ {', '.join(texts)} }}"
    return f"{ranges[0].first}-{ranges[0].last}" if apart else texts[0]
