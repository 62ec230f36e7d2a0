"""A cluster with VMs as its API's objects: healthy, until a test changes them.

Every object is the JSON that an API server stores, so that the same site feeds the pure checks, a
real server, and the bench.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab import seed
from libtortie.kube.migrations import Migration
from libtortie.model.ipam import Persistence
from libtortie.model.keys import Kind
from libtortie.model.resources import (
    BGPConfiguration,
    BGPPeer,
    FelixConfiguration,
    IPPool,
    Resource,
    parse_resource,
)
from libtortie.model.resources import Node as CalicoNode
from tortiectl.kubevirt import objects as kv
from tortiectl.kubevirt.reading import sorted_out
from tortiectl.kubevirt.settings import settings_of
from tortiectl.preflight.read_services import certificates_in, quota_of, rules_of
from tortiectl.preflight.world import Budget, Cluster, Network

Json = dict[str, Any]
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
ALLOW = kv.ANNOTATION_BRIDGE
MODEL, FEATURES = "Skylake-Server", ("vmx", "avx512f", "sse4.2")

R = TypeVar("R", bound=Resource)


def pem(begins: datetime, ends: datetime) -> str:
    """A certificate that is valid between two times."""
    key, name = _key(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubevirt")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, begins, ends)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@cache
def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def node_labels(model: str = MODEL, features: tuple[str, ...] = FEATURES) -> dict[str, str]:
    """What virt-handler's labeller writes."""
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubevirt.io/schedulable": "true",
        "cpu-vendor.node.kubevirt.io/Intel": "true",
        "machine-type.node.kubevirt.io/pc-q35-rhel9.4.0": "true",
        "cpu-timer.node.kubevirt.io/tsc-frequency": "2111998000",
        f"host-model-cpu.node.kubevirt.io/{model}": "true",
    }
    for one in ("Nehalem", "Haswell", model):
        labels[f"cpu-model.node.kubevirt.io/{one}"] = "true"
        labels[f"cpu-model-migration.node.kubevirt.io/{one}"] = "true"
    for one in features:
        labels[f"cpu-feature.node.kubevirt.io/{one}"] = "true"
        labels[f"host-model-required-features.node.kubevirt.io/{one}"] = "true"
    return labels


def kube_node(name: str, number: int) -> Json:
    """A node that takes VMs."""
    meta = {"name": name, "labels": {**node_labels(), "kubernetes.io/hostname": name}}
    ready = {"type": "Ready", "status": "True"}
    address = {"type": "InternalIP", "address": f"172.31.{number >> 8}.{number & 255}"}
    return {"metadata": meta, "status": {"conditions": [ready], "addresses": [address]}}


def vmi(name: str, number: int, node: str, namespace: str = "shop") -> Json:
    """A VM's instance that may migrate, by bridge binding, with a shared disk."""
    body = seed.vmi_body(name, namespace, "", {"app": name})
    body["metadata"]["uid"] = f"vmi-{namespace}-{name}"
    domain, volume = body["spec"]["domain"], {"persistentVolumeClaim": {"claimName": name}}
    domain["devices"]["disks"] = [{"name": "root"}]
    domain["cpu"], domain["machine"] = {"model": "host-model"}, {"type": "pc-q35-rhel9.4.0"}
    domain["memory"] = {"guest": "1Gi"}
    body["spec"] |= {"architecture": "amd64", "volumes": [{"name": "root", **volume}]}
    body["status"] = {
        "phase": "Running",
        "nodeName": node,
        "conditions": [{"type": "LiveMigratable", "status": "True"}],
        "interfaces": [{"name": "default", "ipAddress": f"10.65.{number >> 8}.{number & 255}"}],
    }
    return body


def vm(instance: Json) -> Json:
    """The VM of an instance."""
    meta = instance["metadata"]
    template = {"metadata": {"annotations": dict(meta["annotations"])}, "spec": instance["spec"]}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "spec": {"runStrategy": "Always", "template": template},
    }


