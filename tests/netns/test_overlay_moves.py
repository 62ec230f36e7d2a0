"""A VM moves between nodes whose pool is in the VXLAN overlay: three agents, real tunnels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.fresh_names import fresh_name
from tests.fakes.mortal_agent import arm, disarm
from tests.fakes.node_process import until
from tests.fakes.overlay_site import DEVICE, SOURCE, TARGET, OverlaySite

pytestmark = pytest.mark.root


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OverlaySite]:
    with ExitStack() as stack:
        made = OverlaySite(tmp_path, fresh_name("ov"))
        stack.callback(made.close)
        made.start()
        yield made


def answered(site: OverlaySite) -> None:
    until("the VM answers everybody", lambda: site.answers() == [True] * 3)


def moved(site: OverlaySite, *, to: int = 1) -> None:
    """All lead to the target, the target's own route is the best, and the VM answers."""
    wanted = [f"n{to}"] * 3
    wanted[to] = "here"
    until(f"all lead to n{to}", lambda: site.ways() == wanted)
    answered(site)


def test_a_vm_moves_and_comes_home(site: OverlaySite) -> None:
    answered(site)
    site.migrate(1)
    assert site.ways() == ["here", "n0", "n0"], "the target leads to the source"
    site.leave(0, SOURCE)
    site.nodes[1].announce(TARGET)
    moved(site)
    site.succeed(1)
    until("the route is reverted", lambda: site.nodes[1].metrics(TARGET) == [1024])
    assert site.nodes[0].metrics(SOURCE) == []
    moved(site)
    site.nodes[0].done("DEL", SOURCE, SOURCE)
    moved(site)
    site.migrate(0, migration="m2", pod="virt-launcher-db-2")
    site.leave(1, TARGET)
    site.nodes[0].announce("virt-launcher-db-2")
    moved(site, to=0)
    host_routes = [
        line["dst"] for line in site.nodes[2].ip_json("route") if line["dst"] == site.address_of_vm
    ]
    assert host_routes == [], "home: its block's route leads there"


def test_a_vm_moves_to_a_third_node_from_a_block_that_is_neithers(site: OverlaySite) -> None:
    """The owner of the block is neither source nor target of the second move."""
    site.migrate(1)
    site.leave(0, SOURCE)
    site.nodes[1].announce(TARGET)
    moved(site)
    site.succeed(1)
    site.nodes[0].done("DEL", SOURCE, SOURCE)
    site.migrate(2, migration="m2", pod="virt-launcher-db-2")
    assert site.ways() == ["n1", "here", "n1"]
    site.leave(1, TARGET)
    site.nodes[2].announce("virt-launcher-db-2")
    moved(site, to=2)


def test_while_the_store_is_stuck_the_source_forwards_and_the_rest_follows_later(
    site: OverlaySite,
) -> None:
    """The swap cannot be stored. The source hears it from the target, and third nodes go on
    sending to the source, which is the block's owner: nobody is without the VM."""
    site.migrate(1)
    with site.full_store():
        site.leave(0, SOURCE)
        site.nodes[1].announce(TARGET)
        until("the source forwards", lambda: site.ways()[:2] == ["n1", "here"])
        assert site.ways()[2] == "n0"
        answered(site)
    moved(site)


def test_an_owner_that_is_not_the_source_is_told_too(site: OverlaySite) -> None:
    site.migrate(1)
    site.leave(0, SOURCE)
    site.nodes[1].announce(TARGET)
    moved(site)
    site.succeed(1)
    site.nodes[0].done("DEL", SOURCE, SOURCE)
    until("the route is reverted", lambda: site.nodes[1].metrics(TARGET) == [1024])
    site.migrate(2, migration="m2", pod="virt-launcher-db-2")
    with site.full_store():
        site.leave(1, TARGET)
        site.nodes[2].announce("virt-launcher-db-2")
        until("n0 has it from n2", lambda: site.ways()[0] == "n2")
    moved(site, to=2)


