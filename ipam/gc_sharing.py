"""Equal texts of different records, kept once: a large cluster's say most things several times.

A pod's name, UID and container stand in its address's owner and in its endpoint, a node's name
with each of its addresses. Nothing is changed but which object says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from libtortie.model.ipam import Attribute, Block


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts met so far; it is given up with the reading it was made for."""

    _known: dict[str, str] = field(default_factory=dict)

    def one(self, text: str) -> str:
        """An equal text: the first that was met."""
        return self._known.setdefault(text, text)

    def block(self, block: Block) -> Block:
        """An equal block."""
        return replace(block, attributes=tuple(map(self._attribute, block.attributes)))

    def _attribute(self, attribute: Attribute) -> Attribute:
        return Attribute(
            attribute.handle_id and self.one(attribute.handle_id),
            self._owner(attribute.active),
            self._owner(attribute.alternate),
            attribute.released_at,
            attribute.extra,
        )

    def _owner(self, owner: Mapping[str, str]) -> Mapping[str, str]:
        return {key: self.one(value) for key, value in owner.items()} if owner else owner
