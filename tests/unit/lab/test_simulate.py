"""The simulator's own parts: its BIRD prefers as ours is told to, and its command tells."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Interface

import pytest

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import BirdInput
from lab.simulate import bgp
from lab.simulate.__main__ import main
from lab.simulate.scenarios import SCENARIOS
from lab.simulate.values import Entry, Node


def node(own: int, *heard: int) -> Node:
    kernel = frozenset({Entry(own, 0, "p0")} if own else ())
    return Node(True, 0, 0, kernel, tuple((metric,) for metric in heard), (0,))


def test_the_preferences_are_those_of_the_configuration() -> None:
    text = render_bird(BirdInput("n", IPv4Address("192.0.2.1"), IPv4Interface("192.0.2.1/24")))
    found = {int(number) for number in re.findall(r"preference = (\d+)", text)}
    assert {bgp.KERNEL_RAISED, bgp.PEER_RAISED, bgp.KERNEL, bgp.PEER} <= found


@pytest.mark.parametrize(
    ("own", "heard", "best"),
    [
        (512, (0, 512), -1),
        (1024, (0, 512), 1),
        (1024, (0, 1024), -1),
        (0, (1024, 512), 1),
        (0, (0, 0), None),
    ],
)
def test_what_is_best(own: int, heard: tuple[int, ...], best: int | None) -> None:
    assert bgp.best(node(own, *heard), 0) == best


def test_a_node_announces_what_is_best_and_no_normal_route_of_its_own_block() -> None:
    site = SCENARIOS["one-migration"].site
    assert bgp.announced(node(1024, 0, 0), 1, site) == (1024,)
    assert bgp.announced(node(1024, 0, 0), 0, site) == (0,)
    assert bgp.announced(node(512, 0, 512), 0, site) == (512,)
    assert bgp.announced(node(1024, 0, 512), 1, site) == (0,)


def test_the_command_replays_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "lossy", "--seed", "3"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("lossy, seed 3: no fault\n")
    assert len(text.splitlines()) > 5
