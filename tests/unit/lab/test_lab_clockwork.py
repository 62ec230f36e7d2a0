"""The measuring parts: announcements, probes' judgement, the stream's judge, netlink bytes."""

from __future__ import annotations

import json
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix_shim import frames
from felix_shim.model import SignKind
from lab.clock import NS_PER_MS
from lab.cutover import (
    Cutover,
    Report,
    advertisement_frame,
    announcements,
    checksum,
    garp_frame,
    rarp_frame,
    report_from_json,
)
from lab.observers import classify, mac_filter
from lab.probes import Gap, Series, analyse, series_from_json, series_to_json
from lab.rtnl import PortState, RouteChange, parse_route_changes, port_state_request
from lab.stream import Echoes, StreamReport

MAC = "02:11:22:33:44:55"
VM, VM6 = IPv4Address("10.65.0.2"), IPv6Address("fd00:10:65::2")
OURS = (VM, VM6)
MS = NS_PER_MS


def test_rarp_is_qemus() -> None:
    frame = rarp_frame(MAC)
    own = bytes.fromhex("021122334455")
    assert len(frame) == 60
    assert frame[:14] == b"\xff" * 6 + own + b"\x80\x35"
    assert frame[14:22] == bytes.fromhex("0001080006040003")
    assert frame[22:42] == own + bytes(4) + own + bytes(4)
    assert VM.packed not in frame
    assert classify(frame, OURS) == "rarp"


def test_garp_is_a_guest_kernels() -> None:
    frame = garp_frame(MAC, str(VM))
    assert len(frame) == 42
    assert frame[20:22] == b"\x00\x01"
    assert classify(frame, OURS) == "garp"
    assert classify(garp_frame(MAC, "10.65.0.3"), OURS) == "arp"


def test_an_advertisement_is_a_guest_kernels() -> None:
    frame = advertisement_frame(MAC, str(VM6))
    assert frame[:14] == bytes.fromhex("333300000001021122334455") + b"\x86\xdd"
    assert frame[21] == 255  # the hop limit, without which nobody believes it
    assert frame[22:38] == frame[62:78] == VM6.packed
    assert frame[58] == 0x20  # override, and not solicited
    pseudo = frame[22:54] + struct.pack("!II", len(frame) - 54, 58)
    assert checksum(pseudo + frame[54:]) == 0
    assert classify(frame, OURS) == "na"
    own = bytes.fromhex(MAC.replace(":", ""))
    assert frames.classify(frame, own, (VM6,)) is SignKind.NEIGHBOUR_ADVERTISEMENT
    assert classify(advertisement_frame(MAC, "fd00:10:65::3"), OURS) == "other"
    solicited = frame[:58] + b"\x60" + frame[59:]
    assert classify(solicited, OURS) == "ip6"


def test_a_guest_of_both_families_announces_both() -> None:
    both = announcements(Cutover("a", "b", MAC, str(VM), garp=True, address6=str(VM6)))
    told = [(at, classify(frame, OURS)) for at, frame in both if at < 30]
    assert told == [(0, "rarp"), (26, "garp"), (26, "na")]
    six = announcements(Cutover("a", "b", MAC, "", garp=True, address6=str(VM6)))
    assert {classify(frame, OURS) for _, frame in six} == {"rarp", "na"}


def test_five_rarps_at_qemus_times_and_garps_only_by_wish() -> None:
    plain = announcements(Cutover("a", "b", MAC, str(VM)))
    assert [at for at, _ in plain] == [0, 50, 200, 450, 800]
    both = announcements(Cutover("a", "b", MAC, str(VM), garp=True))
    assert [at for at, frame in both if classify(frame, OURS) == "garp"] == [26, 76, 226, 476, 826]
    assert [at for at, _ in both] == sorted(at for at, _ in both)
    assert announcements(Cutover("a", "b", MAC, str(VM), silent=True)) == ()


def test_report_survives_its_annotation() -> None:
    report = Report(1, 50 * MS + 1, (50 * MS + 2,))
    assert report_from_json(report.to_json()) == report
    assert report.blackout_ms == 50


@pytest.mark.parametrize(
    ("ethertype", "source", "what"),
    [
        (0x0800, VM, "ip"),
        (0x0800, IPv4Address("10.65.0.9"), "other"),
        (0x86DD, VM, "other"),
        (0x86DD, VM6, "ip6"),
        (0x86DD, IPv6Address("fe80::1"), "other"),
    ],
)
def test_other_frames(ethertype: int, source: IPv4Address | IPv6Address, what: str) -> None:
    rest = bytes(12 if source.version == 4 else 8) + source.packed + bytes(24)
    frame = bytes(12) + ethertype.to_bytes(2, "big") + rest
    assert classify(frame, OURS) == what


