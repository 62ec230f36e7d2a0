"""What is in the sets that rules look into, kept up to date: one change costs what it changes.

A set is made of the items its selector selects. Two of them may have one address (the pods of a
VM on both sides of its migration do), so each element is counted. A set's elements are texts that
differ in the kernel: hosts, and networks that lie in no other network of the set; a host that
lies in one is left out.

Not thread-safe. Every change of a set makes a new frozen value of that set alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Generic, TypeVar

from felix_shim.label_index import LabelIndex, Labelled
from felix_shim.policy_compile import collapsed, halves
from felix_shim.rules import SetKey, SetKind
from felix_shim.snapshots import Snapshot, TextSet
from libtortie.model.policy import IPNetwork, Item

I = TypeVar("I")  # noqa: E741  # the item's key
ALL = "all()"
_NO_TEXTS = TextSet()


@dataclass(frozen=True, slots=True)
class Elements:
    """A set's elements. `interval`: there are networks among them, or ranges."""

    held: TextSet = _NO_TEXTS
    interval: bool = False

    @classmethod
    def of(cls, texts: Iterable[str], *, interval: bool = False) -> Elements:
        """These elements."""
        return cls(TextSet.of(texts), interval)

    @property
    def texts(self) -> frozenset[str]:
        """All of them; costs what there is."""
        return frozenset(self.held)


def literal(key: SetKey) -> Elements:
    """What is in a set whose key says it."""
    return Elements.of(key.selector.split(), interval=True)


@dataclass(slots=True)
class _Counted:
    """Hosts and networks, and how many items give each; what of it came or went since `frozen`.

    `ranges` are the networks that lie in no other, as numbers, in order.
    """

    hosts: Counter[str] = field(default_factory=Counter)
    nets: Counter[IPNetwork] = field(default_factory=Counter)
    turned: set[str] = field(default_factory=set)
    nets_turned: bool = True
    ranges: list[tuple[int, int]] = field(default_factory=list)
    frozen: Elements = field(default_factory=Elements)

    def count_host(self, text: str, difference: int) -> None:
        if _count(self.hosts, text, difference):
            self.turned.add(text)

    def count_net(self, net: IPNetwork, difference: int) -> None:
        self.nets_turned |= _count(self.nets, net, difference)

    def freeze(self) -> Elements:
        """What is in it now: costs what has turned, or, when that was a network, what there is."""
        if self.nets_turned:
            nets = collapsed(self.nets)
            self.ranges = [(int(net.network_address), int(net.broadcast_address)) for net in nets]
            hosts = (text for text in self.hosts if not self._covered(text))
            halved = (text for net in nets for text in halves(net))
            self.frozen = Elements.of((*hosts, *halved), interval=bool(nets))
        elif self.turned:
            gone = {text for text in self.turned if text not in self.hosts}
            come = [text for text in self.turned - gone if not self._covered(text)]
            self.frozen = Elements(self.frozen.held.next(come, gone), self.frozen.interval)
        self.turned, self.nets_turned = set(), False
        return self.frozen

    def _covered(self, text: str) -> bool:
        """Whether a host is in one of the networks."""
        if not self.ranges:
            return False
        number = int(ip_address(text))
        place = bisect_right(self.ranges, number, key=lambda one: one[0])
        return place > 0 and number <= self.ranges[place - 1][1]


@dataclass(slots=True)
class PolicySets(Generic[I]):
    """The sets in use, by their keys."""

    index: LabelIndex[I] = field(default_factory=LabelIndex)
    _items: dict[I, Item] = field(default_factory=dict)
    _keys: defaultdict[str, set[SetKey]] = field(default_factory=lambda: defaultdict(set))
    _sets: dict[SetKey, _Counted] = field(default_factory=dict)
    _turned: set[SetKey] = field(default_factory=set)
    _snapshot: Snapshot[SetKey, Elements] = field(default_factory=Snapshot)

    def put(self, key: I, item: Item) -> None:
        """An item is this now."""
        before = self._items.get(key)
        if before == item:
            return
        if before is not None and (before.nets, before.ports) != (item.nets, item.ports):
            self.settle()
            for text in self.index.selecting(key):
                self._count(text, before, -1)
                self._count(text, item, +1)
        self._items[key] = item
        self.index.put(key, Labelled(dict(item.labels), item.profiles))
        self.settle()

    def item(self, key: I) -> Item | None:
        """What an item is, if it is there."""
        return self._items.get(key)

    def remove(self, key: I) -> None:
        """An item is no more."""
        self.index.remove(key)
        self.settle()
        self._items.pop(key, None)

    def inherit(self, profile: str, labels: dict[str, str]) -> None:
        """A profile gives its items these labels."""
        self.index.inherit(profile, labels)
        self.settle()

    def use(self, wanted: frozenset[SetKey]) -> None:
        """Keep exactly these sets."""
        for gone in self._sets.keys() - wanted:
            del self._sets[gone]
            self._turned.add(gone)
            text = gone.selector or ALL
            self._keys[text].discard(gone)
            if not self._keys[text]:
                del self._keys[text]
                self.index.forget(text)
        for key in wanted - self._sets.keys():
            self._begin(key)

    def elements(self) -> Snapshot[SetKey, Elements]:
        """All sets; what has not changed is the same value as last time."""
        if self._turned:
            come = {key: self._sets[key].freeze() for key in self._turned if key in self._sets}
            self._snapshot = self._snapshot.next(come, self._turned - come.keys())
            self._turned = set()
        return self._snapshot

    def settle(self) -> None:
        """Count what the index says has changed."""
        for (text, key), selected in self.index.drain().items():
            self._count(text, self._items[key], 1 if selected else -1)

    # -- inside ------------------------------------------------------------------------------

    def _begin(self, key: SetKey) -> None:
        """A new set: filled from what its selector selects, which may be followed already."""
        if key.kind.literal:
            self._sets[key] = _Counted(nets_turned=False, frozen=literal(key))
            self._turned.add(key)
            return
        text = key.selector or ALL
        if text not in self._keys:
            self.index.watch(text)
            self.settle()
        self._keys[text].add(key)
        counted = self._sets[key] = _Counted()
        self._turned.add(key)
        for item in self.index.members(text):
            self._add(key, counted, self._items[item], +1)

    def _count(self, text: str, item: Item, difference: int) -> None:
        for key in self._keys.get(text, ()):
            self._add(key, self._sets[key], item, difference)

    def _add(self, key: SetKey, counted: _Counted, item: Item, difference: int) -> None:
        self._turned.add(key)
        for net in item.nets:
            if net.version != key.version:
                continue
            if key.has_ports:
                for text in _ports(key, net, item):
                    counted.count_host(text, difference)
            elif net.prefixlen == net.max_prefixlen:
                counted.count_host(str(net.network_address), difference)
            else:
                counted.count_net(net, difference)


T = TypeVar("T")


def _count(counts: Counter[T], element: T, difference: int) -> bool:
    """Count an element; whether that makes it come or go."""
    before = counts[element]
    counts[element] = before + difference
    if counts[element] == 0:
        del counts[element]
    return (before == 0) is not (before + difference == 0)


def _ports(key: SetKey, net: IPNetwork, item: Item) -> Iterator[str]:
    for port in item.ports:
        wanted = key.kind is SetKind.SERVICE_PORTS or port.name in key.names
        if wanted and key.protocol in (0, port.protocol):
            yield f"{net.network_address} . {port.protocol} . {port.port}"
