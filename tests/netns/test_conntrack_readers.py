"""Each way to read the kernel's connection table finds the same entries, on a real kernel."""

from __future__ import annotations

import itertools
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from felix_shim.drivers.conntrack import forget
from libtortie.errors import Unavailable
from libtortie.linux import conntrack
from libtortie.linux.channel import Channel
from libtortie.linux.conntrack import Conntrack
from libtortie.linux.flows import (
    SCTP,
    TCP,
    UDP,
    Flow,
    FlowTuple,
    SctpTracking,
    Status,
    TcpFlag,
    TcpState,
    TcpTracking,
)
from libtortie.linux.netns import Netns
from tests.fakes.fresh_names import fresh_name
from tests.fakes.patience import PATIENCE

pytestmark = pytest.mark.root

VM = {4: ip_address("10.65.0.2"), 6: ip_address("fd00:65::2")}
FAR = {4: ip_address("10.66.0.5"), 6: ip_address("fd00:66::5")}
SERVICE = {4: ip_address("10.96.0.1"), 6: ip_address("fd00:96::1")}
LOOPBACK = {4: ip_address("127.0.0.1"), 6: ip_address("::1")}
FAMILIES = pytest.mark.parametrize("version", [4, 6])
READERS = pytest.mark.parametrize("reader", ["listed", "dumped", "no listing"])
LEFT = 5000
SEEN = Status.SEEN_REPLY | Status.ASSURED
ZONES = """
table inet zones {
    chain output {
        type filter hook output priority -300
        udp dport 777 ct zone set 5
        udp dport 778 ct original zone set 6
        udp dport 779 ct reply zone set 7
    }
    chain input {
        type filter hook input priority 0
        ct state new accept
    }
}
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    name = fresh_name("c")
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.fixture
def table(namespace: str) -> Iterator[Conntrack]:
    made = inside(namespace, lambda: Conntrack(deadline=PATIENCE))
    try:
        yield made
    finally:
        made.close()


def inside(namespace: str, work: Callable[[], Conntrack]) -> Conntrack:
    return Netns(deadline=PATIENCE).call(f"/run/netns/{namespace}", work)


def read_by(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on tables of any size are read so; the other way is no way out."""
    monkeypatch.setattr(conntrack, "_MOST_LISTED", 0 if reader == "dumped" else 1 << 20)
    if reader == "no listing":
        monkeypatch.setattr(conntrack, "LISTING", Path("/proc/thread-self/net/none"))
    if reader == "listed":
        monkeypatch.setattr(Channel, "dump", _unwanted)


def _unwanted(*_: object, **__: object) -> list[object]:
    raise AssertionError("the whole table was read by netlink")


def untimed(flow: Flow) -> Flow:
    assert LEFT - PATIENCE < flow.timeout <= LEFT
    return replace(flow, timeout=0, labels=b"")


def tcp(number: int, version: int = 4) -> Flow:
    one = FlowTuple(VM[version], FAR[version], TCP, number, 80)
    return Flow(one, one.inverse(), LEFT, SEEN, TcpTracking(TcpState.ESTABLISHED).liberal())


def stranger(number: int) -> Flow:
    one = FlowTuple(ip_address("192.0.2.1"), ip_address("192.0.2.2"), UDP, number, number)
    return Flow(one, one.inverse(), LEFT, SEEN)


def all_kinds(version: int) -> set[Flow]:
    """Every protocol, every state that can be made, each end at which the VM can be, rewritten or
    not."""
    vm, far, service = VM[version], FAR[version], SERVICE[version]
    flags = TcpFlag.WINDOW_SCALE | TcpFlag.SACK_PERM
    found = set()
    for state in TcpState:
        if state is not TcpState.NONE:
            one = FlowTuple(vm, service, TCP, 4000 + state, 80)
            reply = FlowTuple(far, vm, TCP, 8080, 4000 + state)
            tracking = TcpTracking(state, (7, 9), (flags, flags)).liberal()
            found.add(Flow(one, reply, LEFT, SEEN, tracking, mark=7))
    for number in range(1, 8):
        one = FlowTuple(far, vm, SCTP, 5000 + number, 81)
        found.add(Flow(one, one.inverse(), LEFT, SEEN, sctp=SctpTracking(number, (17, number))))
    kind, answer = (8 << 8, 0) if version == 4 else (128 << 8, 129 << 8)
    icmp = 1 if version == 4 else 58
    original, reply = FlowTuple(vm, service, icmp, 99, kind), FlowTuple(far, vm, icmp, 99, answer)
    found.add(Flow(original, reply, LEFT, Status.SEEN_REPLY))
    one = FlowTuple(far, service, UDP, 53, 53)
    found.add(Flow(one, FlowTuple(vm, far, UDP, 53, 53), LEFT))
    masked = FlowTuple(vm, far, UDP, 54, 54)
    found.add(Flow(masked, FlowTuple(far, service, UDP, 54, 60054), LEFT, Status.SEEN_REPLY))
    hairpin = FlowTuple(service, far, UDP, 55, 55)
    found.add(Flow(hairpin, FlowTuple(far, vm, UDP, 55, 55), LEFT, Status.SEEN_REPLY))
    return found


