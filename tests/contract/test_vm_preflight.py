"""`tortiectl vm preflight` against an API server, with the rights that a user has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lab.apiserver.server import ApiServer
from libtortie.model.ipam import Persistence
from libtortie.model.keys import Kind
from tests.fakes.kubernetes_store import put_object
from tests.fakes.vm_api import put_site, vm_api
from tests.fakes.vm_cluster import ALLOW, Site, healthy, launcher
from tests.fakes.vm_ctl import Ctl


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with vm_api() as running:
        yield running


@pytest.fixture
def ctl(server: ApiServer, tmp_path: Path) -> Ctl:
    return Ctl(server, tmp_path)


def codes(ctl: Ctl, *args: str, code: int = 2) -> set[str]:
    """Reasons in JSON."""
    document = json.loads(ctl("vm", "preflight", *args, "-o", "json", code=code).stdout)
    return {one["reason"] for one in document["findings"]}


@pytest.fixture
def site() -> Site:
    return healthy(vms=6, nodes=3, now=datetime.now(UTC))


def test_a_healthy_cluster(server: ApiServer, site: Site, ctl: Ctl) -> None:
    put_site(server, site)
    shown = ctl("vm", "preflight", "--all").output
    assert shown == (
        "6 VMs judged: 0 blocked, 0 would lose connections, 0 at risk; "
        "0 findings about the cluster\n"
    )
    document = json.loads(ctl("vm", "preflight", "--all", "-o", "json").stdout)
    days = document.pop("certificate_days_left")
    assert days.keys() == {"kubevirt/kubevirt-ca", "kubevirt/kubevirt-virt-handler-certs"}
    assert all(left > 0 for left in days.values())
    assert document == {
        "findings": [],
        "judged": [f"shop/vm{number}" for number in range(1, 7)],
        "not_judged": [],
        "not_looked_at": [],
        "counts": {"blocks": 0, "breaks": 0, "risk": 0},
    }


def test_every_reason_with_its_fix(server: ApiServer, site: Site, ctl: Ctl) -> None:
    del site.vmis[0]["metadata"]["annotations"][ALLOW]
    del site.vms[0]["spec"]["template"]["metadata"]["annotations"][ALLOW]
    site.claims[0]["spec"]["accessModes"] = ["ReadWriteOnce"]
    site.of(Kind.IP_POOL, "vms")["spec"]["natOutgoing"] = True
    pools = [{"cidr": "10.65.0.0/16", "natOutgoing": "Enabled"}]
    site.installation = {"ipPools": pools, "linuxPolicySetupTimeoutSeconds": 10}
    put_site(server, site)
    shown = ctl("vm", "preflight", "vm1", "-n", "shop", code=2).output
    assert "VM shop/vm1: blocks\n  DisksNotLiveMigratable: " in shown
    assert "spec.template.metadata.annotations of the VM, and restart the VM" in shown
    assert 'fix: kubectl patch installation default --type=json -p \'[{"op":"replace",' in shown
    assert shown.endswith(
        "1 VM judged: 1 blocked, 0 would lose connections, 0 at risk; 1 finding about the cluster\n"
    )
    table = ctl("vm", "preflight", "--node", "n2", "-o", "table", code=2).output
    assert table.splitlines()[0].split() == ["SEVERITY", "SUBJECT", "REASON", "MESSAGE"]
    assert codes(ctl, "shop/vm2") == {"NATOutgoing"}


def test_quotas_and_the_network_of_migrations(server: ApiServer, site: Site, ctl: Ctl) -> None:
    limits = {"name": "limits", "namespace": "shop"}
    full = {"metadata": limits, "spec": {"hard": {"pods": "6"}}, "status": {"used": {"pods": "6"}}}
    site.quotas.append(full)
    site.config()["migrations"]["network"] = "fast"
    labels = {"kubevirt.io": "virt-handler"}
    meta = {"name": "virt-handler-x", "namespace": "kubevirt", "labels": labels}
    site.handlers = [{"metadata": meta, "spec": {"nodeName": "n1", "containers": [{"name": "x"}]}}]
    put_site(server, site)
    assert codes(ctl, "shop/vm1") == {"ResourceQuota", "MigrationNetwork"}


def test_exit_status_for_ci(server: ApiServer, site: Site, ctl: Ctl) -> None:
    site.vmis[0]["metadata"]["annotations"][ALLOW] = "false"
    put_site(server, site)
    assert codes(ctl, "--all", code=0) == {"BridgeAnnotationValue"}
    assert codes(ctl, "--all", "--fail-on", "risk") == {"BridgeAnnotationValue"}
    assert codes(ctl, "--all", "-n", "kubevirt", code=0) == set()
    assert "name a VM, or give one of" in ctl("vm", "preflight", code=1).output
    assert "there is no node n9" in ctl("vm", "preflight", "--node", "n9", code=1).output


def test_vms_that_cannot_be_judged(server: ApiServer, site: Site, ctl: Ctl) -> None:
    site.vmis[0]["apiVersion"] = "kubevirt.io/v7"
    site.vmis[1]["spec"]["networks"] = "all"
    site.vmis[2]["status"]["phase"] = "Scheduling"
    site.vmis.pop(3)
    put_site(server, site)
    assert codes(ctl, "--all", code=0) == {"Unreadable"}
    shown = ctl("vm", "preflight", "shop/vm1", code=1).output
    assert "VirtualMachineInstance shop/vm1: its version kubevirt.io/v7 is not known" in shown
    assert "shop/vm2: spec.networks" in ctl("vm", "preflight", "shop/vm2", code=1).output
    assert "does not run: it is Scheduling" in ctl("vm", "preflight", "shop/vm3", code=1).output
    assert "VM shop/vm4 has no VMI" in ctl("vm", "preflight", "shop/vm4", code=1).output


def test_no_kubevirt_and_half_a_kubevirt(server: ApiServer, site: Site, ctl: Ctl) -> None:
    put_site(server, site)
    server.api.catalogue.kinds = tuple(
        kind
        for kind in server.api.catalogue.kinds
        if kind.plural != "virtualmachineinstancemigrations"
    )
    assert codes(ctl, "--all") == {"KindMissing"}
    server.api.catalogue.hide("kubevirt.io")
    shown = ctl("vm", "preflight", "--all", code=1).output
    assert "no KubeVirt: http" in shown
    assert "does not serve kubevirt.io; install KubeVirt" in shown


def test_without_its_datastore_the_network_is_not_judged(
    server: ApiServer, site: Site, ctl: Ctl, tmp_path: Path
) -> None:
    put_site(server, site)
    ctl.environ |= {"DATASTORE_TYPE": "sqlite", "TORTIE_SQLITE_PATH": str(tmp_path / "none.db")}
    del ctl.environ["CALICO_API_GROUP"]
    shown = ctl("vm", "preflight", "--all", code=1).output
    assert "not judged: the network's configuration: " in shown
    assert "none.db: no such datastore" in shown
    assert "6 VMs judged: 0 blocked" in shown


def test_persistence_two_migrations_and_two_launchers(
    server: ApiServer, site: Site, ctl: Ctl
) -> None:
    site.persistence = Persistence.DISABLED
    site.migrations = [
        {
            "apiVersion": "kubevirt.io/v1",
            "metadata": {"name": f"move{number}", "namespace": "shop"},
            "spec": {"vmiName": "vm1"},
            "status": {"phase": "Running"},
        }
        for number in range(2)
    ]
    site.pods.append(launcher(site.vmis[1], "zzzzz", "n1"))
    put_site(server, site)
    assert codes(ctl, "--all") == {
        "AddressPersistenceDisabled", "InFlightMigration", "TwoLaunchers",
    }  # fmt: skip


ROLE = {
    "rules": [
        {
            "apiGroups": ["kubevirt.io", "", "projectcalico.org"],
            "resources": [
                "virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations",
                "kubevirts", "pods", "nodes", "ippools", "felixconfigurations", "bgppeers",
                "bgpconfigurations", "bgpfilters", "hostendpoints", "globalnetworkpolicies",
                "networkpolicies", "tiers", "profiles", "globalnetworksets", "namespaces",
                "serviceaccounts", "ipamconfigurations", "clusterinformations",
            ],
            "verbs": ["get", "list"],
        }
    ]
}  # fmt: skip


def test_what_the_user_may_not_read_is_told(site: Site, tmp_path: Path) -> None:
    with vm_api(tokens={"secret": "ann"}, authorization="RBAC") as server:
        put_site(server, site)
        roles, bindings = (
            f"{plural}.rbac.authorization.k8s.io"
            for plural in ("clusterroles", "clusterrolebindings")
        )
        put_object(server, roles, {"metadata": {"name": "ops"}, **ROLE})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "ops"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}
        binding = {"metadata": {"name": "ops"}, "roleRef": reference, "subjects": [subject]}
        put_object(server, bindings, binding)
        ctl = Ctl(server, tmp_path)
        shown = ctl("vm", "preflight", "--all", code=1).output
        assert "6 VMs judged: 0 blocked" in shown
        assert "not judged: list persistentvolumeclaims" in shown
        assert "not looked at: certificate kubevirt/kubevirt-virt-handler-certs: " in shown
        assert "MayNotMigrate: you may not create virtualmachineinstancemigrations" in shown
        assert "secret" not in shown.replace("secrets", "")


def test_a_forecast_looks_the_vm_up(server: ApiServer, site: Site, ctl: Ctl) -> None:
    site.vmis[0]["status"]["migratedVolumes"] = [{"volumeName": "root"}]
    site.claims[0]["status"] = {"capacity": {"storage": "10Gi"}}
    site.config()["migrations"] = {"bandwidthPerMigration": "64Mi", "allowPostCopy": True}
    put_site(server, site)
    asked = ("vm", "forecast", "shop/vm1", "-o", "json")
    found = json.loads(ctl(*asked).stdout)
    assert (found["memory_bytes"], found["disks_bytes"]) == (1 << 30, 10 << 30)
    assert found["bandwidth_bytes_per_second"] == 64 << 20
    assert found["expected_seconds"] == 176
    found = json.loads(ctl(*asked, "--dirty-rate", "64Mi", code=2).stdout)
    assert found["verdict"] == "disrupted"
    assert "--bandwidth is needed" in ctl("vm", "forecast", "--memory", "1Gi", code=1).output
