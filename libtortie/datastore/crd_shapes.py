"""How each kind of value looks as an object of Calico's CRDs: one shape a kind. Pure.

A shape says where a value is, what its object is, and what an object means. The effects on
objects are `kubernetes_crds`; kinds that are no CRDs have shapes in `crd_node`, `crd_endpoint`
and `crd_profile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from libtortie.datastore import crd_ipam, crd_metadata
from libtortie.datastore.crd_names import (
    DEFAULT,
    Group,
    Json,
    Place,
    metadata_of,
    place_text,
    require_name,
    resource_api,
)
from libtortie.datastore.port import Value
from libtortie.errors import InvalidInput, Malformed
from libtortie.kube.objects import Api
from libtortie.model.ipam import IPAMConfig
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    History,
    HistoryKey,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
    Resources,
    Scope,
)
from libtortie.model.resources import API_VERSION, Resource, parse_resource

_LEGACY_POLICY = "default."
"""Prefix of a default-tier policy's object name before Calico v3.32."""


@dataclass(frozen=True, slots=True)
class Query:
    """One list (or watch) request. Of what it finds, a scope may still want only a part."""

    api: Api
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


class Shape(Protocol):
    """One kind of value in Kubernetes."""

    def place(self, key: Key) -> Place:
        """Where a value is. `InvalidInput` where none can be."""
        ...

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """The requests that find everything of a scope."""
        ...

    def key(self, body: Json) -> Key | None:
        """Which value an object is; None when it is none. Raises `Malformed`."""
        ...

    def value(self, key: Key, body: Json) -> Value:
        """The value of an object that is `key`. Raises `Malformed`."""
        ...


class CrdShape(Shape, Protocol):
    """A kind of value that is a whole object of a CRD."""

    def body(self, key: Key, value: Value, old: Json | None, now: str) -> Json:
        """The object to store, without a resourceVersion; `old` is the one it replaces, if known.

        `now` in RFC 3339. Raises `InvalidInput` when the value is not what the key names.
        """
        ...


def in_scope(scope: Scope, key: Key) -> bool:
    """Whether a key belongs to a scope."""
    match scope, key:
        case Resources(kind, namespace), ResourceKey(found, _, inside):
            return found is kind and namespace in ("", inside)
        case Blocks(version), BlockKey(cidr):
            return cidr.version == version
        case Affinities(node), AffinityKey(owner, _, kind_of_affinity):
            return kind_of_affinity == "host" and node in ("", owner)
        case Handles(), HandleKey():
            return True
        case History(lane), HistoryKey(found_lane, _):
            return lane == found_lane
        case _:
            return scope == key


def where_of(api: Api, body: Json) -> str:
    """What errors call an object."""
    meta = metadata_of(body)
    return place_text(api, str(meta.get("name")), str(meta.get("namespace") or ""))


def spec_of(where: str, body: Json) -> Json:
    """An object's spec. Raises `Malformed`."""
    spec = body.get("spec")
    if not isinstance(spec, dict):
        raise Malformed(f"{where}: spec: not an object")
    return spec


def mismatch(key: Key, value: Value) -> InvalidInput:
    """The refusal of a value that its key does not name."""
    return InvalidInput(f"a {type(value).__name__} is not stored under {key}")


@dataclass(frozen=True, slots=True)
class ConfigShape:
    """The IPAM configuration, as allocation reads it.

    `IPAMConfigKey` and the IPAMConfiguration resource `default` are two views of one object.
    """

    group: Group

    def place(self, key: Key) -> Place:
        """See `Shape`."""
        return Place(resource_api(self.group, Kind.IPAM_CONFIGURATION), DEFAULT)

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """The one object."""
        api = self.place(IPAMConfigKey()).api
        return (Query(api, field_selector=f"metadata.name={DEFAULT}"),)

    def key(self, body: Json) -> Key | None:
        """See `Shape`."""
        return IPAMConfigKey() if metadata_of(body).get("name") == DEFAULT else None

    def value(self, key: Key, body: Json) -> Value:
        """See `Shape`."""
        where = str(self.place(key))
        return crd_ipam.config_from_spec(where, spec_of(where, body))

    def body(self, key: Key, value: Value, old: Json | None, now: str) -> Json:
        """See `CrdShape`. The metadata that a user gave the object stays."""
        if not isinstance(value, IPAMConfig):
            raise mismatch(key, value)
        try:
            spec = crd_ipam.config_to_spec(value)
        except ValueError as error:
            raise InvalidInput(f"{self.place(key)}: {error}") from error
        meta: Json = {}
        if old is not None:
            meta = crd_metadata.shown(self.group, str(self.place(key)), old)
        return crd_object(self.place(key), spec, meta, old, group=self.group)


