"""The classic BPF program that lets a sniffer see only what may be a sign of its VM. Pure.

It runs in the kernel before a frame is copied, so other traffic costs the agent nothing. It is a
sieve, not the judge: `frames.classify` looks at what passes. Dropped here: frames the host sends
into the veth (`PACKET_OUTGOING`: the host's own ARP for the VM is one), frames with a VLAN tag,
any other source MAC, IPv4 from other addresses, and IPv6 that is neither from one of the VM's
addresses nor a neighbour advertisement.

An instruction is `struct sock_filter` (code, jt, jf, k); jumps are relative and a conditional
one reaches 255 instructions at most, so the program stays straight: each test that decides
either falls through or jumps over one `ret`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv6Address

from felix_shim.frames import ETH_P_ARP, ETH_P_IP, ETH_P_IPV6, ETH_P_RARP
from libtortie.model.ipam import IPAddress

Instruction = tuple[int, int, int, int]

_LD_WORD, _LD_HALF, _LD_BYTE = 0x20, 0x28, 0x30
_JEQ, _JUMP, _RET = 0x15, 0x05, 0x06
_ANCILLARY = 0xFFFFF000  # SKF_AD_OFF: negative offsets read the frame's metadata
_PACKET_TYPE = _ANCILLARY + 4
_VLAN_PRESENT = _ANCILLARY + 48
_PACKET_OUTGOING = 4
_WHOLE_FRAME = 0x40000

PASS: Instruction = (_RET, 0, 0, _WHOLE_FRAME)
DROP: Instruction = (_RET, 0, 0, 0)

NOTHING: tuple[Instruction, ...] = (DROP,)
"""A program that lets nothing pass: attached before the socket is bound, and to mute it."""


def program(mac: bytes, addresses: Collection[IPAddress]) -> tuple[Instruction, ...]:
    """The filter for one VM."""
    return tuple(_head(mac)) + tuple(_body(addresses))


def assemble(instructions: Collection[Instruction]) -> bytes:
    """The array of `struct sock_filter` in host byte order."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


def _head(mac: bytes) -> Iterator[Instruction]:
    yield (_LD_BYTE, 0, 0, _PACKET_TYPE)
    yield from _drop_if(_PACKET_OUTGOING)
    yield (_LD_BYTE, 0, 0, _VLAN_PRESENT)
    yield from _drop_unless(0)
    yield (_LD_WORD, 0, 0, 6)
    yield from _drop_unless(int.from_bytes(mac[:4], "big"))
    yield (_LD_HALF, 0, 0, 10)
    yield from _drop_unless(int.from_bytes(mac[4:], "big"))
    yield (_LD_HALF, 0, 0, 12)


def _body(addresses: Collection[IPAddress]) -> Iterator[Instruction]:
    yield from _pass_if(ETH_P_RARP)
    yield from _pass_if(ETH_P_ARP)
    ipv4 = tuple(_ipv4(addresses))
    yield (_JEQ, 1, 0, ETH_P_IP)
    yield (_JUMP, 0, 0, len(ipv4))
    yield from ipv4
    yield from _drop_unless(ETH_P_IPV6)
    yield from _ipv6(addresses)


def _ipv4(addresses: Collection[IPAddress]) -> Iterator[Instruction]:
    yield (_LD_WORD, 0, 0, 26)
    for address in addresses:
        if isinstance(address, IPv4Address):
            yield from _pass_if(int(address))
    yield DROP


def _ipv6(addresses: Collection[IPAddress]) -> Iterator[Instruction]:
    for address in addresses:
        if isinstance(address, IPv6Address):
            words = struct.unpack("!4I", address.packed)
            for index, word in enumerate(words):
                yield (_LD_WORD, 0, 0, 22 + 4 * index)
                yield (_JEQ, 0, 2 * (3 - index) + 1, word)  # unequal: to the next address
            yield PASS
    yield (_LD_BYTE, 0, 0, 20)  # next header
    yield from _drop_unless(58)
    yield (_LD_BYTE, 0, 0, 54)  # ICMPv6 type
    yield from _pass_if(136)
    yield DROP


def _pass_if(value: int) -> Iterator[Instruction]:
    yield (_JEQ, 0, 1, value)
    yield PASS


def _drop_if(value: int) -> Iterator[Instruction]:
    yield (_JEQ, 0, 1, value)
    yield DROP


def _drop_unless(value: int) -> Iterator[Instruction]:
    yield (_JEQ, 1, 0, value)
    yield DROP