def run_bpf(program: bytes, frame: bytes) -> int:
    """A classic BPF machine, as far as our filter needs it."""
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator, counter = 0, 0
    while True:
        code, yes, no, k = steps[counter]
        counter += 1
        match code:
            case 0x20:
                accumulator = int.from_bytes(frame[k : k + 4], "big")
            case 0x28:
                accumulator = int.from_bytes(frame[k : k + 2], "big")
            case 0x15:
                counter += yes if accumulator == k else no
            case 0x06:
                return int(k)
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


@given(st.binary(min_size=6, max_size=6))
def test_filter_passes_the_guests_mac_alone(source: bytes) -> None:
    frame = b"\xff" * 6 + source + bytes(46)
    assert bool(run_bpf(mac_filter(MAC), frame)) is (source == bytes.fromhex("021122334455"))
    assert run_bpf(mac_filter(source.hex(":")), frame)


def ticks(count: int) -> list[int]:
    return [MS * n for n in range(1, count + 1)]


def test_no_gap_when_every_probe_is_answered() -> None:
    sends = ticks(1000)
    series = analyse(sends, [at + 80_000 for at in sends], MS)
    assert series.lost == 0
    assert series.sent == 900
    assert series.longest is not None
    assert series.longest.outage_ns == MS
    assert series.rtt_p50_ms == 0.08


def test_a_gap_is_the_silence_between_two_answers() -> None:
    sends = ticks(1000)
    receives = [0 if 300 <= n < 352 else at + 80_000 for n, at in enumerate(sends)]
    series = analyse(sends, receives, MS)
    assert series.lost == 52
    assert series.longest is not None
    assert series.longest.outage_ns == 53 * MS
    assert series.longest.lost == 52
    assert series.longest.own_stall_ns == 0


def test_the_probers_own_stall_is_no_outage() -> None:
    sends = [at + (40 * MS if at > 500 * MS else 0) for at in ticks(1000)]
    series = analyse(sends, [at + 80_000 for at in sends], MS)
    assert series.worst_stall_ms == 40
    assert series.longest is not None
    assert series.longest.outage_ns == MS


def test_a_stall_beside_an_outage_is_taken_off_and_reported() -> None:
    # Lost: 10 probes; the first answered one was sent 20 ms late.
    sends = [at + (20 * MS if at > 510 * MS else 0) for at in ticks(1000)]
    receives = [0 if 500 <= n < 510 else at + 80_000 for n, at in enumerate(sends)]
    longest = analyse(sends, receives, MS).longest
    assert longest is not None
    assert longest.end_ns - longest.start_ns == 31 * MS
    assert longest.own_stall_ns == 20 * MS
    assert longest.outage_ns == 11 * MS


def test_a_stall_within_an_outage_makes_it_no_shorter() -> None:
    sends = [at + (20 * MS if at > 505 * MS else 0) for at in ticks(1000)]
    receives = [0 if 500 <= n < 510 else at + 80_000 for n, at in enumerate(sends)]
    longest = analyse(sends, receives, MS).longest
    assert longest is not None
    assert longest.outage_ns == 31 * MS


def test_late_answers_are_an_outage_though_nothing_is_lost() -> None:
    sends = ticks(1000)
    receives = [351 * MS + n if 300 <= n < 350 else at + 80_000 for n, at in enumerate(sends)]
    series = analyse(sends, receives, MS)
    assert series.lost == 0
    assert series.longest is not None
    assert series.longest.outage_ns > 50 * MS


def test_a_guest_that_never_answers_again_is_one_long_outage() -> None:
    sends = ticks(1000)
    receives = [at + 80_000 if n < 400 else 0 for n, at in enumerate(sends)]
    series = analyse(sends, receives, MS)
    assert series.lost == 500
    assert series.longest is not None
    assert series.longest.outage_ns == pytest.approx(500 * MS, abs=MS)


def test_a_guest_that_never_answered() -> None:
    series = analyse(ticks(1000), [0] * 1000, MS)
    assert series.lost == series.sent == 900
    assert series.longest is not None
    assert series.longest.outage_ns == 899 * MS
    assert series.lost_at == tuple(ticks(1000)[:900])


