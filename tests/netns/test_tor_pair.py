"""Two ToRs, one a BIRD and one an FRR, and flows spread over both: a cut-over switches both.

Three agents with a BIRD each; the routers run what `tortiectl bgp tor-config` prints. The move
there and home is rows 2 and 6 of Calico's own end-to-end tests: eBGP, raised by a community.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from lab import clock
from tests.fakes.flow_probes import Seen, probing
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until
from tests.fakes.overlay_site import SOURCE, TARGET, OverlaySite, Shape
from tests.fakes.tor_pair import CLIENTS, FLOWS, Router, TorPair

pytestmark = pytest.mark.root
HOME = "virt-launcher-db-2"
Window = tuple[int, int]


@pytest.fixture(params=[""])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TorPair]:
    tmp_path.chmod(0o755)
    with ExitStack() as stack:
        site = OverlaySite(tmp_path, fresh_name("tp"), Shape((4, 6), "Never"))
        stack.callback(site.close)
        site.start()
        made = TorPair(site, request.param)
        stack.callback(made.down)
        made.up()
        yield made


def cut_over(pair: TorPair, left: tuple[int, str], come: tuple[int, str], *asked: Router) -> Window:
    """The guest leaves a pod and speaks from another; until these ToRs, and its node, switched."""
    site, (source, old), (target, new) = pair.site, left, come
    begin = clock.monotonic()
    site.leave(source, old)
    site.nodes[target].announce(new)
    for address in site.addresses:
        raised = partial(_has, pair, target, new, 512, address)
        until("the target has the route", raised)
    pair.await_way(f"n{target}", *asked)
    return begin, clock.monotonic()


def _has(pair: TorPair, number: int, pod: str, metric: int, address: str) -> bool:
    return pair.site.nodes[number].metrics_to(pod, address) == [metric]


def reverted(pair: TorPair, number: int, pod: str) -> None:
    for address in pair.site.addresses:
        until("the route is reverted", partial(_has, pair, number, pod, 1024, address))


def settle(
    pair: TorPair, left: tuple[int, str], come: tuple[int, str], migration: str = "m1"
) -> None:
    """The migration succeeds, the route is plain again, and the source's pod goes."""
    pair.await_raised(True)
    pair.site.succeed(come[0], migration=migration)
    reverted(pair, *come)
    pair.await_raised(False)
    pair.site.nodes[left[0]].done("DEL", left[1], left[1])
    pair.await_way(f"n{come[0]}")
    pair.await_both()


def judge(pair: TorPair, seen: Seen, *windows: Window) -> None:
    assert len(seen.sent) == 2 * FLOWS
    assert min(seen.sent.values()) > 0
    took = [round((until - since) / clock.NS_PER_MS) for since, until in windows]
    lost = {flow: len(at) for flow, at in seen.lost_at.items()}
    print(f"cut-overs took {took} ms; lost {lost} of {seen.sent}")
    outside = seen.lost_outside(windows)
    assert not outside, f"lost at these ms, beside cut-overs {took}: {outside}"


def sources() -> list[str]:
    return [one for addresses in CLIENTS.values() for one in addresses]


@pytest.mark.parametrize("pair", ["", "65000:100"], ids=["med", "community"], indirect=True)
def test_a_move_there_and_home_switches_both_and_no_flow_loses_more(pair: TorPair) -> None:
    site = pair.site
    before = [pair.sent(one) for one in pair.routers]
    with probing(pair.client, sources(), site.addresses) as seen:
        site.migrate(1)
        there = cut_over(pair, (0, SOURCE), (1, TARGET))
        settle(pair, (0, SOURCE), (1, TARGET))
        site.migrate(0, migration="m2", pod=HOME)
        home = cut_over(pair, (1, TARGET), (0, HOME))
        settle(pair, (1, TARGET), (0, HOME), migration="m2")
    judge(pair, seen, there, home)
    after = [pair.sent(one) for one in pair.routers]
    assert all(now - then > 100 for then, now in zip(before, after, strict=True)), (
        f"flows went by one alone: {before} {after}"
    )


@pytest.mark.parametrize("number", [0, 1], ids=["bird", "frr"])
@pytest.mark.parametrize("whole", [False, True], ids=["daemon", "router"])
def test_one_that_dies_in_the_middle_and_returns(pair: TorPair, number: int, whole: bool) -> None:
    """It dies when the target is there, the VM moves without it, and it returns while the route is
    raised: what it then learns is where the VM is."""
    site, dead, left = pair.site, pair.routers[number], pair.routers[1 - number]
    with probing(pair.client, sources(), site.addresses) as seen:
        site.migrate(1)
        died = clock.monotonic()
        dead.cut() if whole else dead.kill()
        pair.await_legs(left)
        gone = died, clock.monotonic()
        there = cut_over(pair, (0, SOURCE), (1, TARGET), left)
        if whole:
            dead.mend()
        dead.start()
        pair.await_way("n1")
        pair.await_both()
        settle(pair, (0, SOURCE), (1, TARGET))
    judge(pair, seen, *([gone] if whole else []), there)


def test_a_nodes_bird_that_is_killed_costs_nothing(pair: TorPair) -> None:
    """Both routers help it restart (RFC 4724), and keep its routes until they come again."""
    node = pair.site.nodes[0]
    with probing(pair.client, sources(), pair.site.addresses) as seen:
        before = node.bird_pid()
        node.signal_bird(signal.SIGKILL)
        until("another BIRD runs", lambda: node.bird_pid() != before)
        until("its sessions are up", lambda: pair.sessions(node) == 4)
        pair.await_way("n0")
        pair.await_both()
    judge(pair, seen)