def test_the_guest_finds_its_gateway_where_it_left_it(site: OverlaySite) -> None:
    """What it has cached at the source is right at the target, without asking anybody."""
    answered(site)
    mac = site.gateway_mac(0, SOURCE)
    assert mac == "ee:ee:ee:ee:ee:ee"
    site.migrate(1)
    site.know_gateway(1, TARGET, mac)
    site.leave(0, SOURCE)
    site.nodes[1].announce(TARGET)
    moved(site)
    assert site.gateway_mac(1, TARGET) == mac


def test_a_cluster_leaves_the_overlay_and_comes_back(site: OverlaySite) -> None:
    answered(site)
    site.put_pool(4, vxlanMode="CrossSubnet")
    until("all in one subnet: no tunnel", lambda: site.ways()[1:] == ["n0 directly"] * 2)
    answered(site)
    site.put_pool(4)
    until("no device is left", lambda: not any(has_device(site)))
    assert all(
        line.get("protocol") != "80" for node in site.nodes for line in node.ip_json("route")
    )
    site.put_pool(4, vxlanMode="Always")
    until("every device is back", lambda: all(has_device(site)))
    until("all lead to n0", lambda: site.ways() == ["here", "n0", "n0"])
    answered(site)


def has_device(site: OverlaySite) -> list[bool]:
    return [DEVICE in {one["ifname"] for one in node.ip_json("link")} for node in site.nodes]


# -- kill -9 -------------------------------------------------------------------------------------


def in_target(site: OverlaySite) -> None:
    site.nodes[1].kill()
    until("it listens again", lambda: len(site.nodes[1].lines("sniffer_open")) >= 2)
    arrive(site)


def after_the_raise(site: OverlaySite) -> None:
    """The route is raised, or about to be; nothing is remembered, the owner not swapped."""
    killed_at(site, "lane-memory", "save")


def before_the_swap(site: OverlaySite) -> None:
    killed_at(site, "owners", "promote")


def killed_at(site: OverlaySite, thread: str, step: str) -> None:
    """The VM arrives, and the target's agent dies where it would take a step of one thread."""
    target = site.nodes[1]
    arm(target.root, thread, step)
    arrive(site)
    assert target.agent is not None
    assert target.agent.wait(90) == -9
    disarm(target.root)
    target.start()


def in_live(site: OverlaySite) -> None:
    arrive(site)
    moved(site)
    site.nodes[1].kill()


def the_source(site: OverlaySite) -> None:
    """It is not there when the VM moves."""
    source = site.nodes[0]
    assert source.stop(9) == -9
    arrive(site)
    until("the third node follows", lambda: site.ways()[2] == "n1")
    source.start()


def the_third(site: OverlaySite) -> None:
    third = site.nodes[2]
    assert third.stop(9) == -9
    arrive(site)
    until("the source follows", lambda: site.ways()[0] == "n1")
    assert site.answers()[2], "by way of the block's owner"
    third.start()


def goes_on_speaking(site: OverlaySite) -> None:
    """A VM says more than one thing: the agent may have died before it heard the first."""

    def heard() -> bool:
        if site.ways()[1] != "here":
            site.nodes[1].announce(TARGET)
        return site.ways()[1] == "here"

    until("its node hears it", heard)


def arrive(site: OverlaySite) -> None:
    site.leave(0, SOURCE)
    site.nodes[1].announce(TARGET)


@pytest.mark.parametrize(
    "story", [in_target, after_the_raise, before_the_swap, in_live, the_source, the_third]
)
def test_an_agent_is_killed(site: OverlaySite, story: Callable[[OverlaySite], None]) -> None:
    site.migrate(1)
    story(site)
    goes_on_speaking(site)
    moved(site)
    site.succeed(1)
    until("the route is reverted", lambda: site.nodes[1].metrics(TARGET) == [1024])
    moved(site)
    assert [node.lines("agent_failed") for node in site.nodes] == [[]] * 3
