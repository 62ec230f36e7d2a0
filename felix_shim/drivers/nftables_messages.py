"""The steps of a change as netlink messages. Pure.

A message's cost is its own, whatever is in the kernel; `nft` reads the tables first.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from felix_shim.drivers.nftables_change import (
    AddRule,
    Commands,
    OnChain,
    OnElements,
    OnSet,
    Step,
    Verb,
)
from felix_shim.drivers.nftables_expressions import (
    KEY_LENGTHS,
    KEY_TYPES,
    Interval,
    NeedsNft,
    RuleWriter,
    interval,
    interval_elements,
)
from felix_shim.drivers.nftables_rules import TABLE, SetSpec
from felix_shim.policy import PolicySet
from libtortie.linux import nft_wire as wire
from libtortie.linux.nft_wire import Message, SetShape

_TYPE_BITS = 6


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one transaction, and of which step each is."""

    messages: tuple[Message, ...]
    origins: tuple[Step, ...]

    def chain_at(self, index: int | None) -> str:
        """The chain whose rule a message is of; empty when it is not of a rule."""
        step = self.origins[index] if index is not None else None
        return step.chain if isinstance(step, AddRule) else ""


def batch(steps: Iterable[Step], after: PolicySet, tag: str) -> Batch:
    """All steps; their rules look into the sets of `after`.

    Raises `NeedsNft`, also for what makes no sense: let `nft` find the words for it.
    """
    rules = RuleWriter(TABLE, after.sets, tag)
    try:
        pairs = [(message, step) for step in steps for message in _messages(step, rules)]
    except (ValueError, OverflowError, LookupError, OSError, struct.error) as error:
        raise NeedsNft(f"netlink messages cannot say this: {error}") from error
    return Batch(tuple(message for message, _ in pairs), tuple(step for _, step in pairs))


def _messages(step: Step, rules: RuleWriter) -> Iterator[Message]:
    match step:
        case OnSet(Verb.ADD, spec):
            yield wire.set_creation(spec.family, TABLE, spec.name, _shape(spec))
        case OnSet(_, spec):
            yield wire.set_deletion(spec.family, TABLE, spec.name)
        case OnElements(verb, spec, texts):
            change = wire.elements_creation if verb is Verb.ADD else wire.elements_deletion
            yield from change(spec.family, TABLE, spec.name, _elements(spec, texts))
        case OnChain(Verb.ADD, name):
            yield wire.chain_creation("inet", TABLE, name)
        case OnChain(Verb.FLUSH, name):
            yield wire.chain_emptying("inet", TABLE, name)
        case OnChain(_, name):
            yield wire.chain_deletion("inet", TABLE, name)
        case AddRule(chain, rule):
            yield from rules.messages(chain, rule)
        case Commands(lines):
            raise NeedsNft(f"no netlink messages for {lines[0]!r}")


def _shape(spec: SetSpec) -> SetShape:
    """A set's declaration. Of several fields, each takes whole words."""
    kind, length = 0, 0
    for one in spec.fields:
        kind = kind << _TYPE_BITS | KEY_TYPES[one]
        length += _padded(KEY_LENGTHS[one])
    if len(spec.fields) == 1:
        length = KEY_LENGTHS[spec.fields[0]]
    flags = (wire.INTERVAL if spec.interval else 0) | (wire.MAP if spec.verdicts else 0)
    return SetShape(kind, length, flags)


def _elements(spec: SetSpec, texts: Iterable[str]) -> Iterator[bytes]:
    """Elements as `nft` reads them; it sorts them, but the kernel takes them in any order."""
    if spec.interval and len(spec.fields) > 1:
        raise NeedsNft(f"no netlink messages for the networks of {spec.name}")
    if spec.interval:
        length = KEY_LENGTHS[spec.fields[0]]
        read = _ports if spec.fields[0] == "inet_service" else interval
        for text in texts:
            yield from interval_elements(read(text), length)
        return
    for text in texts:
        key, _, chain = text.partition(" : jump ")
        yield wire.element(_key(spec.fields, key), jump=chain)


def _ports(text: str) -> Interval:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _key(fields: tuple[str, ...], text: str) -> bytes:
    if len(fields) == 1:
        return _packed(fields[0], text)
    values = zip(fields, text.split(" . "), strict=True)
    return b"".join(_filled(_packed(one, value)) for one, value in values)


def _filled(value: bytes) -> bytes:
    return value + bytes(-len(value) % 4)


def _padded(length: int) -> int:
    return (length + 3) & ~3


def _ifname(text: str) -> bytes:
    return text.strip('"').encode().ljust(KEY_LENGTHS["ifname"], b"\0")


_PACKERS: dict[str, Callable[[str], bytes]] = {
    "ipv4_addr": lambda text: socket.inet_pton(socket.AF_INET, text),
    "ipv6_addr": lambda text: socket.inet_pton(socket.AF_INET6, text),
    "ether_addr": lambda text: bytes.fromhex(text.replace(":", "")),
    "inet_proto": lambda text: int(text).to_bytes(1, "big"),
    "inet_service": lambda text: int(text).to_bytes(2, "big"),
    "ifname": _ifname,
}


def _packed(field: str, text: str) -> bytes:
    """One field of a key."""
    value = _PACKERS[field](text)
    if len(value) != KEY_LENGTHS[field]:
        raise ValueError(f"{text!r} is no {field}")
    return value
