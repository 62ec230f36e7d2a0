"""Resources as text in the form asked for; pure.

JSON and YAML are stable: keys sorted, resources in the store's order, whole numbers without a
fraction. One resource that was asked for by name is an object, everything else is a list, which
is written item by item: nothing is held but the one that is being written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

import yaml

from libtortie.datastore import gojson
from libtortie.datastore.port import Record
from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind
from libtortie.model.resources import API_VERSION, Resource
from libtortie.wording import meant, visible
from tortiectl.jsonpath import Template
from tortiectl.show_columns import Column, chosen, known_columns, rows_of
from tortiectl.text_tables import columns

FORMS = ("ps", "wide", "yaml", "json", "name")
WITH_TEXT = ("custom-columns", "jsonpath", "jsonpath-as-json")
FROM_FILE = {f"{form}-file": form for form in WITH_TEXT[:2]}
GROUP = "projectcalico.org"
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """A form of output, and what belongs to it (a template, columns)."""

    name: str
    text: str = ""

    @property
    def streams(self) -> bool:
        """Whether a list is written item by item."""
        return self.name in ("json", "yaml")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: `single` one resource by its name."""

    kind: Kind
    single: bool = False
    all_namespaces: bool = False


def parse_form(text: str) -> Form:
    """The form that `-o` names; files are read by who asks. Raises `InvalidInput`."""
    name, equals, rest = text.partition("=")
    if name.startswith("go-template"):
        raise InvalidInput(
            f"-o {name}: templates are kubectl's JSONPath here: -o jsonpath='{{.metadata.name}}'"
        )
    if name in FORMS and not equals:
        return Form(name)
    if name in (*WITH_TEXT, *FROM_FILE):
        if not rest:
            raise InvalidInput(f"-o {name}: want -o {name}=...")
        return Form(name, rest)
    known = (*FORMS, *(f"{one}=..." for one in (*WITH_TEXT, *FROM_FILE)))
    hint = meant(name, (*FORMS, *WITH_TEXT)) or f"; known are {', '.join(known)}"
    raise InvalidInput(f"-o {text}: no such form of output{hint}")


def wire_of(record: Record) -> Wire:
    """A resource's JSON form with the revision an update has to name."""
    assert isinstance(record.value, Resource)
    wire: Wire = gojson.integral(record.value.to_wire())
    wire["metadata"]["resourceVersion"] = record.revision
    return wire


def exported(wire: Wire) -> Wire:
    """A resource as it would be created elsewhere: without what this cluster gave it."""
    own = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
    meta = {key: value for key, value in wire["metadata"].items() if key not in own}
    return {**{key: value for key, value in wire.items() if key != "status"}, "metadata": meta}


def render(asked: Asked, wires: Sequence[Wire], form: Form) -> str:
    """All of it as one text, without its last newline."""
    if form.streams:
        return "\n".join(streamed(asked, wires, form))
    if form.name == "name":
        names = (visible(wire["metadata"]["name"]) for wire in wires)
        return "\n".join(f"{asked.kind.lower()}.{GROUP}/{name}" for name in names)
    if form.name in ("jsonpath", "jsonpath-as-json"):
        return _by_path(asked, wires, form)
    shown = (
        _custom(asked.kind, form.text)
        if form.name == "custom-columns"
        else chosen(asked.kind, wide=form.name == "wide", all_namespaces=asked.all_namespaces)
    )
    return columns([column.heading for column in shown], rows_of(shown, wires))


def streamed(asked: Asked, wires: Iterable[Wire], form: Form) -> Iterator[str]:
    """JSON or YAML in pieces, each without its last newline."""
    if asked.single:
        yield from (document(wire, form.name) for wire in wires)
        return
    pieces = _json_list if form.name == "json" else _yaml_list
    yield from pieces(f"{asked.kind}List", wires)


