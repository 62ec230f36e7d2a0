"""What a pass finds beside IPAM's own records and leaves alone."""

from __future__ import annotations

from controllers import report
from ipam.gc_leftovers import leftovers
from libtortie.errors import Unavailable
from libtortie.kube.objects import KubeNode
from libtortie.model.keys import Kind
from tests.fakes.gc_world import Town


def left(town: Town) -> list[str]:
    return list(leftovers(town.sweep().opinions))


def kubernetes_node(town: Town, name: str) -> None:
    """A stored Node that says which Kubernetes node it is."""
    refs = [{"orchestrator": "k8s", "nodeName": name}]
    town.world.resource(Kind.NODE, name, {"orchRefs": refs})


def test_what_is_in_use_is_none() -> None:
    town = Town()
    kubernetes_node(town, "n1")
    (address,) = town.start("web")
    town.endpoint("web", address)
    assert left(town) == []


def test_nodes_and_endpoints_that_stay_behind_are_told_with_some_names() -> None:
    town = Town()
    kubernetes_node(town, "n1")
    for number in range(5):
        town.endpoint(f"gone{number}", "192.0.2.9")
    town.kube.remove(KubeNode, "n1")
    assert left(town) == [
        "1 Nodes of removed nodes: n1",
        "5 WorkloadEndpoints of pods that are gone: "
        "shop/n1-k8s-gone0-eth0, shop/n1-k8s-gone1-eth0, shop/n1-k8s-gone2-eth0, …",
    ]
    assert town.last is not None
    told = list(report.text(town.last, dry_run=False))
    assert "left alone: 1 Nodes of removed nodes: n1" in told
    assert '"leftAlone": ["1 Nodes' in "".join(
        report.line(town.last, town.world.now(), dry_run=False)
    )


def test_an_api_that_does_not_answer_makes_nothing_a_leftover() -> None:
    town = Town()
    kubernetes_node(town, "n1")
    town.endpoint("gone", "192.0.2.9")
    town.kube.remove(KubeNode, "n1")
    for plural in ("nodes", "pods"):
        town.kube.fail(Unavailable("away"), verb="list", plural=plural)
    assert left(town) == []
