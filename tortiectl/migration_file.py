"""The file that carries a datastore's contents to another: calicoctl's form. Pure.

Three parts with `===` between them: resources as YAML lists, the ClusterInformation as JSON, and
IPAM as JSON, each record by its etcd path in the text that etcd would hold. The third part has the
history, too, in a section that calicoctl does not look at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from libtortie.access import parse_documents
from libtortie.datastore import gojson
from libtortie.datastore.codec import decode, encode
from libtortie.datastore.port import Record, Value
from libtortie.errors import InvalidInput, Malformed
from libtortie.model.history import Facts
from libtortie.model.ipam import Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.keys import Key, Kind, parse_path, path_of
from libtortie.model.resources import ClusterInformation, Resource, parse_resource
from tortiectl.output import Asked, Form, document, exported, streamed, wire_of

SEPARATOR = "==="
KINDS = (
    Kind.IP_POOL,
    Kind.BGP_PEER,
    Kind.TIER,
    Kind.GLOBAL_NETWORK_POLICY,
    Kind.STAGED_GLOBAL_NETWORK_POLICY,
    Kind.GLOBAL_NETWORK_SET,
    Kind.HOST_ENDPOINT,
    Kind.KUBE_CONTROLLERS_CONFIGURATION,
    Kind.NETWORK_POLICY,
    Kind.STAGED_NETWORK_POLICY,
    Kind.STAGED_KUBERNETES_NETWORK_POLICY,
    Kind.NETWORK_SET,
    Kind.NODE,
    Kind.BGP_CONFIGURATION,
    Kind.FELIX_CONFIGURATION,
    Kind.IP_RESERVATION,
    Kind.BGP_FILTER,
)
"""In calicoctl's order."""
VIEWS = (Kind.PROFILE, Kind.WORKLOAD_ENDPOINT)
"""What Kubernetes has as namespaces and pods; other datastores have it only if it is carried."""
_SECTIONS: tuple[tuple[str, type], ...] = (
    ("block_affinities", BlockAffinity),
    ("blocks", Block),
    ("handles", Handle),
)
_HISTORY = ("history", Facts)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file carries. `unread` names what cannot be read of the history, which is left out:
    a newer version's, perhaps."""

    resources: tuple[Resource, ...]
    cluster: ClusterInformation | None
    ipam: tuple[tuple[Key, Value], ...]
    history: tuple[tuple[Key, Value], ...] = ()
    unread: tuple[str, ...] = ()


def resources_text(kind: Kind, records: Iterable[Record]) -> Iterator[str]:
    """A kind's list, and the line that ends it."""
    wires = (exported(wire_of(record)) for record in records)
    yield from streamed(Asked(kind), wires, Form("yaml"))
    yield "---"


def cluster_text(record: Record | None) -> str:
    """The second part."""
    return "{}" if record is None else document(wire_of(record), "json")


def ipam_text(records: Iterable[Record]) -> Iterator[str]:
    """The third part, record by record; they come in the order of the sections, the history's
    last."""
    yield "{"
    section, config = "", "null"
    for record in records:
        known = (*_SECTIONS, _HISTORY)
        name = next((one for one, kind in known if isinstance(record.value, kind)), "config")
        text = json.dumps(
            {"Key": path_of(record.key), "Value": gojson.loads(encode(record.key, record.value)),
             "TTL": 0},
            ensure_ascii=False,
        )  # fmt: skip
        if name == "config":
            config = text
        elif name == section:
            yield f"    ,{text}"
        else:
            yield f'{"  ]," if section else ""}\n  "{name}": [\n     {text}'
            section = name
    yield f'{"  ]," if section else ""}\n  "config": {config}\n}}'


def parse(text: str, where: str) -> Contents:
    """What a file carries. Raises `InvalidInput` naming the part that is wrong."""
    parts = text.split(f"\n{SEPARATOR}\n")
    if len(parts) != 3:
        raise InvalidInput(
            f"{where}: want three parts with {SEPARATOR} between them, as `datastore migrate "
            f"export` writes them; there are {len(parts)}"
        )
    cluster = _cluster(_json(parts[1], f"{where}: the second part"), where)
    records = _json(parts[2], f"{where}: the third part")
    ipam = tuple(_ipam(records, where))
    unread: list[str] = []
    history = tuple(_section(records, *_HISTORY, where, unread.append))
    return Contents(tuple(_resources(parts[0], where)), cluster, ipam, history, tuple(unread))


def _resources(text: str, where: str) -> Iterator[Resource]:
    for found in parse_documents(text, where):
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise InvalidInput(f"{where}: the first part: not a list of resources")
        items = found.get("items")
        for item in items if isinstance(items, list) else [found]:
            yield _resource(item, where)


def _resource(item: Any, where: str) -> Resource:
    try:
        kind = Kind(str(item.get("kind"))) if isinstance(item, Mapping) else None
    except ValueError:
        kind = None
    if kind is None:
        raise InvalidInput(f"{where}: the first part: not a resource of a kind that is known")
    try:
        return parse_resource(kind, item)
    except Malformed as error:
        raise InvalidInput(f"{where}: {error}") from error


def _cluster(body: Any, where: str) -> ClusterInformation | None:
    if not isinstance(body, Mapping):
        raise InvalidInput(f"{where}: the second part: not an object")
    if not body:
        return None
    found = _resource(body, where)
    if not isinstance(found, ClusterInformation):
        raise InvalidInput(f"{where}: the second part: no ClusterInformation")
    return found


def _ipam(body: Any, where: str) -> Iterator[tuple[Key, Value]]:
    if not isinstance(body, Mapping):
        raise InvalidInput(f"{where}: the third part: not an object")
    for section, kind in (*_SECTIONS, ("config", IPAMConfig)):
        yield from _section(body, section, kind, where, _refuse)


def _refuse(problem: str) -> None:
    raise InvalidInput(problem)


def _section(
    body: Mapping[str, Any], section: str, kind: type, where: str, wrong: Callable[[str], None]
) -> Iterator[tuple[Key, Value]]:
    """A section's records; `wrong` is told what is none."""
    found = body.get(section) or []
    for place, item in enumerate(found if isinstance(found, list) else [found]):
        at = f"{where}: {section}.{place}"
        try:
            key = parse_path(str(item["Key"]))
            value = decode(key, gojson.dumps(item["Value"], floats=False))
        except (Malformed, TypeError, KeyError) as error:
            wrong(f"{at}: {error}")
            continue
        if isinstance(value, kind):
            yield key, value
        else:
            wrong(f"{at}: holds another kind of record")


def _json(text: str, where: str) -> Any:
    try:
        return gojson.loads(text.encode())
    except ValueError as error:
        raise InvalidInput(f"{where}: not JSON: {error}") from error