@READERS
@FAMILIES
def test_entries_are_read_as_they_were_made(
    table: Conntrack, version: int, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(reader, monkeypatch)
    assert table.flows([VM[version]]) == ()
    bystander = stranger(1)
    assert table.create(bystander)
    flows = all_kinds(version)
    for flow in flows:
        assert table.create(flow), flow
        assert not table.create(flow)
    assert {untimed(flow) for flow in table.flows([VM[version]])} == set(map(untimed, flows))
    assert table.flows([]) == table.flows([ip_address("10.65.0.25")]) == ()
    assert forget(table, [VM[version]]) == {VM[version]: len(flows)}
    assert table.flows([VM[version]]) == ()
    assert set(map(untimed, table.flows(VM.values()))) == set()
    assert [one.original for one in table.flows([bystander.original.source])] == [
        bystander.original
    ]
    assert not table.delete(next(iter(flows)))


@READERS
def test_both_families_are_read_at_once(
    table: Conntrack, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(reader, monkeypatch)
    flows = {tcp(1, 4), tcp(2, 6)}
    for flow in (*flows, stranger(1)):
        assert table.create(flow)
    assert set(map(untimed, table.flows(VM.values()))) == set(map(untimed, flows))


@READERS
@FAMILIES
def test_entries_of_other_zones_are_not_seen(
    namespace: str, table: Conntrack, version: int, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own entries, also those of which one direction alone is in another zone."""
    read_by(reader, monkeypatch)
    run = ["ip", "netns", "exec", namespace]
    subprocess.run([*run, "ip", "link", "set", "lo", "up"], check=True)
    subprocess.run([*run, "nft", "-f", "-"], input=ZONES, text=True, check=True)

    def talk() -> None:
        for port in (776, 777, 778, 779):
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.sendto(b"x", (str(LOOPBACK[version]), port))

    Netns(deadline=PATIENCE).call(f"/run/netns/{namespace}", talk)
    shown = subprocess.run(
        [*run, "conntrack", "-L", "-p", "udp", "-f", f"ipv{version}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert all(f"dport={port} " in shown for port in (776, 777, 778, 779)), shown
    ports = {flow.original.destination_port for flow in table.flows([LOOPBACK[version]])}
    assert ports == {776}


@READERS
@pytest.mark.parametrize("others", [200, 3000])
def test_a_few_are_found_among_many(
    table: Conntrack, others: int, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pages of a listing, many datagrams of a dump."""
    read_by(reader, monkeypatch)
    flows = set(map(tcp, range(1, 41)))
    for number in range(1, others + 1):
        assert table.create(stranger(number))
        if number % 5 == 0 and number <= 200:
            assert table.create(tcp(number // 5))
    assert set(map(untimed, table.flows([VM[4]]))) == set(map(untimed, flows))


@READERS
def test_what_stays_is_found_while_others_come_and_go(
    namespace: str, table: Conntrack, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(reader, monkeypatch)
    flows = {tcp(number) for number in range(1, 201)}
    for flow in flows:
        assert table.create(flow)
    over = threading.Event()

    def churn() -> None:
        other = inside(namespace, lambda: Conntrack(deadline=PATIENCE))
        for number in itertools.cycle(range(1, 301)):
            if over.is_set():
                break
            if not other.create(stranger(number)):
                other.delete(stranger(number))
        other.close()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            assert set(map(untimed, table.flows([VM[4]]))) == set(map(untimed, flows))
    finally:
        over.set()
        thread.join()


def test_where_entries_went_meanwhile_the_listing_is_read_again(
    table: Conntrack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that counts entries from page to page passes over as many as went."""
    read_by("listed", monkeypatch)
    flows = {tcp(1), tcp(2)}
    for flow in flows:
        assert table.create(flow)
    whole = conntrack._read_listing
    lacking = itertools.cycle(("sport=1 ", "sport=2 "))

    def short() -> str:
        missed = next(lacking)
        return "".join(line for line in whole().splitlines(True) if missed not in line)

    monkeypatch.setattr(conntrack, "_read_listing", short)
    assert set(map(untimed, table.flows([VM[4]]))) == set(map(untimed, flows))


def test_what_one_reading_of_several_pages_passes_over_is_found(
    table: Conntrack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others came in the place of those that went, there are not fewer than before."""
    read_by("listed", monkeypatch)
    for flow in (tcp(1), *map(stranger, range(1, 41))):
        assert table.create(flow)
    whole = conntrack._read_listing
    instead = itertools.chain(["192.0.2.77"], itertools.repeat(str(VM[4])))
    monkeypatch.setattr(
        conntrack, "_read_listing", lambda: whole().replace(str(VM[4]), next(instead))
    )
    assert [flow.original for flow in table.flows([VM[4]])] == [tcp(1).original]


def test_what_is_listed_and_gone_is_not_told(
    table: Conntrack, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by("listed", monkeypatch)
    for flow in (tcp(1), tcp(2)):
        assert table.create(flow)
    whole = conntrack._read_listing

    def old() -> str:
        text = whole()
        table.delete(tcp(2))
        return text

    monkeypatch.setattr(conntrack, "_read_listing", old)
    assert [flow.original for flow in table.flows([VM[4]])] == [tcp(1).original]


@pytest.mark.parametrize("reader", ["listed", "dumped"])
def test_a_socket_that_was_given_up_is_opened_where_the_table_is(
    table: Conntrack, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks next, from whichever namespace."""
    read_by(reader, monkeypatch)
    assert table.create(tcp(1))
    with monkeypatch.context() as patch:

        def silent(*_: object) -> bytes:
            raise Unavailable("no answer from the kernel in time")

        patch.setattr(Channel, "_receive", silent)
        with pytest.raises(Unavailable):
            table.flows([VM[4]])
    assert [flow.original for flow in table.flows([VM[4]])] == [tcp(1).original]
