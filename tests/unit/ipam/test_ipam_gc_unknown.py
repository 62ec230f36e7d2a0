"""What is not known is kept: an API that fails, lists that are partial or empty, records unread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ipam.gc import Outcome, explain
from ipam.gc_inventory import NODES
from libtortie.errors import Compacted, Malformed, TortieError, Unauthorized, Unavailable
from libtortie.kube.objects import KubeNode, Pod
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.gc_world import Town

KEEP, WAIT, FREE = Outcome.KEEP, Outcome.WAIT, Outcome.FREE


@pytest.fixture
def town() -> Town:
    return Town()


@pytest.mark.parametrize(
    "error", [Unauthorized("list pods: 403"), Unavailable("nobody there"), Malformed("half a page")]
)
def test_an_api_that_fails_frees_nothing(town: Town, error: Exception) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    for _ in range(3):
        town.kube.fail(error, verb="list", plural="pods")
        town.sweep()
        assert town.of(address) is KEEP
        assert town.why(address) == f"unknown: pod shop/web: {error}"
    town.sweep()
    assert town.of(address) is WAIT, "failures confirmed nothing"


def test_pages_that_expire_are_asked_for_at_once_and_those_that_break_off_free_nothing(
    town: Town,
) -> None:
    """The first page came, without the pod that is asked about."""
    (address,) = town.start("web")
    town.pod("db", ips=["10.65.0.99"])
    error: TortieError = Compacted("the continue parameter is too old")

    def broken(model: Any, namespace: str = "", **_: Any) -> Any:
        objects, version = town.kube.list(model, namespace)
        yield tuple(one for one in objects if one.metadata.name != "web"), version
        raise error

    town.kube.pages = broken  # type: ignore[method-assign]  # such a server
    town.sweep()
    assert (town.of(address), town.why(address)) == (KEEP, "pod shop/web lives and has it")
    error = Unavailable("cut off")
    town.sweep()
    assert town.why(address) == "unknown: pod shop/web: cut off"


def test_a_failure_between_two_observations_neither_counts_nor_resets(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep()
    town.kube.fail(Unavailable("away"), verb="list", plural="pods")
    town.sweep()
    assert town.of(address) is KEEP
    town.sweep()
    assert town.of(address) is FREE


def test_an_empty_list_of_pods_is_not_believed(town: Town) -> None:
    (address,) = town.start("web")
    for name in ("web", "kube-proxy"):
        town.remove_pod(name)
    town.settle()
    assert town.held == {str(address)}
    assert town.why(address).startswith("unknown: pod shop/web: the API lists no pods at all")
    town.settle(2, trust_empty=True)
    assert town.held == set()


def test_an_empty_list_of_nodes_is_not_believed(town: Town) -> None:
    addresses = town.tunnel("n1")
    for name in ("n0", "n1", "n2"):
        town.remove_node(name)
    town.settle()
    assert town.held == set(addresses)
    assert "the API lists no nodes at all" in town.why(addresses[0])
    town.settle(2, trust_empty=True)
    assert town.held == set()


@pytest.mark.parametrize("version", ["", "0"])
def test_a_server_that_has_read_nothing_frees_nothing(town: Town, version: str) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    real = town.kube.list

    def stale(*args: Any, **options: Any) -> Any:
        return real(*args, **options)[0], version

    town.kube.list = stale  # type: ignore[method-assign]  # such a server
    town.settle()
    assert town.held == {str(address)}


def test_without_an_api_pods_are_kept_and_nodes_are_the_datastores(town: Town) -> None:
    (address,) = town.start("web")
    gone = town.tunnel("n2")
    town.reader = None
    town.remove_node("n2")
    town.settle()
    assert town.held == {str(address)}
    assert town.why(address) == "unknown: pod shop/web: no Kubernetes API is configured"
    assert gone


def test_without_an_api_and_without_nodes_no_node_is_taken_for_removed(town: Town) -> None:
    addresses = town.tunnel("n1")
    town.reader = None
    for name in ("n0", "n1", "n2"):
        town.remove_node(name)
    town.settle()
    assert town.held == set(addresses)
    assert town.why(addresses[0]).endswith("no Node is stored, and no Kubernetes API is configured")
    town.settle(2, trust_empty=True)
    assert town.held == set()


def test_a_list_that_lacks_a_living_pod_is_found_out(town: Town) -> None:
    """The last question before an address is freed is asked by name."""
    (address,) = town.start("web")
    real = town.kube.list

    def partial(model: Any, *args: Any, **options: Any) -> Any:
        objects, version = real(model, *args, **options)
        return tuple(one for one in objects if one.metadata.name != "web"), version

    town.kube.list = partial  # type: ignore[method-assign]  # such a server
    town.settle(2)
    assert town.held == {str(address)}
    assert (town.of(address), town.why(address)) == (KEEP, "pod shop/web lives and has it")
    town.sweep()
    assert town.of(address) is WAIT, "it was found alive: the clock starts anew"
    town.kube.fail(Unavailable("away"), verb="get", plural="pods")
    town.sweep()
    assert town.why(address) == "unknown: away"


def test_a_list_that_lacks_a_living_node_is_found_out(town: Town) -> None:
    addresses = town.tunnel("n3")
    town.node("n3", stored=False)
    real = town.kube.list

    def partial(model: Any, *args: Any, **options: Any) -> Any:
        objects, version = real(model, *args, **options)
        return tuple(one for one in objects if one.metadata.name != "n3"), version

    town.kube.list = partial  # type: ignore[method-assign]  # such a server
    town.settle()
    assert town.held == set(addresses)
    assert {block.node for block in town.world.blocks()} == {"n3"}
    town.kube.list = real  # type: ignore[method-assign]  # healed
    town.kube.remove(KubeNode, "n3")
    town.settle(2)
    assert town.held == set()


def test_a_pod_born_while_the_lists_are_read_is_not_dead(town: Town) -> None:
    """Allocations are read before pods: hooked in between, its ADD and the pod are both missed or
    the pod is seen, never the allocation alone."""
    real = town.kube.list
    born: list[str] = []

    def birth(model: Any, *args: Any, **options: Any) -> Any:
        found = real(model, *args, **options)
        if model is Pod:
            born.append(f"late-{len(born)}")
            town.start(born[-1])
        return found

    town.kube.list = birth  # type: ignore[method-assign]  # the world moves on
    for _ in range(3):
        town.sweep()
        assert town.last is not None
        assert {one.outcome for one in town.last.verdicts} <= {KEEP}
    assert len(town.held) == len(born) == 3


def test_a_node_that_cannot_be_read_counts_as_any(town: Town) -> None:
    addresses = town.tunnel("n1")
    town.remove_node("n1")
    store = town.world.store
    real = store.list

    def half(scope: Any) -> Any:
        found = real(scope)
        return replace(found, malformed=("a node",)) if scope == NODES else found

    store.list = half  # type: ignore[method-assign]  # one Node is malformed
    town.settle()
    assert town.held == set(addresses)
    assert town.last is not None
    assert "a node" in town.last.opinions.inventory.unreadable


def test_a_dry_run_explains_and_changes_nothing(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    store = FaultyStore(town.world.store)
    town.settle(3, store=store, dry_run=True)
    assert town.of(address) is FREE
    assert town.held == {str(address)}
    assert store.commits == []
    assert town.last is not None
    gone = f"{address} of handle k8s-pod-network.c-web: pod shop/web is gone"
    assert f"free: {gone}" in explain(town.last.verdicts)
