"""No bytes crash the frame parser, and it never hears a VM that did not speak."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from hypothesis import given, settings
from hypothesis import strategies as st

from felix_shim.frames import classify, mac_bytes
from felix_shim.model import SignKind
from tests.fakes import frames

MAC = mac_bytes(frames.VM_MAC)
ADDRESSES = (IPv4Address(frames.VM_IP), IPv6Address(frames.VM_IP6))
SEEDS = (
    frames.rarp(frames.VM_MAC),
    frames.arp(frames.VM_MAC, frames.VM_IP, frames.VM_IP),
    frames.ipv4(frames.VM_MAC, frames.VM_IP, "192.0.2.1"),
    frames.ipv6(frames.VM_MAC, frames.VM_IP6, "2001:db8::9"),
    frames.neighbour_advertisement(frames.VM_MAC, "fe80::1", frames.VM_IP6),
    frames.neighbour_solicitation(frames.VM_MAC, "::", frames.VM_IP6),
)
RAW_ADDRESSES = tuple(address.packed for address in ADDRESSES)


def judge(frame: bytes) -> SignKind | None:
    kind = classify(frame, MAC, ADDRESSES)
    if kind is not None:
        assert frame[6:12] == MAC
        assert kind is SignKind.RARP or any(raw in frame for raw in RAW_ADDRESSES)
    if kind is SignKind.RARP:
        assert frame[22:28] == MAC
    return kind


@given(st.binary(max_size=120))
@settings(max_examples=400, deadline=None)
def test_any_bytes(raw: bytes) -> None:
    judge(raw)


@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=4),
    st.integers(0, 120),
)
@settings(max_examples=1000, deadline=None)
def test_mutated_frames(seed: bytes, changes: list[tuple[int, int]], length: int) -> None:
    frame = bytearray(seed)
    for offset, value in changes:
        if offset < len(frame):
            frame[offset] = value
    judge(bytes(frame[:length]))


@given(st.sampled_from(SEEDS), st.integers(0, 5), st.integers(1, 255))
def test_one_wrong_byte_in_the_source_mac_is_enough(seed: bytes, index: int, flip: int) -> None:
    frame = bytearray(seed)
    frame[6 + index] ^= flip
    assert classify(bytes(frame), MAC, ADDRESSES) is None
