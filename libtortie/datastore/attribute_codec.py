"""A block's attributes, who holds what, as Calico's JSON: most are the same time after time.

A block is written as a whole for each address that is taken or given back, so an attribute's text
is remembered: it depends on nothing but the attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from libtortie.datastore import gojson
from libtortie.datastore.wire_object import WireObject, with_extra
from libtortie.model.ipam import Attribute, Owner
from libtortie.model.times import rfc3339

_LONG = 1000
"""Characters above which a text is not remembered."""
_MOST = 4096
"""Texts that are remembered."""
_NOTHING: Mapping[str, Any] = {}
"""What most attributes have in two places: one for all of them."""
_texts: dict[int, tuple[Attribute, bytes]] = {}
"""By the attribute itself, which is kept, so that its `id` stays its own."""


def attribute_to_wire(attribute: Attribute) -> dict[str, Any]:
    """An attribute; what is empty is left out. ValueError for an owner that is no text."""
    wire: dict[str, Any] = {}
    if attribute.handle_id is not None:
        wire["handle_id"] = attribute.handle_id
    if attribute.active:
        wire["secondary"] = _owner_to_wire(attribute.active)
    if attribute.alternate:
        wire["alternateOwnerAttrs"] = _owner_to_wire(attribute.alternate)
    if attribute.released_at is not None:
        wire["releasedAt"] = rfc3339(attribute.released_at)
    return with_extra(wire, attribute.extra) if attribute.extra else wire


def attribute_text(attribute: Attribute) -> bytes:
    """The text of `attribute_to_wire`."""
    known = _texts.get(id(attribute))
    if known is not None:
        return known[1]
    text = gojson.dumps(attribute_to_wire(attribute), floats=False)
    if len(text) < _LONG:
        if len(_texts) >= _MOST:
            _texts.clear()
        _texts[id(attribute)] = (attribute, text)
    return text


def _owner_to_wire(owner: Owner) -> dict[str, str]:
    """Sorted by name. ValueError for what is no text."""
    if not _are_texts(owner):
        odd = next(name for name, value in owner.items() if not isinstance(value, str))
        raise ValueError(f"attributes: the owner's {odd!r} is {owner[odd]!r}, not a string")
    if isinstance(owner, dict) and sorted(owner) == list(owner):
        return owner
    return dict(sorted(owner.items()))


def attributes_from_wire(wire: WireObject) -> Iterator[Attribute]:
    """The attributes of a block, whose object this is. Raises `Malformed` naming the place."""
    for place, item in enumerate(wire.list("attributes")):
        yield _ordinary(item) or _attribute_from_wire(wire.inner("attributes", place, item))


def _ordinary(item: Any) -> Attribute | None:
    """An attribute of a handle and an owner and nothing else: most are, and this is quick."""
    if not isinstance(item, dict) or len(item) != 2:
        return None
    handle_id, owner = item.get("handle_id"), item.get("secondary")
    if not isinstance(handle_id, str) or not isinstance(owner, dict) or not _are_texts(owner):
        return None
    return Attribute(handle_id, owner, _NOTHING, None, _NOTHING)


def _attribute_from_wire(wire: WireObject) -> Attribute:
    return Attribute(
        wire.text("handle_id"),
        wire.text_map("secondary"),
        wire.text_map("alternateOwnerAttrs"),
        wire.time("releasedAt"),
        wire.rest(),
    )


def _are_texts(owner: Mapping[str, Any]) -> bool:
    try:
        "".join(owner.values())
    except TypeError:
        return False
    return True
