"""Rules and sysctls count for the wire they were made for, whatever happens while they are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from felix_shim.cluster import ENDPOINTS
from felix_shim.events import Done, NetworkChanged, Stored, Surveyed
from felix_shim.lanes import perform
from felix_shim.outlets import POLICY
from felix_shim.reconciler import RESYNC_SECONDS
from libtortie.linux.port import Link, LinkChanged, LinkGone, NetworkEvent
from libtortie.model.names import host_ifname
from tests.fakes.agent_world import NAMESPACE, Bench, endpoint_record

HOST = host_ifname(NAMESPACE, "web")
PROXY_ARP = f"net/ipv4/conf/{HOST}/proxy_arp"
STATUS = "k8s default%2Fweb eth0"


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.start()
    made.add_veth("web")
    made.settle()
    return made


def until_policy_is_asked_for(bench: Bench) -> None:
    lane = bench.lanes[POLICY]
    while lane.waiting is None:
        assert bench.reconciler.turn(wait=False)


def program(bench: Bench) -> Done:
    """The lane does what it was asked; what it did is not told yet."""
    lane = bench.lanes[POLICY]
    assert lane.waiting is not None
    (generation, job), lane.waiting = lane.waiting, None
    return perform(POLICY, generation, job)


def make_anew(bench: Bench) -> None:
    """The veth goes and comes, as in an ADD that found it gone; the agent has yet to hear of it."""
    bench.kernel.delete_link(HOST)
    bench.add_veth("web")


def test_a_link_made_anew_while_the_old_one_is_set_up_is_set_up_too(bench: Bench) -> None:
    record = endpoint_record("web", vm=False)
    bench.inbox.post(Stored(ENDPOINTS, record))
    until_policy_is_asked_for(bench)
    done = program(bench)
    make_anew(bench)
    bench.heard()
    bench.tell(done)
    assert bench.kernel.read_sysctl(PROXY_ARP) == "1"
    assert bench.metrics("web") == [1024]
    assert STATUS in bench.status


def test_rules_of_the_old_addresses_are_not_those_of_the_new(bench: Bench) -> None:
    bench.inbox.post(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    until_policy_is_asked_for(bench)
    done = program(bench)
    bench.nft_broken = True
    fresh = endpoint_record("web", vm=False, address="10.65.0.9")
    bench.tell(Stored(ENDPOINTS, fresh), done)
    assert bench.metrics("web", "10.65.0.9") == []
    assert bench.status == {}
    bench.nft_broken = False
    bench.advance(1)
    assert bench.metrics("web", "10.65.0.9") == [1024]
    assert "10.65.0.9" in bench.status[STATUS]


@pytest.mark.parametrize("news", ["survey", "event"])
def test_a_link_whose_end_nobody_told_is_known_by_its_index(bench: Bench, news: str) -> None:
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    assert bench.metrics("web") == [1024]
    make_anew(bench)
    bench.events.drain()  # an overrun: none of it is heard
    link = bench.kernel.link(HOST)
    assert isinstance(link, Link)
    if news == "event":
        bench.tell(NetworkChanged(LinkChanged(link)))
    else:
        bench.tell(Surveyed(bench.clock.now, bench.kernel.links(), bench.kernel.routes(version=4)))
    assert bench.kernel.read_sysctl(PROXY_ARP) == "1"
    assert bench.metrics("web") == [1024]


def survey_from_before(bench: Bench) -> Surveyed:
    """What a survey found that began now and is told later."""
    found = Surveyed(bench.clock.now, bench.kernel.links(), bench.kernel.routes(version=4))
    bench.clock.now += 0.001
    return found


def test_a_survey_from_before_a_link_came_does_not_take_it_down(bench: Bench) -> None:
    bench.kernel.delete_link(HOST)
    bench.settle()
    old = survey_from_before(bench)
    bench.add_veth("web")
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    bench.tell(old)
    assert STATUS in bench.status
    assert bench.metrics("web") == [1024]


def test_a_survey_from_before_a_link_went_does_not_bring_it_up(bench: Bench) -> None:
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    old = survey_from_before(bench)
    bench.kernel.delete_link(HOST)
    bench.settle()
    assert bench.status == {}
    bench.tell(old)
    assert HOST not in bench.reconciler.world.links_up
    assert bench.status == {}
    assert bench.log.of("apply_failed") == []


def test_an_older_survey_does_not_make_a_link_another_one(bench: Bench) -> None:
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    before = bench.kernel.links()
    make_anew(bench)
    bench.settle()
    (local,) = bench.reconciler.world.roster.on_interface(HOST)
    wire = local.wire
    bench.tell(Surveyed(bench.clock.now, before, bench.kernel.routes(version=4)))
    assert local.wire is wire
    assert bench.kernel.read_sysctl(PROXY_ARP) == "1"
    assert STATUS in bench.status


@pytest.mark.parametrize("news", ["gone", "down"])
def test_an_end_that_is_told_late_is_not_the_new_links(bench: Bench, news: str) -> None:
    """A survey, on a thread of its own, may find the new link before the old one's end is heard."""
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    old = bench.kernel.link(HOST)
    assert isinstance(old, Link)
    make_anew(bench)
    bench.events.drain()  # still on their way
    bench.tell(Surveyed(bench.clock.now, bench.kernel.links(), bench.kernel.routes(version=4)))
    (local,) = bench.reconciler.world.roster.on_interface(HOST)
    wire, index = local.wire, bench.reconciler.world.links_up[HOST]
    assert index > old.ifindex
    late: NetworkEvent = LinkGone(HOST, old.ifindex)
    if news == "down":
        late = LinkChanged(replace(old, up=False))
    bench.tell(NetworkChanged(late))
    assert local.wire is wire
    assert bench.reconciler.world.links_up[HOST] == index
    assert STATUS in bench.status
    assert bench.metrics("web") == [1024]
    bench.tell(NetworkChanged(LinkGone(HOST, index)))
    assert HOST not in bench.reconciler.world.links_up
    assert bench.status == {}


