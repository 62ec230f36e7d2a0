"""What is in the sets that rules look into, kept up to date: one change costs what it changes.

A set is made of the items its selector selects. Two of them may have one address (the pods of a
VM on both sides of its migration do), so each element is counted. A set's elements are texts that
differ in the kernel: hosts, and networks that lie in no other network of the set; a host that
lies in one is left out.

Not thread-safe. Every change of a set makes a new frozen value of that set alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Generic, TypeVar

from felix_shim.label_index import LabelIndex, Labelled
from felix_shim.policy_compile import collapsed, halves
from felix_shim.rules import SetKey, SetKind
from libtortie.model.policy import IPNetwork, Item

I = TypeVar("I")  # noqa: E741  # the item's key
ALL = "all()"


@dataclass(frozen=True, slots=True)
class Elements:
    """A set's elements. `interval`: there are networks among them."""

    texts: frozenset[str] = frozenset()
    interval: bool = False


@dataclass(slots=True)
class _Counted:
    """Elements and how many items give each; `frozen` is dropped by a change."""

    hosts: Counter[str] = field(default_factory=Counter)
    nets: Counter[IPNetwork] = field(default_factory=Counter)
    frozen: Elements | None = None


@dataclass(slots=True)
class PolicySets(Generic[I]):
    """The sets in use, by their keys."""

    index: LabelIndex[I] = field(default_factory=LabelIndex)
    _items: dict[I, Item] = field(default_factory=dict)
    _keys: defaultdict[str, set[SetKey]] = field(default_factory=lambda: defaultdict(set))
    _sets: dict[SetKey, _Counted] = field(default_factory=dict)

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
            text = gone.selector or ALL
            self._keys[text].discard(gone)
            if not self._keys[text]:
                del self._keys[text]
                self.index.forget(text)
        for key in wanted - self._sets.keys():
            self._begin(key)

    def elements(self) -> dict[SetKey, Elements]:
        """All sets; one that has not changed is the same value as last time."""
        return {key: self._frozen(key, counted) for key, counted in self._sets.items()}

    def settle(self) -> None:
        """Count what the index says has changed."""
        for (text, key), selected in self.index.drain().items():
            self._count(text, self._items[key], 1 if selected else -1)

    # -- inside ------------------------------------------------------------------------------

    def _begin(self, key: SetKey) -> None:
        """A new set: filled from what its selector selects, which may be followed already."""
        text = key.selector or ALL
        if text not in self._keys:
            self.index.watch(text)
            self.settle()
        self._keys[text].add(key)
        counted = self._sets[key] = _Counted()
        for item in self.index.members(text):
            self._add(key, counted, self._items[item], +1)

    def _count(self, text: str, item: Item, difference: int) -> None:
        for key in self._keys.get(text, ()):
            self._add(key, self._sets[key], item, difference)

    def _add(self, key: SetKey, counted: _Counted, item: Item, difference: int) -> None:
        for net in item.nets:
            if net.version != key.version:
                continue
            if key.kind is SetKind.PORTS:
                for text in _ports(key, net, item):
                    _change(counted, counted.hosts, text, difference)
            elif net.prefixlen == net.max_prefixlen:
                _change(counted, counted.hosts, str(net.network_address), difference)
            else:
                _change(counted, counted.nets, net, difference)

    def _frozen(self, key: SetKey, counted: _Counted) -> Elements:
        if counted.frozen is None:
            nets = collapsed(counted.nets)
            hosts = frozenset(counted.hosts)
            if nets:
                hosts = frozenset(text for text in hosts if not _covered(text, nets))
            texts = hosts | frozenset(text for net in nets for text in halves(net))
            counted.frozen = Elements(texts, bool(nets))
        return counted.frozen


T = TypeVar("T")


def _change(counted: _Counted, counts: Counter[T], element: T, difference: int) -> None:
    """Count an element; only one that comes or goes changes the set."""
    before = counts[element]
    counts[element] = before + difference
    if counts[element] == 0:
        del counts[element]
    if (before == 0) is not (before + difference == 0):
        counted.frozen = None


def _ports(key: SetKey, net: IPNetwork, item: Item) -> Iterator[str]:
    for port in item.ports:
        if port.name in key.names and key.protocol in (0, port.protocol):
            yield f"{net.network_address} . {port.protocol} . {port.port}"


def _covered(text: str, nets: list[IPNetwork]) -> bool:
    """Whether a host is in one of the networks, which are in order and apart."""
    host = ip_network(text)
    number = int(host.network_address)
    low, high = 0, len(nets)
    while low < high:
        middle = (low + high) // 2
        if int(nets[middle].network_address) <= number:
            low = middle + 1
        else:
            high = middle
    return low > 0 and number <= int(nets[low - 1].broadcast_address)
