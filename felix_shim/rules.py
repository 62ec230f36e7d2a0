"""The rule model: what the packet filter shall do, in words that are neither nft's nor Calico's.

Chains of rules, sets of addresses that rules look into, and nothing else; all values. A packet
meets a chain's rules in order; the first whose matches all hold decides what is next. `Jump`
comes back when nothing in that chain decided, `Goto` never does: every chain that is gone to
ends in a rule that matches everything and decides. So no packet mark is needed to remember what
was decided, and none can collide with somebody else's.

`drivers/nftables_rules.py` writes it as nft text; `tests/fakes/rule_machine.py` runs it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from libtortie.model.policy import PortRange


class Side(StrEnum):
    """An end of a packet, as nft abbreviates it.

    `ORIGINAL` is the destination that the connection's first packet came with, before any DNAT, as
    conntrack remembers it; a packet of no connection has none, and matches nothing about it. Where
    ports are looked at behind it, a match of one protocol that has ports stands before.
    """

    SOURCE = "s"
    DESTINATION = "d"
    ORIGINAL = "o"


class SetKind(StrEnum):
    """What a set's elements are: addresses and networks, or (address, protocol, port).

    `NODES` (addresses) and `POOLS` (networks) are of no selector: the nodes' own, and IP pools'.
    `SERVICES` and `SERVICE_PORTS` are what a Kubernetes Service leads to, `KUBE_NODES` addresses of
    Kubernetes' nodes: their selectors are about those alone (`peer_sets.py`). `NETS` and
    `PORT_RANGES` are what a rule itself lists: their selector is that list, and never changes.
    """

    ADDRESSES = "s"
    PORTS = "np"
    NODES = "nodes"
    POOLS = "pools"
    SERVICES = "sv"
    SERVICE_PORTS = "sp"
    KUBE_NODES = "kn"
    NETS = "n"
    PORT_RANGES = "pr"

    @property
    def literal(self) -> bool:
        """Whether the key says what is in the set."""
        return self in (SetKind.NETS, SetKind.PORT_RANGES)


@dataclass(frozen=True, slots=True)
class SetKey:
    """What is in a set: the addresses of one family of what a selector selects.

    For ports: those of what is selected that have one of these names, of this protocol unless
    it is 0.
    """

    kind: SetKind
    version: int
    selector: str
    names: tuple[str, ...] = ()
    protocol: int = 0

    @property
    def has_ports(self) -> bool:
        """Whether its elements are (address, protocol, port)."""
        return self.kind in (SetKind.PORTS, SetKind.SERVICE_PORTS)

    @property
    def name(self) -> str:
        """A name in the kernel: the same for the same contents on every run."""
        return _set_name(self)


@lru_cache(maxsize=65536)
def _set_name(key: SetKey) -> str:
    text = repr((key.selector, key.names, key.protocol))
    return f"{key.kind}{key.version}-{digest(text)}"


def digest(text: str) -> str:
    """16 hex digits of SHA-256: what tells names of chains and sets apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class IsVersion:
    """The IP version."""

    version: int


@dataclass(frozen=True, slots=True)
class IsProtocol:
    """The protocol behind the IP headers, by number."""

    number: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class InNets:
    """An end's address is of the version of these networks, and in one of them (or in none)."""

    side: Side
    version: int
    nets: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class InSet:
    """An end is of the set's IP version and in the set, with protocol and port if it has them."""

    side: Side
    key: SetKey
    negated: bool = False


@dataclass(frozen=True, slots=True)
class OnPort:
    """An end's port; only behind a match of a protocol that has ports."""

    side: Side
    ranges: tuple[PortRange, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsIcmp:
    """An ICMP message's type, and its code if given; only behind a match of ICMP or ICMPv6."""

    type: int
    code: int | None = None
    negated: bool = False


class Way(StrEnum):
    """Which of a packet's links, as nft abbreviates it."""

    IN = "i"
    OUT = "o"


@dataclass(frozen=True, slots=True)
class OnLink:
    """The link that a packet came in by, or goes out by; a `*` at the name's end is any rest."""

    way: Way
    name: str


class ConnState(StrEnum):
    """What conntrack thinks of a packet's connection."""

    INVALID = "invalid"
    ESTABLISHED = "established"
    RELATED = "related"
    UNTRACKED = "untracked"


@dataclass(frozen=True, slots=True)
class HasState:
    """The packet's connection is in one of these states."""

    states: tuple[ConnState, ...]


Match = IsVersion | IsProtocol | InNets | InSet | OnPort | IsIcmp | OnLink | HasState


class Plain(StrEnum):
    """Verdicts without an argument. `NOTRACK` keeps a packet from conntrack, and goes on."""

    ACCEPT = "accept"
    DROP = "drop"
    NOTRACK = "notrack"


@dataclass(frozen=True, slots=True)
class Jump:
    """Go through a chain, and on behind this rule if nothing in it decides."""

    chain: str


@dataclass(frozen=True, slots=True)
class Goto:
    """Go through a chain that decides."""

    chain: str


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line into the kernel's log, and go on."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Masquerade:
    """Give a connection's packets the source address of the link they leave by, or this one.

    `ports` are what its source port becomes one of; only behind a match of a protocol with ports.
    """

    address: str = ""
    ports: PortRange | None = None


Verdict = Plain | Jump | Goto | Log | Masquerade


@dataclass(frozen=True, slots=True)
class Rule:
    """If all of these hold: that."""

    matches: tuple[Match, ...]
    verdict: Verdict


Chain = tuple[Rule, ...]

DROP = Rule((), Plain.DROP)
ACCEPT = Rule((), Plain.ACCEPT)
