"""Which nodes and pods an affinity means, as Kubernetes' scheduler decides."""

from __future__ import annotations

from typing import Any

import pytest

from libtortie.kube.objects import Meta
from tortiectl.kubevirt.spec import NodeAffinity, PodTerm

ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
CORES = {"key": "cores", "operator": "Gt", "values": ["8"]}
NAME = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
LABELS = {"zone": "a", "cores": "16"}


@pytest.mark.parametrize(
    ("required", "allowed"),
    [
        (None, True),
        ({"nodeSelectorTerms": []}, False),
        ({"nodeSelectorTerms": [{}]}, False),
        ({"nodeSelectorTerms": [{"matchExpressions": [ZONE, CORES], "matchFields": [NAME]}]}, True),
        ({"nodeSelectorTerms": [{"matchExpressions": [ZONE | {"values": ["b"]}]}]}, False),
        ({"nodeSelectorTerms": [{"matchFields": [NAME | {"values": ["n2"]}]}]}, False),
        ({"nodeSelectorTerms": [{}, {"matchExpressions": [ZONE]}]}, True),
        ({"nodeSelectorTerms": [{"matchExpressions": [CORES | {"operator": "Lt"}]}]}, False),
    ],
)
def test_the_required_part_of_a_node_affinity(required: Any, allowed: bool) -> None:
    body = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    assert NodeAffinity.model_validate(body).allows("n1", LABELS) is allowed


@pytest.mark.parametrize(
    ("term", "meant"),
    [
        ({}, False),
        ({"labelSelector": {}}, True),
        ({"labelSelector": {"matchLabels": {"app": "web"}}}, True),
        ({"labelSelector": {"matchLabels": {"app": "db"}}}, False),
        ({"labelSelector": {}, "namespaces": ["bank"]}, False),
        ({"labelSelector": {}, "namespaces": ["bank", "shop"]}, True),
    ],
)
def test_a_term_of_a_pod_affinity(term: Any, meant: bool) -> None:
    pod = Meta(name="p", namespace="shop", labels={"app": "web"})
    assert PodTerm.model_validate(term).selects(pod, "shop") is meant


def test_a_term_means_pods_of_its_own_namespace() -> None:
    term = PodTerm.model_validate({"labelSelector": {}})
    assert not term.selects(Meta(name="p", namespace="shop"), "bank")
