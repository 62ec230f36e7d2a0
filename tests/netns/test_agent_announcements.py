"""The sniffer on real veths: the kernel's filter, links that come and go, muting, IPv6."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import pytest

from felix_shim.drivers.announcements import MUTE_SECONDS, Announcements, Watched
from felix_shim.events import Sign
from felix_shim.model import EndpointId, SignKind
from libtortie.jsonlog import NullLog
from libtortie.linux.netns import Netns, enter
from tests.fakes import frames
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, until

pytestmark = pytest.mark.root
HOST = "cali0123456789a"
ENDPOINT = EndpointId("default", "vm")
WATCHED = Watched(
    ENDPOINT, HOST, frames.VM_MAC, (ip_address(frames.VM_IP), ip_address(frames.VM_IP6)), 7
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def write(space: str, name: str, value: str) -> None:
    command = ["nsenter", f"--net=/run/netns/{space}", "sysctl", "-qw", f"{name}={value}"]
    subprocess.run(command, check=True, capture_output=True)


def send_from(space: str, interface: str, frame: bytes) -> None:
    def opened() -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sock.bind((interface, 0))
        return sock

    with Netns(deadline=DEADLINE).call(f"/run/netns/{space}", opened) as sock:
        sock.send(frame)


@dataclass
class Ear:
    """A sniffer in the node's namespace and what it posted."""

    node: str
    pod: str
    heard: list[Sign] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sniffer = Announcements(self.heard.append, NullLog())
        self.failed: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            enter(f"/run/netns/{self.node}")
            self.sniffer.run()
        except BaseException as error:
            self.failed.append(error)

    def add_veth(self) -> None:
        names = ("name", "eth0", "netns", self.pod)
        ip("-n", self.node, "link", "add", HOST, "type", "veth", "peer", *names)
        write(self.node, f"net/ipv6/conf/{HOST}/disable_ipv6", "1")
        write(self.pod, "net/ipv6/conf/eth0/disable_ipv6", "1")
        ip("-n", self.node, "link", "set", HOST, "up")
        ip("-n", self.pod, "link", "set", "eth0", "up")

    def send(self, frame: bytes) -> None:
        """The VM speaks."""
        send_from(self.pod, "eth0", frame)

    def watch(self, *wanted: Watched) -> None:
        self.sniffer.watch({one.endpoint: one for one in wanted})

    def listening(self) -> None:
        until("the socket is open", lambda: any(one.socket for one in self.ears()))

    def ears(self) -> list[Any]:
        return list(self.sniffer._ears.values())

    def close(self) -> None:
        self.sniffer.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.failed == []


@pytest.fixture
def ear() -> Iterator[Ear]:
    with ExitStack() as stack:
        names = fresh_name("node"), fresh_name("pod")
        for space in names:
            ip("netns", "add", space)
            stack.callback(ip, "netns", "delete", space)
        made = Ear(*names)
        stack.callback(made.close)
        yield made


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (frames.rarp(frames.VM_MAC), SignKind.RARP),
        (frames.arp(frames.VM_MAC, frames.VM_IP, frames.VM_IP), SignKind.GRATUITOUS_ARP),
        (frames.ipv4(frames.VM_MAC, frames.VM_IP, "192.0.2.1"), SignKind.IP_FRAME),
        (frames.ipv6(frames.VM_MAC, frames.VM_IP6, "2001:db8::9"), SignKind.IP_FRAME),
        (
            frames.neighbour_advertisement(frames.VM_MAC, frames.VM_IP6, frames.VM_IP6),
            SignKind.NEIGHBOUR_ADVERTISEMENT,
        ),
        (
            frames.neighbour_advertisement(frames.VM_MAC, "fe80::1", frames.VM_IP6),
            SignKind.NEIGHBOUR_ADVERTISEMENT,
        ),
    ],
)
def test_every_kind_is_heard_with_the_kernels_time(ear: Ear, frame: bytes, kind: SignKind) -> None:
    ear.add_veth()
    ear.watch(WATCHED)
    ear.listening()
    before = time.time_ns()
    ear.send(frame)
    (sign,) = until("a sign", lambda: list(ear.heard))
    assert (sign.kind, sign.endpoint, sign.interface, sign.episode) == (kind, ENDPOINT, HOST, 7)
    assert before <= sign.kernel_ns <= time.time_ns()


