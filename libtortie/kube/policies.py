"""Kubernetes' own policy objects, and what their rules and Calico's can be about.

`spec` is kept as it came: whoever reads it must be able to say whom a policy is about even when
the rest of it cannot be read.
"""

from __future__ import annotations

from typing import Any, ClassVar

from libtortie.kube.objects import Api, KubeNode, KubeObject

POLICY_GROUP = "policy.networking.k8s.io"


class KubeNetworkPolicy(KubeObject):
    """networking.k8s.io NetworkPolicy."""

    api: ClassVar[Api] = Api("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True)
    spec: Any = None


class AdminNetworkPolicy(KubeObject):
    """An administrator's policy, asked before those of namespaces."""

    api: ClassVar[Api] = Api(
        POLICY_GROUP, "v1alpha1", "adminnetworkpolicies", "AdminNetworkPolicy", False
    )
    spec: Any = None


class BaselineAdminNetworkPolicy(KubeObject):
    """What holds where no other policy says anything; the only one is named `default`."""

    api: ClassVar[Api] = Api(
        POLICY_GROUP,
        "v1alpha1",
        "baselineadminnetworkpolicies",
        "BaselineAdminNetworkPolicy",
        False,
    )
    spec: Any = None


class ClusterNetworkPolicy(KubeObject):
    """An administrator's policy of `v1alpha2`, of the tier that it names."""

    api: ClassVar[Api] = Api(
        POLICY_GROUP, "v1alpha2", "clusternetworkpolicies", "ClusterNetworkPolicy", False
    )
    spec: Any = None


class EndpointSlice(KubeObject):
    """Some of the addresses and ports that a Service leads to."""

    api: ClassVar[Api] = Api("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True)
    endpoints: Any = None
    ports: Any = None


class PeerNode(KubeObject):
    """A node of Kubernetes with its addresses."""

    api: ClassVar[Api] = KubeNode.api
    status: Any = None
