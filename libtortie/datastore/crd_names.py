"""Where a value is kept in Kubernetes: API group, resource, object name, labels. Pure.

Names, labels and the converted UIDs are Calico's, so that its nodes and calicoctl find what we
write. A name that Kubernetes cannot store is refused here, before anything is sent.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from libtortie.errors import InvalidInput
from libtortie.kube.objects import Api
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey, Kind
from libtortie.model.names import KUBERNETES_NAME_MAX, affinity_name, block_name

Json = dict[str, Any]

OWN_GROUP = "tortie.io"
"""The API group of kinds that are not Calico's: a cluster may well be without them."""

DEFAULT = "default"
"""The one object of a configuration."""

LABEL_HOSTNAME = "projectcalico.org/hostname-hash"
LABEL_TYPE = "projectcalico.org/affinity-type"
LABEL_VERSION = "projectcalico.org/ip-version"

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Group(StrEnum):
    """The API group that holds Calico's objects; which one a cluster has is its installer's."""

    V1 = "crd.projectcalico.org/v1"
    V3 = "projectcalico.org/v3"

    def api(self, plural: str, kind: str, *, namespaced: bool = False) -> Api:
        """A resource of this group."""
        group, _, version = self.value.partition("/")
        return Api(group, version, plural, kind, namespaced)


def group_named(text: str) -> Group:
    """The group a configuration names; case does not matter. Raises `InvalidInput`."""
    for group in Group:
        if text.lower() == group.value:
            return group
    raise InvalidInput(f"calico_api_group: {text!r} is none of {', '.join(Group)}")


@dataclass(frozen=True, slots=True)
class Place:
    """One object."""

    api: Api
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """`ipamblocks.crd.projectcalico.org/10-244-1-0-26`: what errors call it."""
        return place_text(self.api, self.name, self.namespace)


def place_text(api: Api, name: str, namespace: str = "") -> str:
    """An object as kubectl's user would name it."""
    resource = f"{api.plural}.{api.group}" if api.group else api.plural
    return f"{resource}/{namespace}/{name}" if namespace else f"{resource}/{name}"


def require_name(place: Place) -> Place:
    """The same place. `InvalidInput` for a name that Kubernetes cannot store."""
    for name in (place.name, place.namespace or "x"):
        if len(name) > KUBERNETES_NAME_MAX or not _SUBDOMAIN.fullmatch(name):
            raise InvalidInput(
                f"{place}: Kubernetes cannot store the name {name!r}: it takes lower-case letters, "
                f"digits, '-' and '.', at most {KUBERNETES_NAME_MAX}"
            )
    return place


def resource_api(group: Group, kind: Kind) -> Api:
    """Where a resource that is a CRD is served; the IPAM configuration's name depends on it."""
    if kind is Kind.IPAM_CONFIGURATION and group is Group.V1:
        return group.api("ipamconfigs", "IPAMConfig")
    return group.api(kind.plural, kind.value, namespaced=kind.namespaced)


def block_place(group: Group, key: BlockKey) -> Place:
    """Where a block is."""
    return Place(group.api("ipamblocks", "IPAMBlock"), block_name(key.cidr))


def affinity_place(group: Group, key: AffinityKey) -> Place:
    """Where an affinity is; its type is not part of the name."""
    api = group.api("blockaffinities", "BlockAffinity")
    return Place(api, affinity_name(key.node, key.cidr))


def handle_place(group: Group, key: HandleKey) -> Place:
    """Where a handle is: by its id in lower case. Who it is says `spec.handleID` alone."""
    return Place(group.api("ipamhandles", "IPAMHandle"), key.handle_id.lower())


def affinity_labels(key: AffinityKey) -> dict[str, str]:
    """The labels by which an affinity is looked up, in Calico's order."""
    return {
        LABEL_TYPE: key.type,
        LABEL_HOSTNAME: hostname_hash(key.node),
        LABEL_VERSION: str(key.cidr.version),
    }


def hostname_hash(node: str) -> str:
    """A node's name as a label value: unpadded base32 (RFC 4648) of its SHA3-256."""
    return (
        base64.b32encode(hashlib.sha3_256(node.encode(errors="surrogatepass")).digest())
        .decode()
        .rstrip("=")
    )


def converted_uid(uid: str) -> str:
    """The UID that Calico shows for an object of the v1 group, and back: its own inverse.

    The bits of each byte in reverse order, but for bytes 6 and 8, which hold the UUID's version
    and variant. What is no UUID stays as it is.
    """
    try:
        given = uuid.UUID(uid).bytes
    except ValueError:
        return uid
    turned = bytes(
        byte if place in (6, 8) else int(f"{byte:08b}"[::-1], 2) for place, byte in enumerate(given)
    )
    return str(uuid.UUID(bytes=turned))


def metadata_of(body: Mapping[str, Any]) -> Json:
    """An object's metadata; empty when there is none."""
    found = body.get("metadata")
    return dict(found) if isinstance(found, Mapping) else {}


def revision_of(body: Mapping[str, Any]) -> str:
    """An object's resourceVersion."""
    return str(metadata_of(body).get("resourceVersion") or "")
