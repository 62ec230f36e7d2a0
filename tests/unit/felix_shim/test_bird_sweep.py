"""Routes that BIRD leaves behind when its metric changes."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from felix_shim.bird_sweep import Sweeper
from libtortie.errors import KernelError
from libtortie.linux.port import Route, RouteProto
from tests.fakes.kernel import FakeKernel

OLD, NEW = {4: 768, 6: 768}, {4: 1500, 6: 1500}
ONE, TWO, SIX = "10.65.0.2/32", "10.65.1.0/26", "fd00:65::2/128"
VIA = {4: ip_address("172.31.1.3"), 6: ip_address("fd00:1::3")}


class Node:
    """A kernel with an uplink, and a sweeper whose every pause lets BIRD install one route."""

    def __init__(self, root: Path) -> None:
        self.kernel = FakeKernel()
        self.kernel.add_link("eth0")
        self.file = root / "metrics.json"
        self.coming: list[tuple[str, int]] = []
        self.pauses = 0
        self.sweeper = Sweeper(self.kernel, self.file, self._pause)

    def _pause(self, _: float) -> None:
        self.pauses += 1
        if self.coming:
            self.route(*self.coming.pop(0))

    def route(self, cidr: str, metric: int, proto: RouteProto = RouteProto.BIRD) -> None:
        dst = ip_network(cidr)
        self.kernel.ensure_route(Route(dst, metric, "eth0", VIA[dst.version], proto))

    def metrics(self, cidr: str) -> list[int]:
        dst = ip_network(cidr)
        found = self.kernel.routes(version=dst.version, dst=dst)
        return sorted(route.priority for route in found)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr("felix_shim.bird_sweep.PATIENCE_SECONDS", 0.2)
    return Node(tmp_path)


def test_old_routes_go_once_the_new_are_there(node: Node) -> None:
    node.sweeper.note(OLD)
    for cidr in (ONE, TWO, SIX):
        node.route(cidr, 768)
    node.sweeper.note(NEW)
    node.coming = [(cidr, 1500) for cidr in (ONE, TWO, SIX)]
    assert node.sweeper.sweep(NEW) == 3
    assert [node.metrics(one) for one in (ONE, TWO, SIX)] == [[1500]] * 3


def test_what_bird_does_not_install_again_goes_too(node: Node) -> None:
    node.sweeper.note(OLD)
    node.route(ONE, 768)
    node.sweeper.note(NEW)
    assert node.sweeper.sweep(NEW) == 1
    assert node.metrics(ONE) == []
    assert node.pauses > 0, "it was waited for"


def test_routes_of_others_stay(node: Node) -> None:
    node.sweeper.note(OLD)
    node.route(ONE, 32)
    node.route(TWO, 768, RouteProto.BOOT)
    node.sweeper.note(NEW)
    assert node.sweeper.sweep(NEW) == 0
    assert (node.metrics(ONE), node.metrics(TWO)) == ([32], [768])


def test_an_agent_killed_before_the_sweep_finishes_it_later(node: Node) -> None:
    node.sweeper.note(OLD)
    node.route(ONE, 768)
    node.sweeper.note(NEW)  # and killed here
    node.route(ONE, 1500)
    again = Sweeper(node.kernel, node.file)
    again.note(NEW)
    assert again.sweep(NEW) == 1
    assert node.metrics(ONE) == [1500]


def test_a_sweep_that_fails_is_done_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.sweeper.note(OLD)
    node.route(ONE, 768)
    node.route(ONE, 1500)
    node.sweeper.note(NEW)

    def broken(route: Route) -> bool:
        raise KernelError(f"no {route.dst}")

    with monkeypatch.context() as patch:
        patch.setattr(node.kernel, "delete_route", broken)
        with pytest.raises(KernelError):
            node.sweeper.sweep(NEW)
    assert node.sweeper.sweep(NEW) == 1


def test_metrics_that_go_back_and_forth(node: Node) -> None:
    for metrics in (OLD, NEW, OLD):
        node.sweeper.note(metrics)
    node.route(ONE, 768)
    node.route(ONE, 1500)
    assert node.sweeper.sweep(OLD) == 1
    assert node.metrics(ONE) == [768]


def test_without_a_change_the_kernel_is_not_asked(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.sweeper.note(OLD)
    monkeypatch.setattr(node.kernel, "routes", None)
    written = node.file.stat().st_mtime_ns
    node.sweeper.note(OLD)
    assert node.sweeper.sweep(OLD) == 0
    assert node.file.stat().st_mtime_ns == written


@pytest.mark.parametrize("text", ["", "[]", "{", '{"4": 3}', '{"x": [1]}', '{"4": ["y"]}'])
def test_a_file_that_is_none_says_nothing(node: Node, text: str) -> None:
    node.file.write_text(text)
    node.sweeper.note(OLD)
    assert node.sweeper.sweep(OLD) == 0