@dataclass(frozen=True, slots=True)
class ResourceShape:
    """A resource of projectcalico.org/v3 that is a CRD."""

    group: Group
    kind: Kind

    @property
    def api(self) -> Api:
        """Where it is served."""
        return resource_api(self.group, self.kind)

    def place(self, key: Key) -> Place:
        """See `Shape`."""
        assert isinstance(key, ResourceKey)
        return require_name(
            Place(self.api, key.name, key.namespace if self.kind.namespaced else "")
        )

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """The kind's objects, of a namespace, or the one (which may have either of two names)."""
        if isinstance(scope, ResourceKey) and self.has_former_names:
            return (Query(self.api, scope.namespace),)
        if isinstance(scope, ResourceKey):
            return (Query(self.api, scope.namespace, "", f"metadata.name={scope.name}"),)
        return (Query(self.api, scope.namespace if isinstance(scope, Resources) else ""),)

    def key(self, body: Json) -> Key:
        """See `Shape`."""
        namespace = str(metadata_of(body).get("namespace") or "")
        return ResourceKey(self.kind, self.name_of(body), namespace)

    def value(self, key: Key, body: Json) -> Value:
        """See `Shape`."""
        assert isinstance(key, ResourceKey)
        where = where_of(self.api, body)
        meta = crd_metadata.shown(self.group, where, body) | {"name": key.name}
        wire = {k: v for k, v in body.items() if k not in ("kind", "apiVersion", "metadata")}
        if self.kind is Kind.IPAM_CONFIGURATION and isinstance(wire.get("spec"), dict):
            wire["spec"] = {"autoAllocateBlocks": False, **wire["spec"]}  # absent: Go's false
        wire = {"kind": self.kind.value, "apiVersion": API_VERSION, "metadata": meta, **wire}
        try:
            return parse_resource(self.kind, wire)
        except Malformed as error:
            raise Malformed(f"{where}: {error}") from error

    def body(self, key: Key, value: Value, old: Json | None, now: str) -> Json:
        """See `CrdShape`. A value without a time of creation has the old one's, or `now`."""
        if not isinstance(value, Resource) or value.key != key or not isinstance(key, ResourceKey):
            raise mismatch(key, value)
        wire = value.to_wire()
        meta = wire.pop("metadata")
        wire = {k: v for k, v in wire.items() if k not in ("kind", "apiVersion")}
        if self.group is Group.V1:
            place = self.place(key)
            before = crd_metadata.shown(self.group, str(place), old) if old is not None else {}
            created = value.metadata.creation_timestamp or before.get("creationTimestamp") or now
            marked = value.metadata.model_copy(update={"creation_timestamp": created})
            meta = marked.to_wire()
        spec, place = wire.pop("spec"), self.place(key)
        if old is not None and metadata_of(old).get("name") not in (None, place.name):
            place = self.former_place(key)
            if self.name_of({"metadata": {"name": place.name}, "spec": spec}) == key.name:
                return crd_object(place, spec, meta, old, group=self.group) | wire  # no name told
        return crd_object(place, spec, meta, old, group=self.group, kind=self.kind) | wire

    @property
    def has_former_names(self) -> bool:
        """Whether older releases kept some of these objects under other names."""
        return self.group is Group.V1 and self.kind in crd_metadata.POLICIES

    def former_place(self, key: Key) -> Place:
        """Where an older release keeps it. `InvalidInput` where none can be."""
        place = self.place(key)
        return require_name(replace(place, name=_LEGACY_POLICY + place.name))

    def is_former(self, body: Json) -> bool:
        """Whether an object has the name that an older release gave it."""
        return self.has_former_names and self.name_of(body) != metadata_of(body).get("name")

    def name_of(self, body: Json) -> str:
        """The name of the resource that an object is. Raises `Malformed`."""
        name = str(metadata_of(body).get("name") or "")
        if not self.has_former_names:
            return name
        told = crd_metadata.told_name(where_of(self.api, body), body)
        spec = body.get("spec")
        tier = spec.get("tier") if isinstance(spec, Mapping) else ""
        if not told and name.startswith(_LEGACY_POLICY) and tier in (None, "", DEFAULT):
            return name.removeprefix(_LEGACY_POLICY)
        return told or name


def crd_object(
    place: Place, spec: Any, meta: Json, old: Json | None, *, group: Group, kind: Kind | None = None
) -> Json:
    """The object at a place, with a value's spec and metadata."""
    stored = crd_metadata.stored(group, kind, meta, old)
    named = {"name": place.name} | ({"namespace": place.namespace} if place.namespace else {})
    return {"metadata": {**stored, **named}, "spec": spec}
