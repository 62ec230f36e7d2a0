"""Policies as people write them in files: found, made whole, and refused with all that is wrong.

Nothing here is stored, and what is wrong in one document does not hide what is in another. Pure
but for the files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libtortie.access import parse_documents, text_of
from libtortie.errors import InvalidInput, Malformed
from libtortie.model.keys import Kind
from libtortie.model.policy import (
    ADMIN_TIER,
    BASELINE_TIER,
    DEFAULT_TIER,
    LABEL_NAMESPACE,
    V1ALPHA1_ADMIN_TIER,
    V1ALPHA1_BASELINE_TIER,
    PolicyId,
)
from libtortie.model.policy_wire import problems_of
from libtortie.model.resources import API_VERSION, Resource, parse_resource

POLICIES = (Kind.NETWORK_POLICY, Kind.GLOBAL_NETWORK_POLICY)
KINDS = (
    *POLICIES,
    Kind.NETWORK_SET,
    Kind.GLOBAL_NETWORK_SET,
    Kind.HOST_ENDPOINT,
    Kind.PROFILE,
    Kind.TIER,
)
"""What policy is made of: the kinds that are written."""
LABEL_TIER = "projectcalico.org/tier"
DEFAULT_NAMESPACE = "default"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_NAMES = {
    Kind.NETWORK_POLICY: re.compile(
        rf"(?=.{{1,253}}$)({_LABEL}(\.{_LABEL})?|(knp|ossg)\.default\.{_LABEL}(\.{_LABEL})*)"
    ),
    Kind.GLOBAL_NETWORK_POLICY: re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})?"),
    Kind.TIER: re.compile(_LABEL),
}
_ALWAYS_THERE = (
    DEFAULT_TIER,
    ADMIN_TIER,
    BASELINE_TIER,
    V1ALPHA1_ADMIN_TIER,
    V1ALPHA1_BASELINE_TIER,
)


@dataclass(frozen=True, slots=True)
class Document:
    """One resource as it is written, and where."""

    where: str
    body: Any


def documents(files: Iterable[str]) -> Iterator[Document]:
    """What is in files; `-` is standard input. Lists are what is in them. Raises `InvalidInput`."""
    for name in files:
        text = sys.stdin.read() if name == "-" else text_of(Path(name))
        where = "standard input" if name == "-" else name
        found = [one for one in parse_documents(text, where) if one is not None]
        for number, body in enumerate(found, start=1):
            at = f"{where}, document {number}" if len(found) > 1 else where
            yield from _items(Document(at, body))


def _items(document: Document) -> Iterator[Document]:
    body = document.body
    listed = isinstance(body, Mapping) and str(body.get("kind", "")).endswith("List")
    items = body.get("items") or [] if listed else body if isinstance(body, list) else None
    if not isinstance(items, list):
        yield document
        return
    for number, one in enumerate(items, start=1):
        yield Document(f"{document.where}, item {number}", one)


def read(found: Iterable[Document], namespace: str) -> tuple[list[Resource], list[str]]:
    """The resources, whole; and all that is wrong with others, a line each."""
    resources, problems = [], []
    for document in found:
        try:
            resource = resource_of(document, namespace)
        except InvalidInput as error:
            problems.append(str(error))
            continue
        wrong = (*_metadata_problems(resource), *problems_of(resource))
        problems += [f"{document.where}: {name_of(resource)}: {one}" for one in wrong]
        resources.append(resource)
    return resources, problems


def resource_of(document: Document, namespace: str) -> Resource:
    """A document's resource with its defaults. Raises `InvalidInput`."""
    body, where = document.body, document.where
    if not isinstance(body, Mapping):
        raise InvalidInput(f"{where}: expected a resource, got {type(body).__name__}")
    kind = next((one for one in KINDS if one == body.get("kind")), None)
    if kind is None:
        known = ", ".join(KINDS)
        raise InvalidInput(f"{where}: kind: {body.get('kind')!r} is none of {known}")
    if body.get("apiVersion") != API_VERSION:
        raise InvalidInput(f"{where}: apiVersion: {body.get('apiVersion')!r} is not {API_VERSION}")
    unknown = body.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}
    if unknown:
        raise InvalidInput(f"{where}: {min(map(str, unknown))}: no such field is known")
    try:
        return parse_resource(kind, _whole(kind, body, namespace))
    except Malformed as error:
        raise InvalidInput(f"{where}: {error}") from error


def name_of(resource: Resource) -> str:
    """`NetworkPolicy shop/allow-web`."""
    meta = resource.metadata
    return str(PolicyId(meta.name, meta.namespace, resource.kind))


def tier_of(resource: Resource) -> str:
    """The tier that has to be there for it; empty: none."""
    if Kind(resource.kind) not in POLICIES:
        return ""
    tier = str(resource.to_wire()["spec"].get("tier"))
    return "" if tier in _ALWAYS_THERE else tier


def _whole(kind: Kind, body: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The JSON object with what Calico writes for its user."""
    meta, spec = body.get("metadata"), body.get("spec")
    meta = dict(meta) if isinstance(meta, Mapping) else {}
    meta.pop("resourceVersion", None)
    if kind.namespaced:
        meta["namespace"] = meta.get("namespace") or namespace or DEFAULT_NAMESPACE
    if kind in POLICIES and isinstance(spec, Mapping | None):
        spec = dict(spec or {})
        spec["tier"] = spec.get("tier") or DEFAULT_TIER
        spec["types"] = spec.get("types") or _types(spec)
        labels = meta.get("labels") or {}
        if isinstance(labels, Mapping):
            meta["labels"] = {**labels, LABEL_TIER: str(spec["tier"])}
    return {**body, "metadata": meta, "spec": {} if spec is None else spec}


def _types(spec: Mapping[str, Any]) -> list[str]:
    if spec.get("egress"):
        return ["Ingress", "Egress"] if spec.get("ingress") else ["Egress"]
    return ["Ingress"]


def _metadata_problems(resource: Resource) -> Iterator[str]:
    kind, meta = Kind(resource.kind), resource.metadata
    if not _NAMES.get(kind, _SUBDOMAIN).fullmatch(meta.name):
        yield f"metadata.name: {meta.name!r} cannot be the name of a {kind}"
    if kind.namespaced and not re.fullmatch(_LABEL, meta.namespace):
        yield f"metadata.namespace: {meta.namespace!r} is no DNS label"
    if kind in (Kind.NETWORK_SET, Kind.GLOBAL_NETWORK_SET) and LABEL_NAMESPACE in meta.labels:
        yield f"metadata.labels.{LABEL_NAMESPACE}: is what the namespace says, and not for a label"
    if not kind.namespaced and meta.namespace:
        yield f"metadata.namespace: a {kind} is in none"
