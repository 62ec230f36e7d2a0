"""What a cluster's administrator would have written down before the first pod.

Pure values: Calico resources for the datastore, the agents' configuration, Kubernetes objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lab import names
from lab.certificates import agent_keys
from libtortie.model.keys import IPNetwork, Kind, ResourceKey
from libtortie.model.resources import Resource, parse_resource
from tortiectl.kubevirt.objects import ANNOTATION_BRIDGE

ResourceSeed = tuple[ResourceKey, Resource]
ANNOTATION_CLUSTER = "projectcalico.org/RouteReflectorClusterID"
"""On a core Node: where the datastore is the API, this makes it a route reflector."""
NEVER, ALWAYS, CROSS_SUBNET = VXLAN_MODES = ("Never", "Always", "CrossSubnet")


def resources(
    convergence: str, vxlan: str = NEVER, *, reflected: bool = False
) -> tuple[ResourceSeed, ...]:
    """Pools, BGP and agent settings. `convergence` is a Go duration such as `8s`, `vxlan` the
    pools' `vxlanMode`; `reflected`: BGP by route reflectors, no mesh."""
    specs: tuple[tuple[Kind, str, dict[str, Any]], ...] = (
        (Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": True, "clusterType": "k8s,bgp"}),
        (Kind.IP_POOL, "default-ipv4-ippool", _pool(names.POOL, names.BLOCK_SIZE, vxlan)),
        (Kind.IP_POOL, "default-ipv6-ippool", _pool(names.POOL6, names.BLOCK_SIZE6, vxlan)),
        (
            Kind.BGP_CONFIGURATION,
            "default",
            {"asNumber": names.CLUSTER_AS, "nodeToNodeMeshEnabled": not reflected},
        ),
        *_peers(reflected=reflected),
        (
            Kind.FELIX_CONFIGURATION,
            "default",
            {"liveMigrationRouteConvergenceTime": convergence},
        ),
    )
    return tuple(_resource(kind, name, spec) for kind, name, spec in specs)


def _peers(*, reflected: bool) -> Iterator[tuple[Kind, str, dict[str, Any]]]:
    """The ToR is every node's peer, or the reflectors'; they tell it the nodes' own addresses."""
    selected = f"has({names.REFLECTOR_LABEL})"
    of_reflectors = {"nodeSelector": selected, "nextHopMode": "Keep"} if reflected else {}
    for name, address in zip(("tor", "tor-v6"), names.TOR_ADDRESSES, strict=True):
        tor = {"peerIP": str(address), "asNumber": names.TOR_AS}
        yield Kind.BGP_PEER, name, tor | of_reflectors
    if reflected:
        yield Kind.BGP_PEER, "reflectors", {"nodeSelector": "all()", "peerSelector": selected}


def reflector(node: names.LabNode) -> ResourceSeed:
    """The Node of a route reflector, before its agent has said what it knows of it."""
    name = ResourceKey(Kind.NODE, node.name)
    body = {
        "apiVersion": "projectcalico.org/v3",
        "kind": Kind.NODE.value,
        "metadata": {"name": node.name, "labels": {names.REFLECTOR_LABEL: "true"}},
        "spec": {
            "bgp": {
                "ipv4Address": str(node.address),
                "ipv6Address": str(node.address6),
                "routeReflectorClusterID": names.REFLECTOR_CLUSTER,
            }
        },
    }
    return name, parse_resource(Kind.NODE, body)


def _pool(cidr: IPNetwork, block_size: int, vxlan: str) -> dict[str, Any]:
    return {
        "cidr": str(cidr),
        "blockSize": block_size,
        "natOutgoing": False,
        "ipipMode": "Never",
        "vxlanMode": vxlan,
        "nodeSelector": "all()",
        "allowedUses": ["Workload", "Tunnel"],
    }


def _resource(kind: Kind, name: str, spec: dict[str, Any]) -> ResourceSeed:
    body = {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind.value,
        "metadata": {"name": name},
        "spec": spec,
    }
    return ResourceKey(kind, name), parse_resource(kind, body)


def agent_config(node: names.LabNode, datastore: Mapping[str, Any]) -> dict[str, Any]:
    """`/etc/tortie/node.yaml` of a node; `datastore` are the keys that say where it is."""
    return {
        "nodename": node.name,
        "ip": str(node.address),
        "ip6": str(node.address6),
        **datastore,
        "k8s_api_root": names.api_url(),
        **agent_keys(),
        "open_migration_ports": True,
        "log_file": "/var/log/tortie/node.log",
        "log_level": "info",
    }


def conflist_settings(node: names.LabNode, datastore: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the plugin's object in a node's conflist, beside its defaults."""
    return {
        "nodename": node.name,
        **datastore,
        "kubernetes": {"k8s_api_root": names.api_url()},
        "policy": {"type": "k8s"},
        "ipam": {"type": "tortie-ipam", "assign_ipv6": "true"},
        "policy_setup_timeout_seconds": names.POLICY_TIMEOUT_S,
        "log_file_path": "/var/log/tortie/cni.log",
    }


def kube_node(node: names.LabNode, *, reflector: bool = False) -> dict[str, Any]:
    """A core Node, as kubelet and virt-handler label it, and an administrator a reflector."""
    labels = {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubevirt.io/schedulable": "true",
    }
    metadata: dict[str, Any] = {"name": node.name, "labels": labels}
    if reflector:
        labels[names.REFLECTOR_LABEL] = "true"
        metadata["annotations"] = {ANNOTATION_CLUSTER: names.REFLECTOR_CLUSTER}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": str(node.ip(version))} for version in (4, 6)
            ]
        },
    }


def ipam_configuration() -> dict[str, Any]:
    """The API's IPAMConfiguration as a node's first start leaves it, for `kubectl patch`.

    It names no address persistence: until a user does, the datastore decides.
    """
    return {
        "metadata": {"name": "default"},
        "spec": {"strictAffinity": False, "autoAllocateBlocks": True},
    }


def vm_body(
    name: str, namespace: str, node: str, labels: dict[str, str], guest: str = ""
) -> dict[str, Any]:
    """A VM with bridge binding that may live-migrate, as a user would write it.

    `guest` is its kind; empty: the lab's.
    """
    annotations = {**MAY_MIGRATE, **({names.ANNOTATION_GUEST: guest} if guest else {})}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "runStrategy": "Always",
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _guest_spec(node),
            },
        },
    }


def vmi_body(name: str, namespace: str, node: str, labels: dict[str, str]) -> dict[str, Any]:
    """The same as an instance of its own, without a VM."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": dict(MAY_MIGRATE),
        },
        "spec": _guest_spec(node),
    }


MAY_MIGRATE = {ANNOTATION_BRIDGE: "true"}


def _guest_spec(node: str) -> dict[str, Any]:
    interface = {"name": "default", "bridge": {}}
    spec: dict[str, Any] = {
        "domain": {"devices": {"interfaces": [interface]}, "memory": {"guest": "256Mi"}},
        "networks": [{"name": "default", "pod": {}}],
        "evictionStrategy": "LiveMigrate",
    }
    if node:
        # A preference, not a selector: that would forbid leaving the node.
        spec["affinity"] = {"nodeAffinity": {PREFERRED: [_preference(node)]}}
    return spec


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _preference(node: str) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {"weight": 100, "preference": {"matchExpressions": [expression]}}


def pod_body(name: str, namespace: str, node: str) -> dict[str, Any]:
    """An ordinary pod on a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "pause"}]},
    }


def migration_body(
    name: str, namespace: str, vmi: str, *, node: str, annotations: dict[str, str]
) -> dict[str, Any]:
    """A VirtualMachineInstanceMigration; `node` empty leaves the choice to the scheduler."""
    spec: dict[str, Any] = {"vmiName": vmi}
    if node:
        spec["addedNodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": annotations,
        },
        "spec": spec,
    }
