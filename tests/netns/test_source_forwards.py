"""Where BGP moves a VM, its source sends on what still arrives: three agents, a BIRD each."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until
from tests.fakes.overlay_site import SOURCE, TARGET, OverlaySite, Shape

pytestmark = pytest.mark.root


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OverlaySite]:
    with ExitStack() as stack:
        made = OverlaySite(tmp_path, fresh_name("sf"), Shape((4, 6), "Never"))
        stack.callback(made.close)
        made.start()
        yield made


def _has(site: OverlaySite, metric: int, address: str) -> bool:
    return site.nodes[1].metrics_to(TARGET, address) == [metric]


def test_a_node_that_has_not_heard_of_the_move_reaches_the_vm_by_its_source(
    site: OverlaySite,
) -> None:
    """The third node's BIRD stands still: its packets go to the source all the time, while the
    route is raised, when it no longer is, and when the source's pod is gone."""
    site.await_ways(["here", "n0 directly", "n0 directly"])
    site.nodes[2].signal_bird(signal.SIGSTOP)
    site.migrate(1)
    site.leave(0, SOURCE)
    site.nodes[1].announce(TARGET)
    forwarded = ["n1 directly", "here", "n0 directly"]
    site.await_ways(forwarded)
    for address in site.addresses:
        assert _has(site, 512, address)
    site.succeed(1)
    for address in site.addresses:
        until("the route is reverted", partial(_has, site, 1024, address))
    site.await_ways(forwarded)
    site.nodes[0].done("DEL", SOURCE, SOURCE)
    site.await_ways(forwarded)
    site.nodes[2].signal_bird(signal.SIGCONT)
    site.await_ways(["n1 directly", "here", "n1 directly"])
