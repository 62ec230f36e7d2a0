"""Kubernetes' protobuf bodies as the JSON they stand for, for the kinds kubectl sends that way.

An envelope (four magic bytes, then apiVersion, kind and the object) around proto2 messages whose
field numbers are fixed by Kubernetes' API. Answers are always JSON, which every client takes.
Sources: "Kubernetes API Concepts", protobuf encoding; protobuf's "Encoding"; k8s.io/api. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lab.apiserver.errors import Json, bad_request, unknown_format

MEDIA = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_DEEPEST = 32
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `type` is string, bytes, int, bool, time, a message's table, or for a map its
    values' type."""

    name: str
    type: str | Message
    repeated: bool = False
    map: bool = False


Message = Mapping[int, Field]


def _one(name: str, of: str | Message = "string") -> Field:
    return Field(name, of)


def _many(name: str, of: str | Message = "string") -> Field:
    return Field(name, of, repeated=True)


def _map(name: str, of: str | Message = "string") -> Field:
    return Field(name, of, map=True)


_OWNER: Message = {
    1: _one("kind"),
    3: _one("name"),
    4: _one("uid"),
    5: _one("apiVersion"),
    6: _one("controller", "bool"),
    7: _one("blockOwnerDeletion", "bool"),
}
_META: Message = {
    1: _one("name"),
    2: _one("generateName"),
    3: _one("namespace"),
    5: _one("uid"),
    6: _one("resourceVersion"),
    7: _one("generation", "int"),
    8: _one("creationTimestamp", "time"),
    9: _one("deletionTimestamp", "time"),
    10: _one("deletionGracePeriodSeconds", "int"),
    11: _map("labels"),
    12: _map("annotations"),
    13: _many("ownerReferences", _OWNER),
    14: _many("finalizers"),
}
_EXPRESSION: Message = {1: _one("key"), 2: _one("operator"), 3: _many("values")}
_SELECTOR: Message = {1: _map("matchLabels"), 2: _many("matchExpressions", _EXPRESSION)}
_RULE: Message = {
    1: _many("verbs"),
    2: _many("apiGroups"),
    3: _many("resources"),
    4: _many("resourceNames"),
    5: _many("nonResourceURLs"),
}
_SUBJECT: Message = {1: _one("kind"), 2: _one("apiGroup"), 3: _one("name"), 4: _one("namespace")}
_ROLE_REF: Message = {1: _one("apiGroup"), 2: _one("kind"), 3: _one("name")}
_ASKED: Message = {
    1: _one("namespace"),
    2: _one("verb"),
    3: _one("group"),
    4: _one("version"),
    5: _one("resource"),
    6: _one("subresource"),
    7: _one("name"),
}
_ACCESS: Message = {
    1: _one("resourceAttributes", _ASKED),
    2: _one("nonResourceAttributes", {1: _one("path"), 2: _one("verb")}),
}
_DELETE: Message = {
    1: _one("gracePeriodSeconds", "int"),
    2: _one("preconditions", {1: _one("uid"), 2: _one("resourceVersion")}),
    3: _one("orphanDependents", "bool"),
    4: _one("propagationPolicy"),
    5: _many("dryRun"),
}
_OF_META = _one("metadata", _META)
_REFERENCE: Message = {1: _one("name")}
_TYPED: Message = {1: _OF_META, 2: _many("subjects", _SUBJECT), 3: _one("roleRef", _ROLE_REF)}

