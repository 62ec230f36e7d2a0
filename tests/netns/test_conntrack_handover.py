"""A VM's connections across a move, on real kernels: with the copied entries, and without them."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address

import pytest

from felix_shim.drivers.conntrack import Copy, Outcome, forget, portable
from felix_shim.flow_codec import decode_flow, encode_flow
from libtortie.linux.flows import (
    TCP,
    Flow,
    FlowTuple,
    Status,
    TcpState,
    TcpTracking,
)
from tests.fakes.two_nodes import FAMILY, FAR, PATIENCE, PORT, SERVICE, SERVICE_PORT, VM, TwoNodes

pytestmark = pytest.mark.root

ADDRESSES = frozenset(ip_address(one) for one in VM.values())
FAMILIES = pytest.mark.parametrize("version", sorted(FAMILY))
DESTINATIONS = pytest.mark.parametrize("through", ["direct", "service"])
REPEAT_SECONDS = 0.1


@pytest.fixture
def nodes() -> Iterator[TwoNodes]:
    made = TwoNodes()
    try:
        made.open()
        yield made
    finally:
        made.close()


def copy(nodes: TwoNodes, *, arrived: bool = False) -> Outcome:
    """The source's entries, over the wire's text, into the target's table."""
    there, here = nodes.table(nodes.source), nodes.table(nodes.target)
    try:
        found = [portable(flow, ADDRESSES) for flow in there.flows(ADDRESSES)]
        text = json.dumps([encode_flow(flow) for flow in found if flow is not None])
        flows = [decode_flow(item) for item in json.loads(text)]
        return Copy(here, ADDRESSES).take(flows, arrived=arrived)
    finally:
        there.close()
        here.close()


def destination(version: int, through: str) -> tuple[str, int]:
    """Where the VM connects to."""
    return (FAR[version], PORT) if through == "direct" else (SERVICE[version], SERVICE_PORT)


def connected(nodes: TwoNodes, version: int, through: str) -> tuple[socket.socket, socket.socket]:
    """A TCP connection that the VM opened, used once in both directions: (VM's end, far's)."""
    with nodes.socket(nodes.far, version, socket.SOCK_STREAM) as server:
        server.bind((FAR[version], PORT))
        server.listen()
        vm = nodes.socket(nodes.vm, version, socket.SOCK_STREAM)
        vm.connect(destination(version, through))
        far, _ = server.accept()
    far.settimeout(PATIENCE)
    for one, other in ((vm, far), (far, vm)):
        one.sendall(b"before")
        assert other.recv(64) == b"before"
    return vm, far


def talked(nodes: TwoNodes, version: int, through: str) -> tuple[socket.socket, socket.socket]:
    """The same of UDP; both sockets are connected to the other as each sees it."""
    far = nodes.socket(nodes.far, version, socket.SOCK_DGRAM)
    far.bind((FAR[version], PORT))
    vm = nodes.socket(nodes.vm, version, socket.SOCK_DGRAM)
    vm.connect(destination(version, through))
    vm.send(b"before")
    _, who = far.recvfrom(64)
    far.connect(who)
    far.send(b"before")
    assert vm.recv(64) == b"before"
    return vm, far


def silent(sock: socket.socket) -> bool:
    """Whether nothing has come."""
    sock.setblocking(False)
    try:
        return not sock.recv(64)
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(PATIENCE)


def until_dropped(nodes: TwoNodes, send: Callable[[], object]) -> None:
    """Send until the target has dropped something."""
    deadline = time.monotonic() + PATIENCE
    while not nodes.dropped(nodes.target):
        assert time.monotonic() < deadline, "the target drops nothing"
        send()
        time.sleep(REPEAT_SECONDS)


@FAMILIES
@DESTINATIONS
def test_a_tcp_connection_goes_on_when_the_answer_comes_first(
    nodes: TwoNodes, version: int, through: str
) -> None:
    vm, far = connected(nodes, version, through)
    with vm, far:
        outcome = copy(nodes)
        assert (outcome.made, outcome.failed) == (1, 0), outcome
        nodes.move()
        far.sendall(b"answer first")
        assert vm.recv(64) == b"answer first"
        vm.sendall(b"and on")
        assert far.recv(64) == b"and on"
        assert nodes.dropped(nodes.target) == 0