def test_nothing_sent_nothing_claimed() -> None:
    assert analyse([], [], MS) == Series(0, 0, 0.0, 0.0)


@given(st.lists(st.booleans(), min_size=200, max_size=400))
def test_the_longest_gap_covers_every_run_of_losses(answered: list[bool]) -> None:
    sends = ticks(len(answered))
    receives = [at + 50_000 if ok else 0 for at, ok in zip(sends, answered, strict=True)]
    series = analyse(sends, receives, MS)
    worst = run = 0
    for ok in answered[: series.sent]:
        run = 0 if ok else run + 1
        worst = max(worst, run)
    assert (series.longest.outage_ns if series.longest else 0) >= (worst - 1) * MS
    assert series.lost == answered[: series.sent].count(False)


def test_series_survive_json() -> None:
    series = {"ext": Series(2, 1, 0.1, 0.2, (Gap(1, 2, 0, 1),), (7,))}
    assert series_from_json(json.loads(json.dumps(series_to_json(series)))) == series


def test_echoes_in_order_whatever_the_segments() -> None:
    echoes = Echoes()
    echoes.feed(b"0\n1", 10)
    echoes.feed(b"\n2\n3", 30)
    assert (echoes.expected, echoes.broken) == (3, "")
    assert echoes.longest_gap_ns == 20


@pytest.mark.parametrize("data", [b"1\n", b"0\n0\n", b"0\n2\n", b"0\nx\n", b"\n"])
def test_a_lost_doubled_or_swapped_line_is_remembered(data: bytes) -> None:
    echoes = Echoes()
    echoes.feed(data, 1)
    echoes.feed(b"%d\n" % echoes.expected, 2)
    assert echoes.broken.startswith("expected line ")


@pytest.mark.parametrize(
    ("sent", "echoed", "error", "survived"),
    [(5, 5, "", True), (5, 4, "", False), (0, 0, "", False), (5, 5, "reset", False)],
)
def test_survival(sent: int, echoed: int, error: str, survived: bool) -> None:
    assert StreamReport(sent, echoed, error, 0.0, 1).survived is survived


def route_message(kind: int, dst: str, metric: int, gateway: str = "", family: int = 2) -> bytes:
    def attr(number: int, value: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(value), number) + value

    def packed(address: str) -> bytes:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)

    length = 8 * len(packed(dst))
    body = struct.pack("=8BI", family, length, 0, 0, 254, 3, 0, 1, 0)
    body += attr(1, packed(dst)) + attr(6, struct.pack("=I", metric))
    body += attr(4, struct.pack("=I", 7)) + attr(15, struct.pack("=I", 254))
    if gateway:
        body += attr(5, packed(gateway))
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def test_route_messages() -> None:
    data = route_message(24, "10.65.0.2", 512) + route_message(25, "10.65.0.2", 768, "172.31.0.12")
    assert list(parse_route_changes(data)) == [
        RouteChange(True, "10.65.0.2", 32, 512, 7, "", 3, 254),
        RouteChange(False, "10.65.0.2", 32, 768, 7, "172.31.0.12", 3, 254),
    ]


def test_route_messages_of_ipv6() -> None:
    data = route_message(24, "fd00:10:65::2", 512, family=10)
    data += route_message(25, "fd00:10:65::2", 768, "fd00:172:31::12", family=10)
    assert list(parse_route_changes(data)) == [
        RouteChange(True, "fd00:10:65::2", 128, 512, 7, "", 3, 254),
        RouteChange(False, "fd00:10:65::2", 128, 768, 7, "fd00:172:31::12", 3, 254),
    ]


def test_other_messages_and_families_are_skipped() -> None:
    data = route_message(20, "10.65.0.2", 1) + route_message(24, "10.65.0.2", 1, family=10)
    data += route_message(24, "10.65.0.2", 1, family=7)
    assert list(parse_route_changes(data)) == []


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    list(parse_route_changes(data))
    list(parse_route_changes(route_message(24, "10.65.0.2", 512)[: len(data)] + data))


def test_port_state_request_is_a_setlink_of_the_bridge_family() -> None:
    request = port_state_request(9, PortState.FORWARDING)
    length, kind, flags, _, _ = struct.unpack_from("=IHHII", request)
    assert (length, kind, flags) == (len(request), 19, 5)
    family, ifindex = (
        struct.unpack_from("=BxHi", request, 16)[0],
        struct.unpack_from("=i", request, 20)[0],
    )
    assert (family, ifindex) == (7, 9)
    assert request[-8:] == bytes.fromhex("0500010003000000")
