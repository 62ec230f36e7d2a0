"""Quotas without room for a second pod, the migration network, budgets that let nobody go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.vm_cluster import Json, Site, healthy
from tortiectl.kubevirt.spec import LabelSelector
from tortiectl.preflight.examine import Scope, examine
from tortiectl.preflight.findings import Finding, Severity
from tortiectl.preflight.migration_network import STATUS
from tortiectl.preflight.world import Budget

OF_VM1 = LabelSelector(match_labels={"app": "vm1"})


def found_in(site: Site) -> tuple[Finding, ...]:
    return examine(site.cluster(), Scope()).findings


def with_resources(site: Site) -> None:
    """vm1's launcher asks for something, in two containers; nobody else does."""
    asks = {"requests": {"memory": "2Gi", "cpu": "500m"}, "limits": {"memory": "2560Mi"}}
    more = {"requests": {"memory": "512Mi"}, "limits": None}
    site.pods[0]["spec"]["containers"] = [{"resources": asks}, {"resources": more}, {"name": "x"}]


def quota(hard: Json, used: Json, namespace: str = "shop", **spec: Any) -> Json:
    return {
        "metadata": {"name": "limits", "namespace": namespace},
        "spec": {"hard": hard, **spec},
        "status": {"used": used},
    }


@pytest.mark.parametrize(
    ("hard", "used", "says"),
    [
        ({"requests.memory": "4Gi"}, {"requests.memory": "2560Mi"}, "2560Mi of 4Gi used"),
        ({"memory": "4Gi"}, {"memory": "2Gi"}, "2684354560 needed"),
        ({"cpu": "1"}, {"cpu": "600m"}, "cpu: 600m of 1 used, 0.5 needed"),
        ({"limits.memory": "4000Mi"}, {"limits.memory": "2560Mi"}, "limits.memory"),
        ({"pods": "200"}, {"pods": "200"}, "pods: 200 of 200 used, 1 needed"),
        ({"count/pods": "1"}, {"count/pods": "1"}, "count/pods"),
    ],
)
def test_a_quota_without_room_is_found(hard: Json, used: Json, says: str) -> None:
    site = healthy(vms=1)
    with_resources(site)
    site.quotas.append(quota(hard, used))
    (one,) = found_in(site)
    assert (one.code, one.severity, one.subject.name) == ("ResourceQuota", Severity.BLOCKS, "vm1")
    assert says in one.text


@pytest.mark.parametrize(
    "harmless",
    [
        quota({"requests.memory": "5Gi"}, {"requests.memory": "2560Mi"}),
        quota({"requests.memory": "1Gi"}, {"requests.memory": "1Gi"}, namespace="other"),
        quota({"pods": "1"}, {"pods": "1"}, scopes=["BestEffort"]),
        quota({"pods": "1"}, {"pods": "1"}, scopeSelector={"matchExpressions": [{}]}),
        quota({"limits.cpu": "1"}, {"limits.cpu": "1"}),
        quota({"requests.storage": "1", "services": "1"}, {"services": "1"}),
        quota({"pods": "many"}, {"pods": "x"}),
        {"metadata": 7, "spec": [], "status": "x"},
    ],
)  # fmt: skip
def test_other_quotas_are_no_alarm(harmless: Json) -> None:
    site = healthy(vms=1)
    with_resources(site)
    site.quotas.append(harmless)
    assert found_in(site) == ()


def handler(node: str, noted: object) -> Json:
    text = noted if isinstance(noted, str) else json.dumps(noted)
    meta = {"name": f"virt-handler-{node}", "namespace": "kubevirt", "annotations": {STATUS: text}}
    return {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


THERE = [
    {"name": "kindnet", "ips": ["10.0.0.1"]},
    {"name": "kubevirt/fast", "interface": "migration0", "ips": ["192.0.2.1"]},
]


def with_network(noted: object, network: str = "fast") -> Site:
    site = healthy(vms=2, nodes=3)
    site.config()["migrations"]["network"] = network
    site.handlers = [handler(f"n{number}", THERE) for number in (1, 2)] + [handler("n3", noted)]
    return site


@pytest.mark.parametrize(
    "noted",
    [
        [], THERE[:1], [{"name": "kubevirt/fast"}], [{"name": "fast", "ips": []}], "{", "7", [7],
        [{"name": "kubevirt/faster", "ips": ["192.0.2.1"]}], [{"name": "fast", "ips": "x"}],
    ],
)  # fmt: skip
def test_a_node_that_is_not_on_the_migration_network_is_named(noted: object) -> None:
    (one,) = found_in(with_network(noted))
    assert (one.code, one.subject.name) == ("MigrationNetwork", "n3")
    assert "fast" in one.text


def test_nodes_that_are_on_it_are_no_alarm() -> None:
    assert found_in(with_network(THERE)) == ()
    assert found_in(with_network([{"name": "fast", "ips": ["2001:db8::1"]}])) == ()
    assert found_in(with_network([], network="")) == ()
    elsewhere = with_network([])
    elsewhere.nodes[2]["metadata"]["labels"]["kubevirt.io/schedulable"] = "false"
    elsewhere.vmis = [one for one in elsewhere.vmis if one["status"]["nodeName"] != "n3"]
    assert "MigrationNetwork" not in {one.code for one in found_in(elsewhere)}


@pytest.mark.parametrize(
    ("least", "most", "code"),
    [
        (None, 0, "BudgetOfNone"), (None, "0%", "BudgetOfNone"), ("100%", None, "BudgetOfNone"),
        (1, None, "Budget"), (None, 1, ""), (2, None, ""), ("50%", None, ""),
    ],
)  # fmt: skip
def test_budgets_that_let_nobody_go(least: object, most: object, code: str) -> None:
    site = healthy(vms=1)
    site.budgets.append(Budget("shop", "one", OF_VM1, least, most))
    assert [one.code for one in found_in(site)] == ([code] if code else [])
