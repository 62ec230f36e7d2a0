"""A site of VMs on an API server, past all checks, and kinds that a lab does without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab.apiserver.api import Api
from lab.apiserver.kind import Kind as ServedKind
from lab.apiserver.kinds import KINDS, Catalogue
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.model.keys import Kind
from tests.fakes.kubernetes_store import NAMESPACES, put_object
from tests.fakes.vm_cluster import Site

Json = dict[str, Any]
EXTRA = (
    ServedKind("kubevirt.io", "v1", "kubevirts", "KubeVirt"),
    ServedKind("operator.tigera.io", "v1", "installations", "Installation", namespaced=False),
    ServedKind("", "v1", "resourcequotas", "ResourceQuota", builtin=True),
    ServedKind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", builtin=True),
    ServedKind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, builtin=True),
)
PLACE = Group.V3.value.partition("/")[0]


@contextmanager
def vm_api(*, hooks: bool = False, **options: Any) -> Iterator[ApiServer]:
    """A server that serves every kind that these tools read; `hooks`: with KubeVirt's admission."""
    api = Api(catalogue=Catalogue((*KINDS, *EXTRA)))
    with ApiServer(bookmark_interval=0.05, api=api, **options) as server:
        names = (*NAMESPACES, "kubevirt", "kube-node-lease")
        api.bootstrap_kind("namespaces", tuple({"metadata": {"name": name}} for name in names))
        if hooks:
            from lab.admission import Admission

            api.hooks.append(Admission(api))
        yield server
        assert server.crashes == []


def put_site(server: ApiServer, site: Site) -> None:
    """Store all of a site."""
    kubevirt = "kubevirt.io"
    for resource, bodies in (
        (f"virtualmachines.{kubevirt}", site.vms),
        (f"virtualmachineinstances.{kubevirt}", site.vmis),
        (f"virtualmachineinstancemigrations.{kubevirt}", site.migrations),
        ("nodes", site.nodes),
        ("pods", site.pods),
        ("pods", site.handlers),
        ("resourcequotas", site.quotas),
        ("persistentvolumeclaims", site.claims),
        ("persistentvolumes", site.volumes),
        (f"kubevirts.{kubevirt}", [site.kubevirt]),
        ("configmaps", [site.bundle]),
        ("secrets", [site.secret]),
        ("clusterroles.rbac.authorization.k8s.io", site.roles),
        ("clusterrolebindings.rbac.authorization.k8s.io", site.bindings),
    ):
        for body in bodies:
            put_object(server, resource, _with_uid(body))
    for name, when in site.renewals.items():
        meta = {"name": name, "namespace": "kube-node-lease"}
        spec = {"renewTime": when.isoformat(timespec="microseconds")}
        put_object(server, "leases.coordination.k8s.io", {"metadata": meta, "spec": spec})
    if site.installation is not None:
        body = {"metadata": {"name": "default"}, "spec": {"calicoNetwork": site.installation}}
        put_object(server, "installations.operator.tigera.io", body)
    _calico(server, site)


def _calico(server: ApiServer, site: Site) -> None:
    setting = {"kubeVirtVMAddressPersistence": site.persistence.value}
    spec = {"strictAffinity": False, "autoAllocateBlocks": True, **setting}
    body = {"metadata": {"name": "default"}, "spec": spec}
    put_object(server, f"ipamconfigurations.{PLACE}", body)
    by_name = {node["metadata"]["name"]: node for node in site.nodes}
    for one in site.calico:
        kind, name = Kind(one["kind"]), one["metadata"]["name"]
        if kind is not Kind.NODE:
            put_object(server, f"{kind.plural}.{PLACE}", one)
        elif bgp := one["spec"].get("bgp"):
            node = by_name[name]
            notes = {"projectcalico.org/IPv4Address": bgp["ipv4Address"]}
            put_object(
                server, "nodes", {**node, "metadata": {**node["metadata"], "annotations": notes}}
            )


def _with_uid(body: Json) -> Json:
    meta = body["metadata"]
    place = f"{meta.get('namespace', '')}-{meta['name']}"
    return {**body, "metadata": {"uid": f"uid-{body.get('kind', '')}-{place}", **meta}}
