"""YAML as kubectl, calicoctl and Go read it, where PyYAML reads something else.

What is written without quotes is text here unless Go, too, sees a number in it: `10:20` is a range
of ports and not 620, `52:54:00:12:34:56` a MAC address, `1:2:3:4:5:6:7:8` an IPv6 address,
`63400:30` a BGP community, `2020-01-01` a label's value, `=` a sign. And as Go's reader it refuses
what aliases make endless or huge: a few lines can stand for more than there is memory or time.
Everything in this product that reads YAML reads it with this loader.
"""

from __future__ import annotations

from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_NEVER = frozenset({f"{_TAG}timestamp", f"{_TAG}value"})
MOST_ALIASED = 1_000_000
"""Most values that a document with aliases may stand for."""
_NUMBERS = frozenset({f"{_TAG}int", f"{_TAG}float"})


class GoLoader(yaml.SafeLoader):
    """PyYAML's safe loader without times, signs, numbers to the base 60, and excessive aliases."""

    _aliased = False

    def compose_document(self) -> yaml.Node | None:
        """As the base class; raises `ComposerError` for aliases that stand for too much."""
        self._aliased = False
        node = super().compose_document()
        if node is not None and self._aliased and _size(node, {}) > MOST_ALIASED:
            raise yaml.composer.ComposerError(None, None, "excessive aliases", node.start_mark)
        return node

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """As the base class."""
        self._aliased |= self.check_event(yaml.AliasEvent)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """As the base class; raises `ConstructorError` for a scalar that its type cannot be."""
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, str):
                value.encode()  # an escape can make half a surrogate pair
        except (ValueError, KeyError, AttributeError, OverflowError) as error:
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"not a valid {kind}", node.start_mark
            ) from error
        return value

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """As the base class: the tag of a node."""
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]  # types-PyYAML leaves it untyped
        if kind is not yaml.ScalarNode or not implicit[0]:
            return tag
        if tag in _NEVER or (tag in _NUMBERS and ":" in value):
            return f"{_TAG}str"
        return tag


def _size(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """How many values a node stands for; more than any bound for one that is part of itself."""
    if node not in known:
        known[node] = MOST_ALIASED + 1  # until it is known, so that what is in itself is huge
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        inner = (one for part in parts for one in (part if isinstance(part, tuple) else (part,)))
        known[node] = 1 + sum(_size(one, known) for one in inner)
    return known[node]


def load(text: str | bytes) -> Any:
    """The only document of a text, None for an empty one. Raises `yaml.YAMLError`."""
    documents = load_all(text)
    if len(documents) > 1:
        raise yaml.MarkedYAMLError(problem="expected a single document")
    return documents[0] if documents else None


def load_all(text: str | bytes, loader: type[GoLoader] = GoLoader) -> list[Any]:
    """Its documents. Raises `yaml.YAMLError`, also for what Python cannot hold."""
    try:
        return list(yaml.load_all(text, Loader=loader))
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem="nested too deeply") from error
