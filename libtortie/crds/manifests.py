"""Every CustomResourceDefinition, as a document and as a file's text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from libtortie.crds.columns import AGE, COLUMNS, Column
from libtortie.crds.ipam import IPAM_V1, IPAM_V3
from libtortie.crds.schemas import spec_schema
from libtortie.crds.texts import FIELDS, KINDS
from libtortie.datastore.crd_history import API as HISTORY
from libtortie.datastore.crd_names import DEFAULT, Group, resource_api
from libtortie.kube.objects import Api
from libtortie.model.keys import Kind

Json = dict[str, Any]
_NO_CRDS = (Kind.NODE, Kind.PROFILE, Kind.WORKLOAD_ENDPOINT)
"""Kinds that are views of Kubernetes' own."""
_STATUS = (
    Kind.IP_POOL,
    Kind.TIER,
    Kind.KUBE_CONTROLLERS_CONFIGURATION,
    Kind.CALICO_NODE_STATUS,
)
_TIERED = (
    Kind.NETWORK_POLICY,
    Kind.GLOBAL_NETWORK_POLICY,
    Kind.STAGED_NETWORK_POLICY,
    Kind.STAGED_GLOBAL_NETWORK_POLICY,
)
_IPAM = (
    ("ipamblocks", "IPAMBlock"),
    ("ipamhandles", "IPAMHandle"),
    ("blockaffinities", "BlockAffinity"),
)
_HISTORY: Json = {
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "facts": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 100,
                    "items": {
                        "type": "object",
                        "properties": {
                            "at": {"type": "string", "format": "date-time"},
                            "what": {"type": "string"},
                            "by": {"type": "string"},
                        },
                        "required": ["at", "what"],
                        "x-kubernetes-preserve-unknown-fields": True,
                    },
                }
            },
            "required": ["facts"],
        }
    },
    "required": ["spec"],
}
"""Loose, so that writers of two releases may share it."""
_HEADER = "# Made by `python -m libtortie.crds` of libtortie/model: change that, not this.\n"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One definition and the file it is in, below `conf/crds/`."""

    path: str
    document: Json

    @property
    def text(self) -> str:
        """The file."""
        return _HEADER + yaml.dump(self.document, Dumper=_Plain, sort_keys=False, width=100)


class _Plain(yaml.SafeDumper):
    """YAML without references: they are for people."""

    def ignore_aliases(self, data: Any) -> bool:
        """Each value is written where it is."""
        return True


def manifests() -> Iterator[Manifest]:
    """All of them: our own, and those of both of Calico's groups, of which a cluster has one."""
    yield Manifest(f"own/{HISTORY.plural}.yaml", _definition(HISTORY, _HISTORY))
    for group in Group:
        folder = group.value.rpartition("/")[2]
        for api, document in _definitions(group):
            yield Manifest(f"{folder}/{api.plural}.yaml", document)


def _definitions(group: Group) -> Iterator[tuple[Api, Json]]:
    own = IPAM_V1 if group is Group.V1 else IPAM_V3
    for plural, kind in _IPAM:
        api = group.api(plural, kind)
        yield api, _definition(api, own[kind])
    for resource in Kind:
        if resource in _NO_CRDS:
            continue
        api = resource_api(group, resource)
        schema = own.get(api.kind) or _resource_schema(group, resource)
        tiered = group is Group.V3 and resource in _TIERED
        yield api, _definition(api, schema, status=resource in _STATUS, tiered=tiered)


def _resource_schema(group: Group, kind: Kind) -> Json:
    spec = spec_schema(group, kind)
    for (owner, field), text in FIELDS.items():
        if owner == kind:
            spec["properties"][field] = {"description": text, **spec["properties"][field]}
    spec = {"description": "What is wanted.", **spec}
    schema: Json = {"type": "object", "properties": {"spec": spec}}
    return schema | {"required": ["spec"]} if group is Group.V3 else schema


def _definition(
    api: Api, schema: Mapping[str, Any], *, status: bool = False, tiered: bool = False
) -> Json:
    version: Json = {"name": api.version, "served": True, "storage": True}
    if status:
        version["subresources"] = {"status": {}}
    if tiered:
        version["selectableFields"] = [{"jsonPath": ".spec.tier"}]
    version["additionalPrinterColumns"] = [
        _printed(one) for one in (*COLUMNS.get(api.kind, ()), AGE)
    ]
    version["schema"] = {"openAPIV3Schema": _whole(api, schema, status=status)}
    names = {
        "kind": api.kind,
        "listKind": f"{api.kind}List",
        "plural": api.plural,
        "singular": api.kind.lower(),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{api.plural}.{api.group}"},
        "spec": {
            "group": api.group,
            "names": names,
            "scope": "Namespaced" if api.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _printed(column: Column) -> Json:
    found: Json = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return found | {"priority": column.priority} if column.priority else found


def _whole(api: Api, schema: Mapping[str, Any], *, status: bool) -> Json:
    """The schema of the object; a configuration of which there is one has one name."""
    metadata: Json = {"type": "object"}
    if api.kind == Kind.IPAM_CONFIGURATION:
        metadata["properties"] = {"name": {"type": "string", "enum": [DEFAULT]}}
    properties: Json = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": metadata,
        **schema["properties"],
    }
    if status:
        properties["status"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    described: Json = {"description": KINDS[api.kind], "type": "object"}
    if required := schema.get("required"):
        described["required"] = ["metadata", *required]
    return {**described, "properties": properties}
