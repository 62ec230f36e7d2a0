"""When route changes were seen, by the lab's own witness, in real namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from lab import clock, rtnl
from lab.observers import Holder, Monitor, RouteSeen, Seen, Sniffer, open_sniffer, watch
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until
from tests.fakes.patience import PATIENCE

pytestmark = pytest.mark.root

GUEST = (ip_address("10.65.0.2"), ip_address("fd00:65::2"))
MAC = "02:11:22:33:44:55"


def ip(name: str, *lines: str) -> None:
    for line in lines:
        subprocess.run(["ip", "-n", name, *line.split()], check=True, timeout=PATIENCE)


@pytest.fixture
def nodes() -> Iterator[tuple[str, str]]:
    made = fresh_name("o"), fresh_name("o")
    try:
        for name in made:
            subprocess.run(["ip", "netns", "add", name], check=True)
            ip(name, "link add cali1 type bridge", "link set cali1 up")
        yield made
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def monitor(name: str) -> Monitor:
    return Monitor(f"/run/netns/{name}", name, GUEST)


def add_routes(name: str) -> None:
    for address in GUEST:
        ip(name, f"route add {address} dev cali1 metric 512")


def test_a_route_is_told_with_the_name_of_its_link(nodes: tuple[str, str]) -> None:
    one = monitor(nodes[0])
    add_routes(nodes[0])
    first, second = one.tell(one.drain())
    assert isinstance(first, RouteSeen) and isinstance(second, RouteSeen)
    assert (first.version, second.version) == (4, 6)
    assert (first.ifname, first.metric, first.added) == ("cali1", 512, True)
    assert list(one.tell(one.drain())) == []


def test_a_link_that_is_gone_before_it_is_looked_at_has_a_number(nodes: tuple[str, str]) -> None:
    one = monitor(nodes[0])
    add_routes(nodes[0])
    drained = one.drain()
    ip(nodes[0], "link del cali1")
    names = {event.ifname for event in one.tell(drained) if isinstance(event, RouteSeen)}
    assert len(names) == 1 and names.pop().startswith("#")


def test_what_is_made_of_one_change_is_not_added_to_the_time_of_another(
    nodes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that there is, of all nodes, has its time before the first is looked at."""
    looked: list[int] = []
    name_of = rtnl.link_name

    def slow(sock: socket.socket, ifindex: int) -> str:
        looked.append(clock.monotonic())
        return name_of(sock, ifindex)

    monkeypatch.setattr(rtnl, "link_name", slow)
    monitors = [monitor(name) for name in nodes]
    for name in nodes:
        add_routes(name)
    path = f"/run/netns/{nodes[0]}"
    sniffer = Sniffer(open_sniffer(path, MAC), nodes[0], GUEST, clock.realtime_offset())
    reading, writing = os.pipe()
    told: list[Seen] = []
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        work = threading.Thread(target=watch, args=(sniffer, monitors, Holder(told.append, 0.0)))
        work.start()
        until("all are told", lambda: len(told) == 4)
        os.close(writing)
        work.join(PATIENCE)
    assert not work.is_alive()
    assert {event.where for event in told} == set(nodes)
    assert max(event.t_ns for event in told) <= min(looked)