def _json_list(kind: str, wires: Iterable[Wire]) -> Iterator[str]:
    """As `json.dumps(indent=2, sort_keys=True)` of the whole list would be."""
    yield "{\n" + f'  "apiVersion": "{API_VERSION}",'
    held = ""
    for wire in wires:
        if held:
            yield held + ","
        else:
            yield '  "items": ['
        held = "    " + readable_json(wire, sort_keys=True, margin="    ")
    yield f"{held}\n  ]," if held else '  "items": [],'
    yield f'  "kind": "{kind}"' + "\n}"


def _yaml_list(kind: str, wires: Iterable[Wire]) -> Iterator[str]:
    yield f"apiVersion: {API_VERSION}"
    empty = True
    for wire in wires:
        if empty:
            yield "items:"
            empty = False
        yield document([wire], "yaml")
    if empty:
        yield "items: []"
    yield f"kind: {kind}"


def _by_path(asked: Asked, wires: Sequence[Wire], form: Form) -> str:
    text = form.text if "{" in form.text else "{" + form.text + "}"
    template = Template(text)
    body = {"apiVersion": API_VERSION, "kind": f"{asked.kind}List", "items": list(wires)}
    root = wires[0] if asked.single and wires else body
    if form.name == "jsonpath-as-json":
        return readable_json(template.values(root))
    return visible(template.render(root), keep="\n\t")


def _custom(kind: Kind, text: str) -> tuple[Column, ...]:
    """Columns by calicoctl's headings (`NAME,CIDR`), or by kubectl's pairs (`NAME:.metadata.name`).

    Raises `InvalidInput` naming the columns that there are.
    """
    known = {column.heading: column for column in known_columns(kind)}
    found = []
    for part in text.split(","):
        heading, colon, path = part.strip().partition(":")
        if colon:
            plain = path.strip("{}").removeprefix(".")
            found.append(Column(heading.upper(), plain, "<none>", Template("{." + plain + "}")))
        elif heading.upper() in known:
            found.append(known[heading.upper()])
        else:
            hint = meant(heading, known) or f"; known are {', '.join(known)}, or HEADING:.path"
            raise InvalidInput(f"-o custom-columns: {kind} has no column {heading!r}{hint}")
    return tuple(found)


def readable_json(body: Any, *, sort_keys: bool = False, margin: str = "") -> str:
    """Indented JSON; letters stay letters, what a terminal would obey is escaped.

    As `json.dumps(indent=2, ensure_ascii=False)`, whose own indenting takes three times as long.
    `margin` stands before every line but the first.
    """
    text = _indented(body, "\n" + margin, sort_keys)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text
    )


def _indented(value: Any, line: str, sort_keys: bool) -> str:
    """A value's text; `line` ends a line and begins the next where the value stands."""
    if isinstance(value, str):
        return encode_basestring(value)
    inner = line + "  "
    if isinstance(value, dict) and value:
        fields = [
            f"{_quoted(key)}: "
            f"{encode_basestring(one) if type(one) is str else _indented(one, inner, sort_keys)}"
            for key, one in (sorted(value.items()) if sort_keys else value.items())
        ]
        return f"{{{inner}{(',' + inner).join(fields)}{line}}}"
    if isinstance(value, list | tuple) and value:
        items = [_indented(item, inner, sort_keys) for item in value]
        return f"[{inner}{(',' + inner).join(items)}{line}]"
    return json.dumps(value)


@lru_cache(maxsize=1024)
def _quoted(key: Any) -> str:
    """A field's name; those of thousands of resources are the same few."""
    return encode_basestring(str(key))


def document(body: Any, form: str) -> str:
    """A JSON or YAML document without its last newline."""
    if form == "json":
        return readable_json(body, sort_keys=True)
    dumped: str = yaml.dump(
        body,
        Dumper=_DUMPER,
        sort_keys=True,
        allow_unicode=True,
        width=1 << 16,
        default_flow_style=False,
    )
    return dumped.rstrip("\n")