def test_outgoing_foreign_and_tagged_frames_never_pass_the_filter(ear: Ear) -> None:
    ear.add_veth()
    ear.watch(WATCHED)
    ear.listening()
    rarp = frames.rarp(frames.VM_MAC)
    send_from(ear.node, HOST, rarp)
    ear.send(frames.rarp(frames.OTHER_MAC))
    ear.send(frames.arp(frames.VM_MAC, "0.0.0.0", frames.VM_IP))
    ear.send(frames.ipv4(frames.VM_MAC, "10.9.9.9", "192.0.2.1"))
    ear.send(frames.neighbour_solicitation(frames.VM_MAC, "::", frames.VM_IP6))
    ear.send(rarp[:12] + bytes.fromhex("81000005") + rarp[12:])
    ear.send(rarp)
    until("the one true sign", lambda: list(ear.heard))
    time.sleep(0.25)  # longer than the mute: a second sign would have come through by now
    assert len(ear.heard) == 1
    assert ear.heard[0].muted == 0


def test_a_link_that_comes_later_is_listened_to_by_itself(ear: Ear) -> None:
    ear.watch(WATCHED)
    ear.add_veth()
    ear.listening()
    ear.send(frames.rarp(frames.VM_MAC))
    until("a sign", lambda: list(ear.heard))


def test_a_link_that_is_made_anew_is_listened_to_again(ear: Ear) -> None:
    ear.add_veth()
    ear.watch(WATCHED)
    ear.listening()
    ip("-n", ear.node, "link", "del", HOST)
    until("the socket is given up", lambda: not any(one.socket for one in ear.ears()))
    ear.add_veth()
    ear.listening()
    ear.send(frames.rarp(frames.VM_MAC))
    until("a sign", lambda: list(ear.heard))


def test_a_link_that_is_deleted_after_the_news_that_it_is_down_is_listened_to_again(
    ear: Ear,
) -> None:
    """As any deleted link is: down first. The kernel tells a packet socket of the first only."""
    ear.add_veth()
    ear.watch(WATCHED)
    ear.listening()
    (ear_before,) = ear.ears()
    ip("-n", ear.node, "link", "set", HOST, "down")
    until("the link is doubted", lambda: ear_before.retry_at)
    ip("-n", ear.node, "link", "del", HOST)
    until("the socket is given up", lambda: not any(one.socket for one in ear.ears()))
    ear.add_veth()
    ear.listening()
    until("the link is up", lambda: ear_before.retry_at is None)
    ear.send(frames.rarp(frames.VM_MAC))
    until("a sign", lambda: list(ear.heard))


def test_a_link_that_goes_down_and_up_is_still_listened_to(ear: Ear) -> None:
    ear.add_veth()
    ear.watch(WATCHED)
    ear.listening()
    ip("-n", ear.node, "link", "set", HOST, "down")
    ip("-n", ear.node, "link", "set", HOST, "up")

    def heard_again() -> list[Sign]:
        ear.send(frames.rarp(frames.VM_MAC))
        return list(ear.heard)

    until("a sign", heard_again)


def test_a_talkative_vm_is_muted_and_heard_again(ear: Ear) -> None:
    ear.add_veth()
    ear.watch(WATCHED)
    ear.listening()
    began = time.monotonic()
    sent = 0

    def heard_again() -> bool:
        nonlocal sent
        for _ in range(20):
            ear.send(frames.ipv4(frames.VM_MAC, frames.VM_IP, "192.0.2.1"))
        sent += 20
        return len(ear.heard) >= 3

    until("it is heard again, twice", heard_again)
    heard, took = len(ear.heard), time.monotonic() - began
    assert heard <= 1 + took / MUTE_SECONDS
    assert heard < sent


def test_what_is_no_longer_watched_is_not_heard(ear: Ear) -> None:
    ear.add_veth()
    ear.watch(WATCHED)
    ear.listening()
    ear.watch()
    until("nothing is open", lambda: not ear.ears())
    ear.send(frames.rarp(frames.VM_MAC))
    time.sleep(0.1)  # nothing is awaited
    assert ear.heard == []


def test_an_episode_changes_without_closing_the_socket(ear: Ear) -> None:
    ear.add_veth()
    ear.watch(WATCHED)
    ear.listening()
    (before,) = [one.socket for one in ear.ears()]
    ear.watch(Watched(ENDPOINT, HOST, frames.VM_MAC, WATCHED.addresses, 8))
    until("the new episode", lambda: ear.ears()[0].watched.episode == 8)
    assert ear.ears()[0].socket is before
    ear.send(frames.rarp(frames.VM_MAC))
    assert until("a sign", lambda: list(ear.heard))[0].episode == 8
