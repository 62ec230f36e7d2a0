"""What of Kubernetes' objects goes into the book of policies, and under which name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from felix_shim.admin_policy import (
    admin_policy,
    admin_policy_id,
    baseline_policy,
    baseline_policy_id,
)
from felix_shim.cluster_policy import cluster_policy, cluster_policy_id
from felix_shim.kube_peers import node_item, slice_item
from felix_shim.kube_policy import (
    account_profile,
    namespace_profile,
    network_policy,
    network_policy_id,
    profile_of,
)
from felix_shim.peer_sets import PeerKind
from libtortie.kube.objects import Namespace, ServiceAccount
from libtortie.kube.policies import (
    AdminNetworkPolicy,
    BaselineAdminNetworkPolicy,
    ClusterNetworkPolicy,
    EndpointSlice,
    KubeNetworkPolicy,
    PeerNode,
)
from libtortie.model.policy import Item, Policy, PolicyId, Profile

PolicyObject = (
    KubeNetworkPolicy
    | AdminNetworkPolicy
    | BaselineAdminNetworkPolicy
    | ClusterNetworkPolicy
    | EndpointSlice
    | PeerNode
    | Namespace
    | ServiceAccount
)
POLICIES: tuple[type[PolicyObject], ...] = (
    KubeNetworkPolicy,
    AdminNetworkPolicy,
    BaselineAdminNetworkPolicy,
    ClusterNetworkPolicy,
)
PEERS: Mapping[type[PolicyObject], PeerKind] = {
    EndpointSlice: PeerKind.SLICES,
    PeerNode: PeerKind.NODES,
}
"""What is not of the datastore in any mode: what rules of both can be about."""
PROFILES: tuple[type[PolicyObject], ...] = (Namespace, ServiceAccount)
KINDS = (*POLICIES, *PEERS, *PROFILES)

_ENTRIES: Mapping[type[PolicyObject], Callable[[Any], Policy | Profile | Item]] = {
    KubeNetworkPolicy: network_policy,
    AdminNetworkPolicy: admin_policy,
    BaselineAdminNetworkPolicy: baseline_policy,
    ClusterNetworkPolicy: cluster_policy,
    EndpointSlice: slice_item,
    PeerNode: node_item,
    Namespace: profile_of,
    ServiceAccount: profile_of,
}
_OWNERS: Mapping[type[PolicyObject], Callable[[str, str], PolicyId | str]] = {
    KubeNetworkPolicy: network_policy_id,
    AdminNetworkPolicy: lambda _, name: admin_policy_id(name),
    BaselineAdminNetworkPolicy: lambda _, name: baseline_policy_id(name),
    ClusterNetworkPolicy: lambda _, name: cluster_policy_id(name),
    Namespace: lambda _, name: namespace_profile(name),
    ServiceAccount: account_profile,
}


@dataclass(slots=True)
class Heard:
    """What was heard last of each object, so that what says the same again is no news.

    Of a namespace somebody may write an annotation every second.
    """

    _last: dict[tuple[type, str, str], object] = field(default_factory=dict)

    def is_news(self, found: PolicyObject) -> bool:
        """Whether an object says what was not known of it."""
        key = (type(found), found.metadata.namespace, found.metadata.name)
        said = (found.metadata.labels, {name: one for name, one in found if name != "metadata"})
        if key in self._last and self._last[key] == said:
            return False
        self._last[key] = said
        return True

    def is_gone(self, found: PolicyObject) -> None:
        """An object was deleted: the next of its name is news."""
        self._last.pop((type(found), found.metadata.namespace, found.metadata.name), None)

    def keep(self, kind: type, delivered: frozenset[tuple[str, str]]) -> bool:
        """These are all of a kind; True when others were known."""
        gone = [key for key in self._last if key[0] is kind and key[1:] not in delivered]
        for key in gone:
            del self._last[key]
        return bool(gone)


def followed_kinds(datastore_type: str) -> tuple[type[PolicyObject], ...]:
    """What is followed beside the datastore; in Kubernetes' own, profiles are in there."""
    return (*POLICIES, *PEERS) if datastore_type == "kubernetes" else KINDS


def entry_of(found: PolicyObject) -> Policy | Profile | Item:
    """What an object is in the book; an `Item` is one of the peers."""
    return _ENTRIES[type(found)](found)


def owner_of(kind: type[PolicyObject], namespace: str, name: str) -> PolicyId | str:
    """The name of an object's policy, or of its profile (a text)."""
    return _OWNERS[kind](namespace, name)
