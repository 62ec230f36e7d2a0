"""Resources as people write them: made whole with Calico's defaults, and all that is wrong told.

`checked` is the one judge of manifests, whoever reads them. What is wrong is told all at once, each
with its path (`spec.ingress.0.protocol: why`). What is stored already is not judged here. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from libtortie.errors import Malformed
from libtortie.model import spec_bgp, spec_felix, spec_ipam, spec_nodes
from libtortie.model.field_errors import lines_of
from libtortie.model.keys import Kind
from libtortie.model.policy import (
    ADMIN_TIER,
    BASELINE_TIER,
    DEFAULT_TIER,
    LABEL_NAMESPACE,
    LABEL_ORCHESTRATOR,
)
from libtortie.model.policy_spec import PolicySpecWire
from libtortie.model.policy_wire import problems_of
from libtortie.model.resources import API_VERSION, Resource, parse_resource
from libtortie.model.spec_shape import Check, Problems, anything, one_of, shown, struct
from libtortie.wording import meant

DEFAULT_NAMESPACE = "default"
LABEL_TIER = "projectcalico.org/tier"
ANNOTATIONS_MOST = 262144
"""Bytes of all keys and values."""
POLICIES = (
    Kind.NETWORK_POLICY,
    Kind.GLOBAL_NETWORK_POLICY,
    Kind.STAGED_NETWORK_POLICY,
    Kind.STAGED_GLOBAL_NETWORK_POLICY,
)
FIXED_TIERS = {
    DEFAULT_TIER: (1_000_000, "Deny"),
    ADMIN_TIER: (1_000, "Pass"),
    BASELINE_TIER: (10_000_000, "Pass"),
}
"""Order and default action of the tiers that are always there."""
_STAGED_ACTION = one_of("Set", "Delete", "Learn", "Ignore")
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_POLICY_NAME = re.compile(
    rf"(?=.{{1,253}}$)({_LABEL}(\.{_LABEL})?|(knp|ossg)\.default\.{_LABEL}(\.{_LABEL})*)"
)
_GLOBAL_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})?")
_NAMES = {
    Kind.NETWORK_POLICY: _POLICY_NAME,
    Kind.STAGED_NETWORK_POLICY: _POLICY_NAME,
    Kind.GLOBAL_NETWORK_POLICY: _GLOBAL_NAME,
    Kind.STAGED_GLOBAL_NETWORK_POLICY: _GLOBAL_NAME,
    Kind.TIER: re.compile(_LABEL),
}
_ONLY_ONE = (
    Kind.IPAM_CONFIGURATION,
    Kind.KUBE_CONTROLLERS_CONFIGURATION,
    Kind.CLUSTER_INFORMATION,
)
"""Kinds with one object, named `default`."""
_SPECS: Mapping[Kind, Check] = {
    Kind.IP_POOL: spec_ipam.pool_spec,
    Kind.IP_RESERVATION: spec_ipam.RESERVATION,
    Kind.IPAM_CONFIGURATION: spec_ipam.IPAM_CONFIGURATION,
    Kind.CLUSTER_INFORMATION: spec_ipam.CLUSTER_INFORMATION,
    Kind.TIER: spec_ipam.TIER,
    Kind.FELIX_CONFIGURATION: spec_felix.felix_spec,
    Kind.BGP_CONFIGURATION: spec_bgp.CONFIGURATION,
    Kind.BGP_PEER: spec_bgp.PEER,
    Kind.BGP_FILTER: spec_bgp.FILTER,
    Kind.NODE: spec_nodes.NODE,
    Kind.WORKLOAD_ENDPOINT: spec_nodes.ENDPOINT,
    Kind.KUBE_CONTROLLERS_CONFIGURATION: spec_nodes.CONTROLLERS,
    Kind.CALICO_NODE_STATUS: spec_nodes.NODE_STATUS,
}
_KUBERNETES_POLICY = ("podSelector", "ingress", "egress", "policyTypes", "stagedAction")
_NEEDED = frozenset({Kind.IP_POOL, Kind.BGP_PEER, Kind.WORKLOAD_ENDPOINT, Kind.HOST_ENDPOINT})
"""Kinds whose spec must say something."""
_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_META = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "creationTimestamp",
    "resourceVersion",
    "generation",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "selfLink",
    "managedFields",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_OWN = ("resourceVersion", "selfLink", "managedFields", "generation")
"""Metadata that a store keeps for itself."""


def checked(
    kind: Kind, body: Mapping[str, Any], namespace: str = ""
) -> tuple[Resource | None, tuple[str, ...]]:
    """The resource, whole, and what is wrong; None where it cannot be read at all.

    `namespace` is that of resources that name none (empty: `default`).
    """
    problems: Problems = []
    for name in body:
        if name not in _TOP:
            problems.append(f"{name}: no such field is known{meant(str(name), _TOP)}")
    if body.get("apiVersion") != API_VERSION:
        problems.append(f"apiVersion: {body.get('apiVersion')!r} is not {API_VERSION}")
    meta = _metadata(kind, body.get("metadata"), namespace, problems)
    spec = _spec(kind, body.get("spec"), problems)
    if isinstance(spec, dict):
        if kind is Kind.WORKLOAD_ENDPOINT and not problems:
            _name_endpoint(meta, spec, problems)
        _complete(kind, meta, spec)
        problems += _named(kind, str(meta.get("name", "")), spec)
    _check_name(kind, meta, problems)
    whole = {"kind": kind.value, "apiVersion": API_VERSION, "metadata": meta, "spec": spec}
    if kind is Kind.KUBE_CONTROLLERS_CONFIGURATION:
        whole["status"] = {}
    if isinstance(body.get("status"), Mapping):
        whole["status"] = dict(body["status"])
    try:
        resource = parse_resource(kind, whole)
    except Malformed as error:
        if not problems:
            problems.append(str(error).partition(": ")[2])
        return None, tuple(problems)
    told = {one.partition(": ")[0] for one in problems}  # a field's fault is told once
    problems += (one for one in problems_of(resource) if one.partition(": ")[0] not in told)
    return resource, tuple(problems)


def revision_of(body: Mapping[str, Any]) -> str:
    """The revision that a manifest insists on; empty: none."""
    meta = body.get("metadata")
    return str(meta.get("resourceVersion") or "") if isinstance(meta, Mapping) else ""


def _metadata(kind: Kind, given: Any, namespace: str, problems: Problems) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        if given is not None:
            problems.append(f"metadata: {shown(given)} is not an object")
        given = {}
    meta = {key: value for key, value in given.items() if key not in _OWN and value is not None}
    for name in given:
        if name not in _META:
            problems.append(f"metadata.{name}: no such field is known{meant(str(name), _META)}")
    for field in ("name", "namespace", "generateName", "uid"):
        if field in meta and not isinstance(meta[field], str):
            problems.append(
                f"metadata.{field}: {shown(meta.pop(field))} is not a string: write it in quotes"
            )
    if kind.namespaced:
        meta["namespace"] = meta.get("namespace") or namespace or DEFAULT_NAMESPACE
    for field in ("labels", "annotations"):
        if field in meta:
            meta[field] = _keyed(kind, field, meta[field], problems)
    return meta


def _keyed(kind: Kind, field: str, given: Any, problems: Problems) -> dict[str, str]:
    """Labels or annotations."""
    if not isinstance(given, Mapping):
        problems.append(f"metadata.{field}: {shown(given)} is not an object")
        return {}
    for key, value in given.items():
        wrong = spec_nodes.key_problem(str(key))
        if not wrong and not isinstance(value, str):
            wrong = f"{shown(value)} is not a string: write it in quotes"
        elif not wrong and field == "labels":
            wrong = spec_nodes.value_problem(value)
        if wrong:
            problems.append(f"metadata.{field}.{key}: {wrong}")
    sets = kind in (Kind.NETWORK_SET, Kind.GLOBAL_NETWORK_SET)
    if sets and field == "labels" and LABEL_NAMESPACE in given:
        why = "is what the namespace says, and not for a label"
        problems.append(f"metadata.labels.{LABEL_NAMESPACE}: {why}")
    kept = {key: value for key, value in given.items() if isinstance(value, str)}
    if field == "annotations":
        size = sum(len(key.encode()) + len(value.encode()) for key, value in kept.items())
        if size > ANNOTATIONS_MOST:
            problems.append(
                f"metadata.annotations: {size} bytes, and {ANNOTATIONS_MOST} are the most"
            )
    return kept


def _check_name(kind: Kind, meta: Mapping[str, Any], problems: Problems) -> None:
    name = str(meta.get("name", ""))
    if kind in _ONLY_ONE and name != "default":
        problems.append(f"metadata.name: {name!r}: there is one {kind}, named default")
    elif not name:
        problems.append(f"metadata.name: {name!r} cannot be the name of a {kind}: it is missing")
    elif not _NAMES.get(kind, _SUBDOMAIN).fullmatch(name):
        problems.append(f"metadata.name: {name!r} cannot be the name of a {kind}")
    namespace = str(meta.get("namespace", ""))
    if kind.namespaced and not re.fullmatch(_LABEL, namespace):
        problems.append(f"metadata.namespace: {namespace!r} is no DNS label")
    if not kind.namespaced and namespace:
        problems.append(f"metadata.namespace: {kind} is in none")


def _spec(kind: Kind, given: Any, problems: Problems) -> Any:
    if given is None:
        if kind in _NEEDED:
            problems.append("spec: is missing")
            return {}
        given = {}
    if not isinstance(given, Mapping):
        problems.append(f"spec: {shown(given)} is not an object")
        return given
    check = _SPECS.get(kind)
    if check is not None:
        own: Problems = []
        found = check(given, "spec", own)
        problems += own
        return found
    if kind in POLICIES[2:]:
        return _staged(kind, given, problems)
    if kind is Kind.STAGED_KUBERNETES_NETWORK_POLICY:
        names = dict.fromkeys(_KUBERNETES_POLICY, anything) | {"stagedAction": _STAGED_ACTION}
        return struct(names, defaults={"stagedAction": "Set"})(given, "spec", problems)
    if kind is Kind.HOST_ENDPOINT:
        known = ("node", "interfaceName", "expectedIPs", "profiles", "ports")
        problems += [
            f"spec.{name}: no such field is known{meant(str(name), known)}"
            for name in given
            if name not in known
        ]
    return dict(given)


def _staged(kind: Kind, given: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """A policy that is not in force yet: as one that is, and what is to become of it."""
    policy = {key: value for key, value in given.items() if key != "stagedAction"}
    action = _STAGED_ACTION(given.get("stagedAction") or "Set", "spec.stagedAction", problems)
    try:
        PolicySpecWire.model_validate(policy)
    except ValidationError as error:
        problems += lines_of(error)
    return {**policy, "stagedAction": action}


def _complete(kind: Kind, meta: dict[str, Any], spec: dict[str, Any]) -> None:
    """What Calico writes for its user."""
    if kind in POLICIES:
        spec["tier"] = spec.get("tier") or DEFAULT_TIER
        spec["types"] = spec.get("types") or _types(spec)
        meta["labels"] = {**meta.get("labels", {}), LABEL_TIER: str(spec["tier"])}
    elif kind is Kind.TIER:
        order, action = FIXED_TIERS.get(str(meta.get("name")), (1_000_000, "Deny"))
        spec["order"] = order if spec.get("order") is None else spec["order"]
        spec["defaultAction"] = spec.get("defaultAction") or action
    elif kind is Kind.KUBE_CONTROLLERS_CONFIGURATION:
        spec.setdefault("prometheusMetricsPort", spec_nodes.METRICS_PORT)
        spec.setdefault("controllers", {})
    elif kind is Kind.WORKLOAD_ENDPOINT:
        own = {
            LABEL_NAMESPACE: meta["namespace"],
            LABEL_ORCHESTRATOR: str(spec.get("orchestrator", "")),
        }
        meta["labels"] = {**meta.get("labels", {}), **own}


def _types(spec: Mapping[str, Any]) -> list[str]:
    if spec.get("egress"):
        return ["Ingress", "Egress"] if spec.get("ingress") else ["Egress"]
    return ["Ingress"]


def _named(kind: Kind, name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """What a resource of this name may say and another may not."""
    if kind is Kind.BGP_CONFIGURATION:
        yield from spec_bgp.only_default(name, spec)
    elif kind is Kind.FELIX_CONFIGURATION:
        yield from spec_felix.name_problems(name, spec)
    elif kind is Kind.TIER and name in FIXED_TIERS:
        order, action = FIXED_TIERS[name]
        if spec.get("order") != order:
            yield f"spec.order: the tier {name} has {order}, always"
        if spec.get("defaultAction") != action:
            yield f"spec.defaultAction: the tier {name} has {action}, always"


def _name_endpoint(meta: dict[str, Any], spec: Mapping[str, Any], problems: Problems) -> None:
    name = spec_nodes.endpoint_name(spec)
    if meta.setdefault("name", name) != name:
        problems.append(f"metadata.name: {meta['name']!r} is not {name!r}, as the fields have it")
