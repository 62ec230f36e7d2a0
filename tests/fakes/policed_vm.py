"""A VM of the lab behind policy: what may pass passes all the time, and nothing else ever arrives.

One thread keeps busy flows going, tries what is denied, each way and by every protocol, and listens
in the guest, in every pod of the VM from the moment that its namespace is there, and outside.
"""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

from lab import control, names
from lab.cluster import until
from lab.objects import LabVMI
from libtortie.errors import TortieError
from tests.fakes.ears import DENIED, Ear, echo_request, inside
from tests.fakes.lab_vms import EXT, address_of
from tests.fakes.policed_flows import (
    Datagrams,
    Ends,
    Stream,
    answer_first,
    open_tcp,
    open_udp,
)

OUTSIDE = str(names.EXT_ADDRESS)
INWARD, OUTWARD = 7001, 7002
"""What others may open to the VM, and the VM to others."""
TICK = 0.005
SYN_EVERY = 10


@dataclass
class PolicedVM:
    """`stack` closes what is opened; `over` are the ears of pods that have gone."""

    name: str
    stack: ExitStack
    address: str = ""
    guest: str = ""
    busy: dict[str, Stream | Datagrams] = field(default_factory=dict)
    quiet: dict[str, Ends] = field(default_factory=dict)
    ears: dict[str, Ear] = field(default_factory=dict)
    over: dict[str, Ear] = field(default_factory=dict)
    broken: str = ""
    trying: bool = True
    ticks: int = 0
    _flows: ExitStack = field(default_factory=ExitStack)
    _identifier: int = 0x7061
    _tries: list[Callable[[], object]] = field(default_factory=list)
    _syns: list[tuple[str, str]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.address = address_of(self.name)
        uid = control.get(LabVMI, self.name).metadata.uid
        self.guest = str(names.netns_path(names.guest_netns(self.name, uid)))
        self._prepare_tries()
        thread = threading.Thread(target=self._run, name="policed", daemon=True)
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(self._ended.set)
        self.stack.callback(self._flows.close)

    # -- what is allowed ---------------------------------------------------------------------

    def open_flows(self) -> None:
        """Two of each kind, one busy and one quiet, in both directions, in place of any before.

        A node that the VM has been on still has entries of the flows of that time.
        """
        self.busy.clear()
        self.take_turns(1)
        self._flows.close()
        found: dict[str, Ends] = {}
        for use in ("quiet", "busy"):
            found[f"{use} tcp in"] = self._tcp(self.outside, self.guest, self.address, INWARD)
            found[f"{use} tcp out"] = self._tcp(self.guest, self.outside, OUTSIDE, OUTWARD)
            found[f"{use} udp in"] = self._udp(self.outside, self.guest, self.address, INWARD)
            found[f"{use} udp out"] = self._udp(self.guest, self.outside, OUTSIDE, OUTWARD)
        self.quiet = {name: ends for name, ends in found.items() if name.startswith("quiet")}
        self.busy = {
            name: Stream(ends) if " tcp " in name else Datagrams(ends)
            for name, ends in found.items()
            if name.startswith("busy")
        }

    outside = str(names.netns_path(EXT))

    def _tcp(self, opener: str, other: str, address: str, port: int) -> Ends:
        listener = self._flow_socket(other, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        ends = open_tcp(self._flow_socket(opener, socket.SOCK_STREAM), listener, (address, port))
        self._flows.callback(ends[1].close)
        return ends

    def _udp(self, opener: str, other: str, address: str, port: int) -> Ends:
        server = self._flow_socket(other, socket.SOCK_DGRAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        return open_udp(self._flow_socket(opener, socket.SOCK_DGRAM), server, (address, port))

    def _flow_socket(self, path: str, kind: socket.SocketKind) -> socket.socket:
        sock = inside(path, lambda: socket.socket(socket.AF_INET, kind))
        self._flows.callback(sock.close)
        return sock

    def _socket(self, path: str, kind: socket.SocketKind, protocol: int = 0) -> socket.socket:
        sock = inside(path, lambda: socket.socket(socket.AF_INET, kind, protocol))
        self.stack.callback(sock.close)
        return sock

    def goes_on(self) -> None:
        """All that was sent on busy flows until now, and more, arrives."""
        marks = {name: flow.mark() for name, flow in self.busy.items()}

        def beyond() -> bool:
            assert not self.broken, self.broken
            return all(flow.beyond(marks[name]) for name, flow in self.busy.items())

        until(beyond, "a busy flow stands still")

    def answers_first(self, word: bytes) -> None:
        """On each quiet flow the side that did not open it is the first to speak again."""
        for name, ends in self.quiet.items():
            try:
                answer_first(ends, word)
            except (OSError, AssertionError) as error:
                raise AssertionError(f"{name}: {error!r}") from error

    # -- what is denied ----------------------------------------------------------------------

    def _prepare_tries(self) -> None:
        """Anew each time: what passed before a policy was there is an established flow."""
        self._tries.clear()
        self._syns.clear()
        self._identifier += 1
        number = self._identifier
        for here, there in ((self.outside, self.address), (self.guest, OUTSIDE)):
            udp = self._socket(here, socket.SOCK_DGRAM)
            udp.setblocking(False)
            echo = self._socket(here, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            echo.setblocking(False)
            self._tries.append(partial(udp.sendto, b"?", (there, DENIED)))
            self._tries.append(partial(echo.sendto, echo_request(number), (there, 0)))
            self._syns.append((here, there))

    def _try(self) -> None:
        for attempt in self._tries:
            with suppress(OSError):
                attempt()
        if self.ticks % SYN_EVERY == 0:
            for here, there in self._syns:
                with suppress(OSError, TortieError), inside(here, _syn_socket) as sock:
                    sock.connect_ex((there, DENIED))

    def heard(self, what: str) -> dict[str, int]:
        """How much of a kind was heard, by place; places without any are left out."""
        ears = {**self.over, **self.ears}
        return {Path(path).name: one.heard[what] for path, one in ears.items() if one.heard[what]}

    def assert_nothing_denied_came(self) -> None:
        """Nowhere, ever; and nobody was too busy to listen."""
        self.take_turns(3)
        into = {place: n for place, n in self.heard("denied in").items() if place != EXT}
        # What the VM itself sends is heard beside it, too: only outside it must not come.
        out = self.heard("denied out").get(EXT, 0)
        assert not into and not out, f"denied packets arrived: {into}, {out} outside"
        assert not any(one.lost for one in (*self.ears.values(), *self.over.values()))

    def forget(self) -> None:
        """Begin to count now."""
        self.over.clear()
        for one in self.ears.values():
            one.heard.clear()

    # -- the thread --------------------------------------------------------------------------

    def take_turns(self, count: int) -> None:
        """Wait until the thread has done so many whole turns."""
        wanted = self.ticks + count + 1
        until(lambda: bool(self.broken) or self.ticks >= wanted, "the traffic stands still")
        assert not self.broken, self.broken

    @contextmanager
    def without_tries(self) -> Iterator[None]:
        """Nothing that is denied is tried meanwhile."""
        self.trying = False
        self.take_turns(2)
        yield
        self._prepare_tries()
        self.trying = True

    def _run(self) -> None:
        try:
            while not self._ended.wait(TICK):
                self._turn()
                self.ticks += 1
        except Exception:
            self.broken = traceback.format_exc()
        finally:
            for ear in self.ears.values():
                ear.socket.close()

    def _turn(self) -> None:
        self._listen()
        if self.trying:
            self._try()
        for flow in tuple(self.busy.values()):
            flow.turn()

    def _listen(self) -> None:
        pods = names.NETNS_DIR.glob(f"{names.PREFIX}pod-*{self.name}-*")
        places = {self.guest, self.outside, *map(str, pods)}
        for path in places - self.ears.keys():
            with suppress(TortieError):  # made, and not yet bound; or just gone
                self.ears[path] = Ear(path, IPv4Address(self.address).packed)
        for path, ear in list(self.ears.items()):
            ear.listen()
            if path not in places:
                ear.socket.close()
                self.over[path] = self.ears.pop(path)


def _syn_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
