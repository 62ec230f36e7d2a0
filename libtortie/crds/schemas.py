"""The `spec` of each kind in OpenAPI: what its tables and models say, in Kubernetes' words. Pure.

A schema is as strict as Calico's own and never stricter than what Calico's clients write, so that
both may share a cluster. What fields must be to each other stays with the programs that obey them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libtortie.datastore.crd_names import Group
from libtortie.model.keys import Kind
from libtortie.model.policy_spec import HostEndpointSpecWire, NetworkSetSpecWire, PolicySpecWire
from libtortie.model.resources import Wire
from libtortie.model.spec_shape import ANYTHING, STRING
from libtortie.model.written import SPECS, STAGED_ACTION

Json = dict[str, Any]
ONLY_GLOBAL = ("namespaceSelector", "doNotTrack", "preDNAT", "applyOnForward")
_IMMUTABLE = {Kind.IP_POOL: ("cidr", "blockSize")}
_FIXED = [{"rule": "self == oldSelf", "message": "Value is immutable"}]
_MODELS: Mapping[Kind, type[Wire]] = {
    Kind.NETWORK_POLICY: PolicySpecWire,
    Kind.GLOBAL_NETWORK_POLICY: PolicySpecWire,
    Kind.STAGED_NETWORK_POLICY: PolicySpecWire,
    Kind.STAGED_GLOBAL_NETWORK_POLICY: PolicySpecWire,
    Kind.NETWORK_SET: NetworkSetSpecWire,
    Kind.GLOBAL_NETWORK_SET: NetworkSetSpecWire,
    Kind.HOST_ENDPOINT: HostEndpointSpecWire,
}
_STAGED = (Kind.STAGED_NETWORK_POLICY, Kind.STAGED_GLOBAL_NETWORK_POLICY)
_HTTP: Json = {"type": "object", **ANYTHING}
"""A match of Calico's that the agent refuses. Were it dropped here, its rule would match more."""


def spec_schema(group: Group, kind: Kind) -> Json:
    """The schema of a resource's `spec` in a group."""
    if kind is Kind.STAGED_KUBERNETES_NETWORK_POLICY:
        return _staged_kubernetes()
    if kind in _MODELS:
        return _modelled(kind)
    schema: Json = _copy(SPECS[kind].schema)
    if group is Group.V3:
        for field in _IMMUTABLE.get(kind, ()):
            schema["properties"][field]["x-kubernetes-validations"] = _FIXED
    return schema


def _modelled(kind: Kind) -> Json:
    raw = _MODELS[kind].model_json_schema(by_alias=True)
    schema = _structural(raw, raw.get("$defs", {}))
    fields = schema["properties"]
    for way in ("ingress", "egress"):
        if way in fields:
            fields[way]["items"]["properties"]["http"] = _HTTP
    if kind.namespaced:
        for field in ONLY_GLOBAL:
            fields.pop(field, None)
    if kind in _STAGED:
        fields["stagedAction"] = _copy(STAGED_ACTION.schema)
    return schema


def _staged_kubernetes() -> Json:
    """Kubernetes' own policy: whoever takes it into force checks it."""
    rules = {"type": "array", "items": {"type": "object", **ANYTHING}}
    fields = {
        "stagedAction": _copy(STAGED_ACTION.schema),
        "podSelector": {"type": "object", **ANYTHING},
        "ingress": rules,
        "egress": rules,
        "policyTypes": {"type": "array", "items": STRING},
    }
    return {"type": "object", "properties": fields}


def _copy(schema: Any) -> Any:
    """The same, to be changed."""
    if isinstance(schema, Mapping):
        return {key: _copy(value) for key, value in schema.items()}
    return [_copy(one) for one in schema] if isinstance(schema, list | tuple) else schema


_KEPT = (
    "type",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "required",
    "x-kubernetes-int-or-string",
)


def _structural(raw: Mapping[str, Any], named: Mapping[str, Any]) -> Json:
    """pydantic's schema as Kubernetes takes it: nothing referred to, no null, no open bounds."""
    if "$ref" in raw:
        return _structural(named[raw["$ref"].rpartition("/")[2]], named)
    given = [one for one in raw.get("anyOf", ()) if one != {"type": "null"}]
    if given:
        (only,) = given
        return _structural(only, named)
    found = {key: _copy(raw[key]) for key in _KEPT if key in raw}
    if "exclusiveMaximum" in raw:
        found["maximum"] = raw["exclusiveMaximum"] - 1
    if "properties" in raw:
        found["properties"] = {k: _structural(one, named) for k, one in raw["properties"].items()}
    if "items" in raw:
        found["items"] = _structural(raw["items"], named)
    return found or dict(ANYTHING)