@FAMILIES
@DESTINATIONS
def test_without_the_copy_the_tcp_connection_breaks(
    nodes: TwoNodes, version: int, through: str
) -> None:
    vm, far = connected(nodes, version, through)
    with vm, far:
        nodes.move()
        until_dropped(nodes, lambda: far.sendall(b"answer first"))
        assert silent(vm)


@FAMILIES
@DESTINATIONS
def test_a_udp_flow_goes_on_when_the_answer_comes_first(
    nodes: TwoNodes, version: int, through: str
) -> None:
    vm, far = talked(nodes, version, through)
    with vm, far:
        assert copy(nodes).made == 1
        nodes.move()
        far.send(b"answer first")
        assert vm.recv(64) == b"answer first"
        vm.send(b"and on")
        assert far.recv(64) == b"and on"
        assert nodes.dropped(nodes.target) == 0


@FAMILIES
@DESTINATIONS
def test_without_the_copy_the_udp_flow_breaks(nodes: TwoNodes, version: int, through: str) -> None:
    vm, far = talked(nodes, version, through)
    with vm, far:
        nodes.move()
        until_dropped(nodes, lambda: far.send(b"answer first"))
        assert silent(vm)


@FAMILIES
def test_much_data_flows_both_ways_after_the_move(nodes: TwoNodes, version: int) -> None:
    """Many windows' worth: an entry that counted them wrongly would stop it."""
    vm, far = connected(nodes, version, "direct")
    with vm, far:
        copy(nodes)
        nodes.move()
        for sender, receiver in ((far, vm), (vm, far)):
            whole = b"x" * (4 << 20)
            threading.Thread(target=sender.sendall, args=(whole,), daemon=True).start()
            got = 0
            while got < len(whole):
                got += len(receiver.recv(1 << 16))
            assert got == len(whole)
        assert nodes.dropped(nodes.target) == 0


def test_a_copy_is_the_same_the_second_time_and_after_arrival(nodes: TwoNodes) -> None:
    vm, far = connected(nodes, 4, "service")
    with vm, far:
        assert copy(nodes).made == 1
        assert copy(nodes) == Outcome(kept=1)
        nodes.move()
        far.sendall(b"x")
        assert vm.recv(64) == b"x"
        assert copy(nodes, arrived=True) == Outcome(kept=1)


def test_a_vm_that_comes_back_finds_its_newer_entries(nodes: TwoNodes) -> None:
    """At the target is an old entry of the same port, rewritten to somebody who is gone."""
    vm, far = connected(nodes, 4, "service")
    port = vm.getsockname()[1]
    with vm, far:
        table = nodes.table(nodes.target)
        original = FlowTuple(ip_address(VM[4]), ip_address(SERVICE[4]), TCP, port, SERVICE_PORT)
        reply = FlowTuple(ip_address("10.66.0.99"), ip_address(VM[4]), TCP, PORT, port)
        tcp = TcpTracking(TcpState.ESTABLISHED)
        old = Flow(original, reply, 1000, Status.SEEN_REPLY | Status.ASSURED, tcp)
        assert table.create(old)
        table.close()
        outcome = copy(nodes)
        assert (outcome.made, outcome.gone) == (1, 1)
        nodes.move()
        far.sendall(b"answer first")
        assert vm.recv(64) == b"answer first"


def test_an_address_given_to_another_starts_without_old_entries(nodes: TwoNodes) -> None:
    """An old accepted flow must not pass by the rules of who has the address now."""
    vm, far = talked(nodes, 4, "direct")
    with vm, far:
        far.send(b"known")
        assert vm.recv(64) == b"known"
        table = nodes.table(nodes.source)
        assert forget(table, [ip_address(VM[4])]) == {ip_address(VM[4]): 1}
        table.close()
        deadline = time.monotonic() + PATIENCE
        while not nodes.dropped(nodes.source):
            assert time.monotonic() < deadline
            far.send(b"unknown")
        assert silent(vm)


def test_what_the_listing_tool_says_agrees(nodes: TwoNodes) -> None:
    """Another program's eyes: the copied entry is assured and rewrites."""
    vm, far = connected(nodes, 4, "service")
    with vm, far:
        copy(nodes)

        def work() -> str:
            command = ["conntrack", "-L", "-p", "tcp"]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        text = nodes.in_node(nodes.target, work)
        assert "ESTABLISHED" in text and "[ASSURED]" in text
        assert f"dst={SERVICE[4]}" in text and f"src={FAR[4]}" in text
