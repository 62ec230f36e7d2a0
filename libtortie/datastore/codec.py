"""Values to and from the exact bytes Calico stores in etcd.

`encode` and `decode` are the only way bytes enter or leave a store that keeps paths (memory,
SQLite, etcd). A golden test holds every kind to Calico's own text. What a value does not
promise is refused in both directions: `InvalidInput` for a value we must not store,
`Malformed`, naming path and field, for bytes we cannot trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libtortie.datastore import gojson
from libtortie.datastore.ipam_codec import (
    affinity_from_wire,
    affinity_to_wire,
    block_from_wire,
    block_to_text,
    config_from_wire,
    config_to_wire,
    handle_from_wire,
    handle_to_text,
    is_plain,
)
from libtortie.datastore.port import Value
from libtortie.errors import InvalidInput, Malformed
from libtortie.model.ipam import Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.keys import (
    NAMED_IN_ANNOTATION,
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    Key,
    ResourceKey,
    parse_path,
    path_of,
)
from libtortie.model.resources import Resource, parse_resource

NAME_ANNOTATION = "projectcalico.org/metadata"
"""Calico writes a policy's name into it on every write and takes it out on every read."""

_STORE_OWNED = ("resourceVersion", "selfLink")


def name_of(path: str) -> bytes:
    """The path's bytes. `InvalidInput` for a path that is no text (lone surrogates)."""
    try:
        return path.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{path!r} cannot be stored: {error}") from error


def encode(key: Key, value: Value) -> bytes:
    """The bytes to store. `InvalidInput` when the value is not what the key names."""
    path = path_of(key)
    if not isinstance(key, BlockKey):  # a CIDR holds no text that could go wrong
        name_of(path)
        _require_storable(key, path)
    try:
        return _to_text(key, value)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{path}: nested too deeply") from error


def as_read(key: Key, value: Value, data: bytes) -> Value:
    """What `decode` makes of the bytes of a value: without decoding where it is that very value."""
    if not isinstance(value, Resource) and is_plain(value) and data.isascii():
        return value
    return decode(key, data)


def decode(key: Key, data: bytes) -> Value:
    """The value stored at a key. `Malformed`, naming the path and where there is one the field."""
    path = path_of(key)
    if not data and isinstance(key, AffinityKey):
        data = b"{}"  # what releases before v3 left behind
    try:
        wire = gojson.loads(data)
    except ValueError as error:
        raise Malformed(f"{path}: not JSON: {error}") from error
    if not isinstance(wire, dict):
        raise Malformed(f"{path}: not a JSON object")
    match key:
        case ResourceKey():
            return _resource_from_wire(path, key, wire)
        case BlockKey(cidr):
            return block_from_wire(path, cidr, wire)
        case AffinityKey():
            return affinity_from_wire(path, wire)
        case HandleKey():
            return handle_from_wire(path, wire)
        case IPAMConfigKey():
            return config_from_wire(path, wire)


def _require_storable(key: Key, path: str) -> None:
    if isinstance(key, HandleKey) and not path.endswith("/"):
        return  # any other id makes a path of its own: told at once
    try:
        parse_path(path)
    except Malformed as error:
        raise InvalidInput(f"{key} cannot be stored: {error}") from error


def _to_text(key: Key, value: Value) -> bytes:
    match key, value:
        case HandleKey(), Handle():
            return handle_to_text(value)
        case BlockKey(cidr), Block():
            if value.cidr != cidr:
                raise ValueError(f"the value is block {value.cidr}")
            return block_to_text(value)
        case AffinityKey(), BlockAffinity():
            return gojson.dumps(affinity_to_wire(value), floats=False)
        case ResourceKey(), Resource():
            return gojson.dumps(_resource_to_wire(key, value))
        case IPAMConfigKey(), IPAMConfig():
            return gojson.dumps(config_to_wire(value), floats=False)
    raise ValueError(f"a {type(value).__name__} is not stored under a {type(key).__name__}")


def _resource_to_wire(key: ResourceKey, value: Resource) -> dict[str, Any]:
    if value.key != key:
        raise ValueError(f"the value is {value.kind} {path_of(value.key)}")
    metadata = value.metadata
    if key.kind in NAMED_IN_ANNOTATION:
        named = gojson.dumps({"name": key.name}).decode()
        annotations = {**metadata.annotations, NAME_ANNOTATION: named}
        metadata = metadata.model_copy(update={"annotations": annotations})
    wire = value.to_wire() | {"metadata": metadata.to_wire()}
    for name in _STORE_OWNED:
        wire["metadata"].pop(name, None)
    return wire


def _resource_from_wire(path: str, key: ResourceKey, wire: dict[str, Any]) -> Resource:
    metadata = wire.get("metadata")
    if not isinstance(metadata, dict):
        raise Malformed(f"{path}: metadata: not an object")
    for name in _STORE_OWNED:
        metadata.pop(name, None)
    if key.kind in NAMED_IN_ANNOTATION:
        _restore_policy_name(path, metadata)
    try:
        value = parse_resource(key.kind, wire)
    except Malformed as error:
        raise Malformed(f"{path}: {error}") from error
    stored = (value.metadata.name, value.metadata.namespace if key.kind.namespaced else "")
    if key.kind not in NAMED_IN_ANNOTATION and stored != (key.name, key.namespace):
        raise Malformed(f"{path}: metadata.name: the value calls itself {'/'.join(stored)!r}")
    return value


def _restore_policy_name(path: str, metadata: dict[str, Any]) -> None:
    annotations = metadata.get("annotations")
    if not isinstance(annotations, dict) or NAME_ANNOTATION not in annotations:
        return
    field = f"{path}: metadata.annotations[{NAME_ANNOTATION}]"
    try:
        named = gojson.loads(str(annotations.pop(NAME_ANNOTATION)).encode())
    except ValueError as error:
        raise Malformed(f"{field}: not JSON: {error}") from error
    if not isinstance(named, Mapping):
        raise Malformed(f"{field}: not a JSON object")
    if isinstance(named.get("name"), str) and named["name"]:
        metadata["name"] = named["name"]