def sysctls_looked_at(bench: Bench) -> list[str]:
    """What is written, or would be if it were not so already, from now on."""
    looked: list[str] = []
    write = bench.kernel.write_sysctl

    def noted(name: str, value: str) -> None:
        looked.append(name)
        write(name, value)

    bench.kernel.write_sysctl = noted  # type: ignore[method-assign]  # a spy, on this kernel alone
    return looked


def test_a_wire_that_was_set_up_is_left_alone_until_the_resync(bench: Bench) -> None:
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    looked = sysctls_looked_at(bench)
    bench.add_veth("other")
    bench.tell(Stored(ENDPOINTS, endpoint_record("other", vm=False, address="10.65.0.9")))
    assert looked and not any(HOST in name for name in looked)
    bench.kernel.write_sysctl(PROXY_ARP, "0")  # somebody else's doing
    bench.advance(RESYNC_SECONDS + 1)
    assert bench.kernel.read_sysctl(PROXY_ARP) == "1"


def test_a_resync_whose_job_gave_way_to_a_later_one_is_made_up_for(bench: Bench) -> None:
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    bench.kernel.write_sysctl(PROXY_ARP, "0")
    bench.reconciler.world.resyncs += 1
    bench.reconciler.world.due.chores.add(POLICY)
    until_policy_is_asked_for(bench)
    bench.lanes[POLICY].waiting = None  # the lane was busy, and the next job took its place
    bench.reconciler.world.due.chores.add(POLICY)
    bench.settle()
    assert bench.kernel.read_sysctl(PROXY_ARP) == "1"


def test_a_link_is_nobodys_work_before_its_endpoint_is_stored() -> None:
    bench = Bench()
    bench.start()
    before = (len(bench.rules), bench.status_writes)
    bench.add_veth("web")
    bench.settle()
    assert (len(bench.rules), bench.status_writes) == before
    bench.tell(Stored(ENDPOINTS, endpoint_record("web", vm=False)))
    assert bench.metrics("web") == [1024]
    assert STATUS in bench.status
