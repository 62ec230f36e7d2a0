"""BIRD's control protocol and the tables it prints. Pure; the bytes are a stranger's.

A reply is lines: `NNNN-text` goes on, `NNNN text` ends it, ` text` goes on under the last code,
`+text` is an unasked-for message and no part of it. 8xxx and 9xxx are errors. The greeting
`0001 BIRD … ready.` is such a reply too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from libtortie.errors import Malformed
from libtortie.model.ipam import IPAddress

REPLY_MAX = 16 * 1024 * 1024
_LINE = re.compile(r"(\d{4})([ -])(.*)", re.DOTALL)
_TIME = re.compile(r"\d\d:\d\d")
_ROUTE = re.compile(
    r"(?P<net>[0-9a-fA-F.:]+/\d+)?\s+(?P<kind>[a-z]+) \[(?P<protocol>\S+) [^\]]*\](?P<rest>.*)"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole reply: (code, text) per line; the last line's code says how it ended."""

    lines: tuple[tuple[int, str], ...]

    @property
    def code(self) -> int:
        """The code of the last line."""
        return self.lines[-1][0]

    @property
    def failed(self) -> bool:
        """Whether BIRD reports an error: 8xxx (run time) or 9xxx (command not understood)."""
        return self.code >= 8000

    def texts(self, *codes: int) -> Iterator[str]:
        """The lines with these codes, all when none is given."""
        return (text for code, text in self.lines if not codes or code in codes)


@dataclass(slots=True)
class ReplyReader:
    """Assembles replies from bytes as they come in."""

    _buffer: bytes = b""
    _size: int = 0
    _lines: list[tuple[int, str]] = field(default_factory=list)

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that are complete now. Raises `Malformed`; the stream is then lost."""
        replies = []
        self._size += len(data)
        *complete, self._buffer = (self._buffer + data).split(b"\n")
        for raw in complete:
            reply = self._line(raw.decode("utf-8", "replace"))
            if reply is not None:
                replies.append(reply)
                self._size = len(self._buffer)
        if self._size > REPLY_MAX:
            raise Malformed(f"BIRD's reply exceeds {REPLY_MAX} bytes")
        return replies

    def _line(self, line: str) -> Reply | None:
        if line.startswith("+"):
            return None
        if line.startswith(" "):
            if not self._lines:
                raise Malformed("BIRD's reply begins with a continuation")
            self._lines.append((self._lines[-1][0], line[1:]))
            return None
        match = _LINE.fullmatch(line)
        if match is None or not match[1].isascii():
            raise Malformed(f"BIRD's reply has the line {line[:80]!r}")
        self._lines.append((int(match[1]), match[3]))
        if match[2] == "-":
            return None
        reply, self._lines = Reply(tuple(self._lines)), []
        return reply


@dataclass(frozen=True, slots=True)
class BirdRoute:
    """A route as `show route all` prints it. `next_hop`: the BGP attribute, empty without one."""

    address: IPAddress
    prefixlen: int
    protocol: str
    next_hop: str
    local_pref: int | None
    best: bool


_FSM = frozenset({"idle", "connect", "active", "opensent", "openconfirm", "established", "passive"})


@dataclass(frozen=True, slots=True)
class Session:
    """A line of `show protocols`; `info` of a BGP session that works is `Established`."""

    name: str
    kind: str
    state: str
    info: str

    @property
    def established(self) -> bool:
        """Whether it is a BGP session that is up."""
        return self.kind == "BGP" and self.info.startswith("Established")

    @property
    def fsm(self) -> str:
        """A BGP session's state (RFC 4271 §8.2.2, or BIRD's `down`), one of few words."""
        word = (self.info.split() or [self.state])[0].lower()
        return word if word in _FSM else "down"


def parse_routes(reply: Reply) -> tuple[BirdRoute, ...]:
    """The routes of a `show route all`; lines that are none are passed over.

    Only a network's first route repeats its prefix. Raises `Malformed` when the first route of a
    table has none.
    """
    routes: list[BirdRoute] = []
    net = ""
    for text in reply.texts():
        match = _ROUTE.fullmatch(text)
        if match is not None:
            net = match["net"] or net
            routes.append(_route(net, match["protocol"], match["rest"]))
        elif routes and text.lstrip().startswith("BGP."):
            routes[-1] = _with_attribute(routes[-1], text.strip())
    return tuple(routes)


def _route(net: str, protocol: str, rest: str) -> BirdRoute:
    try:
        network = ip_network(net, strict=False)
    except ValueError as error:
        raise Malformed(f"BIRD's route has the prefix {net!r}") from error
    best = "*" in rest.split()
    return BirdRoute(network.network_address, network.prefixlen, protocol, "", None, best)


def _with_attribute(route: BirdRoute, text: str) -> BirdRoute:
    name, _, value = text.partition(": ")
    next_hop, local_pref = route.next_hop, route.local_pref
    first = value.split()[0] if value.split() else ""
    try:
        if name == "BGP.next_hop":
            next_hop = str(ip_address(first))
        elif name == "BGP.local_pref":
            local_pref = int(first)
    except ValueError as error:
        raise Malformed(f"BIRD's route has the attribute {text[:80]!r}") from error
    return BirdRoute(
        route.address, route.prefixlen, route.protocol, next_hop, local_pref, route.best
    )


def parse_protocols(reply: Reply) -> tuple[Session, ...]:
    """The lines of a `show protocols` (code 1002): name, kind, table, state, since, info.

    `since` is one word or two (date and time), by BIRD's `timeformat`.
    """
    found = []
    for text in reply.texts(1002):
        words = text.split()
        if len(words) >= 4:
            info = words[6:] if len(words) > 5 and _TIME.match(words[5]) else words[5:]
            found.append(Session(words[0], words[1], words[3], " ".join(info)))
    return tuple(found)