def launcher(instance: Json, suffix: str = "a1b2c", node: str = "") -> Json:
    """The pod that runs an instance."""
    meta = instance["metadata"]
    owner = {
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": meta["name"],
        "uid": meta["uid"], "controller": True,
    }  # fmt: skip
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": meta["uid"]}
    return {
        "metadata": {
            "name": f"virt-launcher-{meta['name']}-{suffix}",
            "namespace": meta["namespace"],
            "labels": {**meta["labels"], **labels},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": node or instance["status"]["nodeName"],
            "containers": [{"name": "compute"}],
        },
        "status": {"phase": "Running"},
    }


def claim(instance: Json, mode: str = "ReadWriteMany") -> Json:
    """The claim of an instance's disk."""
    meta = instance["metadata"]
    return {
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "spec": {"accessModes": [mode], "volumeName": f"pv-{meta['name']}"},
    }


def resource(kind: Kind, name: str, spec: Json, **meta: Any) -> Json:
    """One of Calico's."""
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind.value,
        "metadata": {"name": name, **meta},
        "spec": spec,
    }


@dataclass
class Site:
    """All objects of a cluster, by kind. `calico` is what its datastore holds."""

    vmis: list[Json] = field(default_factory=list)
    vms: list[Json] = field(default_factory=list)
    migrations: list[Json] = field(default_factory=list)
    pods: list[Json] = field(default_factory=list)
    nodes: list[Json] = field(default_factory=list)
    claims: list[Json] = field(default_factory=list)
    volumes: list[Json] = field(default_factory=list)
    kubevirt: Json = field(default_factory=dict)
    bundle: Json = field(default_factory=dict)
    secret: Json = field(default_factory=dict)
    roles: list[Json] = field(default_factory=list)
    bindings: list[Json] = field(default_factory=list)
    calico: list[Json] = field(default_factory=list)
    installation: Json | None = None
    persistence: Persistence = Persistence.ENABLED
    renewals: dict[str, datetime] = field(default_factory=dict)
    budgets: list[Budget] = field(default_factory=list)
    quotas: list[Json] = field(default_factory=list)
    handlers: list[Json] = field(default_factory=list)
    sessions_down: dict[str, int] = field(default_factory=dict)
    plugin_timeouts: dict[str, int] = field(default_factory=dict)
    may_migrate: bool = True
    missing_kinds: tuple[str, ...] = ()
    now: datetime = NOW

    def of(self, kind: Kind, name: str = "") -> Json:
        """One of Calico's objects."""
        return next(
            one
            for one in self.calico
            if one["kind"] == kind.value and name in ("", one["metadata"]["name"])
        )

    def config(self) -> Json:
        """KubeVirt's `spec.configuration`."""
        found: Json = self.kubevirt["spec"]["configuration"]
        return found

    def cluster(self) -> Cluster:
        """What a reading of it gives."""
        lists = [
            sorted_out(model, tuple(bodies))
            for model, bodies in (
                (kv.VMI, self.vmis), (kv.VM, self.vms), (Migration, self.migrations),
                (kv.Pod, self.pods), (kv.Node, self.nodes), (kv.Claim, self.claims),
                (kv.PersistentVolume, self.volumes),
            )
        ]  # fmt: skip
        by_id: list[dict[str, Any]] = [{one.id: one for one in each.objects} for each in lists]
        kubevirt = sorted_out(kv.KubeVirt, (self.kubevirt,)).objects
        return Cluster(
            vmis=by_id[0],
            vms=by_id[1],
            migrations=tuple(by_id[2].values()),
            launchers=tuple(by_id[3].values()),
            nodes=by_id[4],
            claims=by_id[5],
            volumes=by_id[6],
            settings=settings_of(kubevirt[0]),
            network=self.network(),
            certificates=(
                *certificates_in(self.bundle, "ca-bundle", "kubevirt/kubevirt-ca"),
                *certificates_in(self.secret, "tls.crt", "kubevirt/kubevirt-virt-handler-certs"),
            ),
            renewals=self.renewals,
            rules=tuple(rules_of(self.roles, self.bindings)),
            budgets=self.budgets,
            quotas=tuple(one for one in map(quota_of, self.quotas) if one is not None),
            handlers=sorted_out(kv.Pod, tuple(self.handlers)).objects,
            missing_kinds=self.missing_kinds,
            may_migrate=self.may_migrate,
            unreadable=tuple(one for each in lists for one in each.unreadable),
            now=self.now,
        )

    def network(self) -> Network:
        """Calico's part."""
        parsed = [parse_resource(Kind(one["kind"]), one) for one in self.calico]

        def named(model: type[R]) -> dict[str, R]:
            return {one.metadata.name: one for one in parsed if isinstance(one, model)}

        def kind(*kinds: Kind) -> list[Resource]:
            return [one for one in parsed if one.kind in kinds]

        return Network(
            pools=list(named(IPPool).values()),
            felix=named(FelixConfiguration),
            nodes=named(CalicoNode),
            bgp=named(BGPConfiguration).get("default"),
            peers=list(named(BGPPeer).values()),
            filters={one.metadata.name: one for one in kind(Kind.BGP_FILTER)},
            host_endpoints=kind(Kind.HOST_ENDPOINT),
            policies=kind(Kind.GLOBAL_NETWORK_POLICY, Kind.NETWORK_POLICY),
            tiers=kind(Kind.TIER),
            profiles=kind(Kind.PROFILE),
            sets=kind(Kind.GLOBAL_NETWORK_SET),
            installation=self.installation,
            persistence=self.persistence,
            persistence_place="ipamconfigurations.projectcalico.org/default",
            sessions_down=self.sessions_down,
            plugin_timeouts=self.plugin_timeouts,
        )


