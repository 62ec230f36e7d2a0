"""While host policies change, no packet is wrongly dropped and none wrongly let in."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import pytest

from felix_shim.drivers.nftables import Nftables
from felix_shim.policy import EndpointPolicy, PolicySet, policy_set
from libtortie.errors import KernelError
from libtortie.linux.netns import Netns
from tests.fakes.fresh_names import fresh_name
from tests.fakes.host_meaning import HostMeaning
from tests.fakes.host_worlds import UP_HEP, host_rules
from tests.fakes.node_process import DEADLINE, ip
from tests.fakes.policy_meaning import Meaning, NetSet, Written

pytestmark = pytest.mark.root

T = TypeVar("T")
NODE, FAR, MAC = "172.31.0.11", "172.31.0.1", "02:00:00:00:00:11"
ALLOWED, DENIED = 7801, 7802
SO_RCVBUFFORCE = 33
ROUNDS, AT_LEAST = 20, 500
_UDP_TIMEOUT = Path("/proc/sys/net/netfilter/nf_conntrack_udp_timeout")


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    here, far = fresh_name("hc"), fresh_name("hf")
    try:
        for name in (here, far):
            ip("netns", "add", name)
        command = f"link add up0 address {MAC} type veth peer name up0 netns {far}"
        ip("-n", here, *command.split())
        for name, address in ((here, NODE), (far, FAR)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "up0")
            ip("-n", name, "link", "set", "up0", "up")
        ip("-n", far, "neighbour", "add", NODE, "lladdr", MAC, "dev", "up0")
        inside(here, partial(_UDP_TIMEOUT.write_text, "1"))  # each datagram leaves an entry
        yield here, far
    finally:
        for name in (here, far):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def inside(space: str, work: Callable[[], T]) -> T:
    return Netns(deadline=2 * DEADLINE).call(f"/run/netns/{space}", work)


def allow(**rule: Any) -> dict[str, Any]:
    return {"action": "Allow", "protocol": "UDP", **rule}


def rules(number: int, flags: dict[str, Any]) -> PolicySet:
    """The allowed port is allowed in ever other ways; about the other one many things are said."""
    port = {"ports": [ALLOWED]}
    ways = (
        allow(destination=port),
        allow(destination=port, source={"selector": "app == 'far'"}),
        allow(destination={"ports": [f"{ALLOWED}:{ALLOWED}"], "notPorts": [DENIED]}),
    )
    spec: dict[str, Any] = {"applyOnForward": True, "ingress": [ways[number % 3]], **flags}
    other = {"order": 3, "ingress": [allow(destination={"ports": [80 + number % 5]})]}
    if number % 5:
        other["applyOnForward"] = True
    nets = (f"{FAR}/32", "10.9.0.0/16") if number % 2 else (f"{FAR}/32",)
    meaning = Meaning(
        (),
        (Written("way", {"order": 5, **spec}), Written("other", other)),
        (NetSet("", "far", nets, {"app": "far"}),),
    )
    return policy_set([], rules=host_rules(HostMeaning(meaning, (UP_HEP,))))


@dataclass
class Probe:
    """A datagram after another to a port, each of a connection of its own."""

    ear: socket.socket
    mouth: socket.socket
    port: int
    sent: int = 0
    received: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _sent_all: threading.Event = field(default_factory=threading.Event)

    def send(self) -> None:
        for source in itertools.cycle(range(1024, 60000)):
            if self._stop.wait(0.0005):
                return
            datagram = struct.pack("!HHHH", source, self.port, 9, 0) + b"x"
            self.mouth.sendto(datagram, (NODE, 0))
            self.sent += 1

    def receive(self) -> None:
        while True:
            last = self._sent_all.is_set()  # asked before the wait: all is there before it begins
            try:
                self.ear.recv(10)
            except TimeoutError:
                if last:
                    return
                continue
            self.received += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=one) for one in (self.send, self.receive)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            threads[0].join()
            self._sent_all.set()
            threads[1].join()
            self.ear.close()
            self.mouth.close()


def probe(here: str, far: str, port: int) -> Probe:
    def ear() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)  # whoever reads may be late
        sock.bind((NODE, port))
        sock.settimeout(0.5)
        return sock

    raw = inside(far, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP))
    return Probe(inside(here, ear), raw, port)


@pytest.mark.parametrize("flags", [{}, {"doNotTrack": True}, {"preDNAT": True}], ids=str)
def test_no_packet_is_wrongly_dropped_or_let_in(
    spaces: tuple[str, str], flags: dict[str, Any]
) -> None:
    """By differences, by agents that start over, and by transactions that are refused.

    The policy's kind stays: a packet that was tracked when `doNotTrack` came to be meets no policy
    that allows it at the stages that are left.
    """
    here, far = spaces
    driver = Nftables(quiet=0.0)
    inside(here, lambda: driver.apply(rules(0, flags)))
    good, bad = probe(here, far, ALLOWED), probe(here, far, DENIED)
    broken = replace(
        rules(1, flags),
        endpoints=(EndpointPolicy("calitta", "nonsense", (ip_address("10.65.0.2"),)),),
    )

    def refused() -> None:
        with pytest.raises(KernelError):
            Nftables().apply(broken)

    with good.running(), bad.running():
        for number in itertools.count():
            if number >= ROUNDS and min(good.sent, bad.sent) > AT_LEAST:
                break
            wanted = rules(number, flags)
            inside(here, partial(driver.apply, wanted))
            if number % 3 == 0:
                inside(here, partial(Nftables().apply, wanted))
            if number % 10 == 0:
                inside(here, refused)
    assert good.received == good.sent
    assert bad.received == 0