MESSAGES: Mapping[tuple[str, str], Message] = {
    ("v1", "Namespace"): {
        1: _OF_META,
        2: _one("spec", {1: _many("finalizers")}),
        3: _one("status", {1: _one("phase")}),
    },
    ("v1", "ConfigMap"): {
        1: _OF_META,
        2: _map("data"),
        3: _map("binaryData", "bytes"),
        4: _one("immutable", "bool"),
    },
    ("v1", "Secret"): {
        1: _OF_META,
        2: _map("data", "bytes"),
        3: _one("type"),
        4: _map("stringData"),
        5: _one("immutable", "bool"),
    },
    ("v1", "ServiceAccount"): {
        1: _OF_META,
        3: _many("imagePullSecrets", _REFERENCE),
        4: _one("automountServiceAccountToken", "bool"),
    },
    ("v1", "DeleteOptions"): _DELETE,
    ("policy/v1", "Eviction"): {1: _OF_META, 2: _one("deleteOptions", _DELETE)},
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): {
        1: _OF_META,
        2: _many("rules", _RULE),
        3: _one("aggregationRule", {1: _many("clusterRoleSelectors", _SELECTOR)}),
    },
    ("rbac.authorization.k8s.io/v1", "Role"): {1: _OF_META, 2: _many("rules", _RULE)},
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _TYPED,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _TYPED,
    ("authentication.k8s.io/v1", "SelfSubjectReview"): {1: _OF_META},
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): {1: _OF_META, 2: _one("spec", _ACCESS)},
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): {
        1: _OF_META,
        2: _one("spec", {1: _one("namespace")}),
    },
    ("authorization.k8s.io/v1", "SubjectAccessReview"): {
        1: _OF_META,
        2: _one("spec", {**_ACCESS, 3: _one("user"), 4: _many("groups")}),
    },
}


def decode(raw: bytes) -> Json:
    """The object in an envelope. Raises 400, and 415 for a kind without a table."""
    if not raw.startswith(_MAGIC):
        raise bad_request("the body is not Kubernetes' protobuf")
    envelope = dict(_fields(memoryview(raw)[len(_MAGIC) :]))
    names = {1: _one("apiVersion"), 2: _one("kind")}
    about = _message(names, _piece(envelope.get(1, b"")), 1)
    key = (about.get("apiVersion", ""), about.get("kind", ""))
    message = MESSAGES.get(key)
    if message is None:
        raise unknown_format(f"{MEDIA} of {key[0]} {key[1]}", ["application/json"])
    found = _message(message, _piece(envelope.get(2, b"")), 0)
    return {"apiVersion": key[0], "kind": key[1], **found}


def _message(table: Message, data: memoryview, depth: int) -> Json:
    """A message as JSON. Go writes empty texts and messages too: they mean absent."""
    if depth > _DEEPEST:
        raise bad_request("the body is nested too deeply")
    result: Json = {}
    for number, wire in _fields(data):
        field = table.get(number)
        if field is None:
            continue
        if field.map:
            pair = dict(_fields(_piece(wire)))
            key = _value("string", pair.get(1, b""), depth)
            result.setdefault(field.name, {})[key] = _value(field.type, pair.get(2, b""), depth)
            continue
        value = _value(field.type, wire, depth)
        if field.repeated:
            result.setdefault(field.name, []).append(value)
        elif value not in ("", {}, None):
            result[field.name] = value
    return result


def _value(of: str | Message, wire: int | bytes | memoryview, depth: int) -> Any:
    if not isinstance(of, str):
        return _message(of, _piece(wire), depth + 1)
    if of in ("int", "bool"):
        if not isinstance(wire, int):
            raise bad_request("a number is not one")
        return bool(wire) if of == "bool" else wire - (1 << 64) if wire >= 1 << 63 else wire
    piece = bytes(_piece(wire))
    if of == "bytes":
        return base64.b64encode(piece).decode()
    if of == "time":
        return _time(memoryview(piece))
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        raise bad_request("a text is not UTF-8") from error


def _time(data: memoryview) -> str | None:
    """A Time message (seconds since 1970, nanoseconds); None for an empty one."""
    seconds = dict(_fields(data)).get(1)
    if not isinstance(seconds, int):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError) as error:
        raise bad_request("a time is out of range") from error


def _piece(wire: int | bytes | memoryview) -> memoryview:
    if isinstance(wire, int):
        raise bad_request("a number where a message or text belongs")
    return memoryview(wire)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values as they stand on the wire. Raises 400."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise bad_request(f"protobuf wire type {kind}")
        if position + size > len(data):
            raise bad_request("the body is cut short")
        yield number, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), position
    raise bad_request("a number is cut short")