def healthy(vms: int = 200, nodes: int = 10, now: datetime = NOW) -> Site:
    """A cluster in which everything may migrate."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    site = Site(now=now)
    site.nodes = [kube_node(name, number) for number, name in enumerate(names, 11)]
    site.vmis = [vmi(f"vm{n}", n, names[n % nodes]) for n in range(1, vms + 1)]
    site.vms = [vm(one) for one in site.vmis]
    site.pods = [launcher(one) for one in site.vmis]
    site.claims = [claim(one) for one in site.vmis]
    meta = {"name": "kubevirt", "namespace": "kubevirt"}
    site.kubevirt = {"metadata": meta, "spec": {"configuration": {"migrations": {}}}}
    _services(site)
    site.renewals = {name: now - timedelta(seconds=n % 10) for n, name in enumerate(names)}
    _network(site)
    return site


def _services(site: Site) -> None:
    place, hours = {"namespace": "kubevirt"}, timedelta(hours=1)
    authority = pem(site.now - 48 * hours, site.now + 120 * hours)
    site.bundle = {
        "kind": "ConfigMap",
        "metadata": {"name": "kubevirt-ca", **place},
        "data": {"ca-bundle": authority},
    }
    leaf = pem(site.now - 8 * hours, site.now + 16 * hours)
    site.secret = {
        "kind": "Secret",
        "metadata": {"name": "kubevirt-virt-handler-certs", **place},
        "data": {"tls.crt": base64.b64encode(leaf.encode()).decode()},
    }
    rule = {
        "apiGroups": ["kubevirt.io"],
        "resources": ["virtualmachineinstances", "virtualmachineinstancemigrations"],
        "verbs": ["get", "list", "watch"],
    }
    site.roles = [{"metadata": {"name": "tortie-node"}, "rules": [rule]}]
    account = {"kind": "ServiceAccount", "name": "tortie-node", "namespace": "kube-system"}
    site.bindings = [
        {
            "metadata": {"name": "tortie-node"},
            "roleRef": {"kind": "ClusterRole", "name": "tortie-node"},
            "subjects": [account],
        }
    ]


def _network(site: Site) -> None:
    site.calico = [
        resource(Kind.IP_POOL, "vms", {"cidr": "10.65.0.0/16", "natOutgoing": False}),
        resource(Kind.IP_POOL, "pods", {"cidr": "10.66.0.0/16", "natOutgoing": True}),
        resource(Kind.BGP_CONFIGURATION, "default", {"nodeToNodeMeshEnabled": True}),
        resource(Kind.FELIX_CONFIGURATION, "default", {"liveMigrationRouteConvergenceTime": "30s"}),
        resource(Kind.BGP_PEER, "rack", {"peerIP": "172.31.0.1", "asNumber": 64512}),
    ]
    for node in site.nodes:
        address = node["status"]["addresses"][0]["address"]
        spec = {"bgp": {"ipv4Address": f"{address}/16"}}
        site.calico.append(resource(Kind.NODE, node["metadata"]["name"], spec))
