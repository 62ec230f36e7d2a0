"""Resources as text in the form asked for; pure.

JSON and YAML are stable: keys sorted, resources in the store's order, whole numbers without a
fraction. One resource that was asked for by name is an object, everything else is a list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from libtortie.datastore import gojson
from libtortie.datastore.port import Record
from libtortie.model.keys import Kind
from libtortie.model.resources import API_VERSION, Resource
from libtortie.wording import visible
from tortiectl.show_columns import chosen, rows_of
from tortiectl.text_tables import columns

FORMATS = ("ps", "wide", "yaml", "json", "name")
GROUP = "projectcalico.org"


def wire_of(record: Record) -> dict[str, Any]:
    """A resource's JSON form with the revision an update has to name."""
    assert isinstance(record.value, Resource)
    wire: dict[str, Any] = gojson.loads(gojson.dumps(record.value.to_wire()))
    wire["metadata"]["resourceVersion"] = record.revision
    return wire


def render(
    kind: Kind, wires: Sequence[dict[str, Any]], form: str, *, single: bool, all_namespaces: bool
) -> str:
    """Resources of one kind; `single`: one was asked for by its name."""
    if form == "name":
        names = (visible(wire["metadata"]["name"]) for wire in wires)
        return "\n".join(f"{kind.lower()}.{GROUP}/{name}" for name in names)
    if form in ("ps", "wide"):
        shown = chosen(kind, wide=form == "wide", all_namespaces=all_namespaces)
        return columns([column.heading for column in shown], rows_of(shown, wires))
    body: Any = {"apiVersion": API_VERSION, "kind": f"{kind}List", "items": list(wires)}
    return document(wires[0] if single else body, form)


def readable_json(body: Any, *, sort_keys: bool = False) -> str:
    """Indented JSON; letters stay letters, what a terminal would obey is escaped."""
    text = json.dumps(body, indent=2, sort_keys=sort_keys, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text
    )


def document(body: Any, form: str) -> str:
    """A JSON or YAML document without its last newline."""
    if form == "json":
        return readable_json(body, sort_keys=True)
    return yaml.safe_dump(body, sort_keys=True, allow_unicode=True, width=1 << 16).rstrip("\n")
