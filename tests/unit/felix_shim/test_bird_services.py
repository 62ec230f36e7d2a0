"""Which services' addresses a node announces by themselves, and how it hears of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from felix_shim import bird_services
from felix_shim.bird_passwords import REFUSED_SECONDS
from felix_shim.bird_services import (
    EndpointSlice,
    Ranges,
    Service,
    ServiceSource,
    Use,
    addresses_of,
)
from felix_shim.events import BgpTold, Event, ServiceAddress
from libtortie import errors
from tests.fakes.agent_world import NODE, RecordingLog
from tests.fakes.kube import FakeKube

CLUSTER, EXTERNAL, BALANCER = "10.96.0.5", "192.0.2.9", "198.51.100.9"
RANGES = Ranges(
    {
        Use.CLUSTER: (ip_network("10.96.0.0/12"),),
        Use.EXTERNAL: (ip_network("192.0.2.0/24"),),
        Use.BALANCER: (ip_network("198.51.100.0/24"),),
    }
)
NAME = ("shop", "web")


def service(policy: str = "Cluster", name: str = "web", **spec: Any) -> dict[str, Any]:
    addresses = {"clusterIPs": [CLUSTER], "externalIPs": [EXTERNAL]}
    return {
        "metadata": {"namespace": "shop", "name": name},
        "spec": addresses | {"externalTrafficPolicy": policy} | spec,
        "status": {"loadBalancer": {"ingress": [{"ip": BALANCER}]}},
    }


def endpoints(node: str, *, ready: bool | None = True, name: str = "web-1") -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": "web"}
    return {
        "metadata": {"namespace": "shop", "name": name, "labels": labels},
        "endpoints": [{"nodeName": node, "conditions": {"ready": ready}}],
    }


def single(policy: str, *, here: bool, whole: bool = True) -> set[str]:
    found = addresses_of(
        [Service.model_validate(service(policy))], frozenset({NAME} if here else ())
    )
    return {str(one.network_address) for one in Ranges(RANGES.of, whole).single(found)}


def test_local_traffic_is_drawn_to_the_nodes_that_have_endpoints() -> None:
    assert single("Local", here=True) == {CLUSTER, EXTERNAL, BALANCER}
    assert single("Local", here=False) == set()
    assert single("Cluster", here=True) == set(), "the ranges say all"


def test_load_balancers_one_by_one_where_their_range_is_not_announced() -> None:
    for here in (True, False):
        assert single("Cluster", here=here, whole=False) == {BALANCER}
    assert single("Local", here=False, whole=False) == set()
    assert ip_network("198.51.100.0/24") in RANGES.aggregates()
    assert ip_network("198.51.100.0/24") not in Ranges(RANGES.of, whole=False).aggregates()


def test_addresses_outside_the_ranges_and_of_other_uses_are_not_announced() -> None:
    swapped = service("Local", clusterIPs=[BALANCER], externalIPs=["203.0.113.1"])
    swapped["status"] = {"loadBalancer": {"ingress": [{"ip": CLUSTER}, {"hostname": "x"}]}}
    found = addresses_of([Service.model_validate(swapped)], frozenset({NAME}))
    assert RANGES.single(found) == ()


@pytest.mark.parametrize("text", ["None", "", "fe80::1%eth0", "0.0.0.0", "127.0.0.1", "x"])
def test_what_is_no_address_of_a_service_is_passed_over(text: str) -> None:
    spec = service("Local", clusterIPs=[text], externalIPs=[text])
    spec["status"] = {}
    assert addresses_of([Service.model_validate(spec)], frozenset({NAME})) == frozenset()


class Following:
    """A source on its two threads, and the last that it told."""

    def __init__(self, *, wanted: bool = True, now: Callable[[], float] = time.monotonic) -> None:
        self.kube = FakeKube()
        self.told: list[Event] = []
        self.source = ServiceSource(self.kube, NODE, self.told.append, RecordingLog(), now)
        bodies = (self.source.run_services, self.source.run_slices)
        self.threads = [threading.Thread(target=body) for body in bodies]
        if wanted:
            self.source.want()

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.source.stop()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def until(self, *expected: ServiceAddress) -> None:
        end = time.monotonic() + 60
        while not self.told or self.told[-1] != BgpTold(services=frozenset(expected)):
            assert time.monotonic() < end, self.told[-1:]
            time.sleep(0.005)


@pytest.fixture
def following() -> Iterator[Following]:
    made = Following()
    yield made
    made.stop()


def all_of(*, here: bool, local: bool = True) -> list[ServiceAddress]:
    uses = ((Use.CLUSTER, CLUSTER), (Use.EXTERNAL, EXTERNAL), (Use.BALANCER, BALANCER))
    return [ServiceAddress(use, ip_address(one), local, here) for use, one in uses]


def test_services_and_their_endpoints_are_followed(following: Following) -> None:
    kube = following.kube
    kube.put(service("Local"), Service)
    kube.put(endpoints("elsewhere"), EndpointSlice)
    following.start()
    following.until(*all_of(here=False))
    kube.put(endpoints(NODE), EndpointSlice)
    following.until(*all_of(here=True))
    kube.put(endpoints(NODE, ready=False), EndpointSlice)
    following.until(*all_of(here=False))
    kube.put(endpoints(NODE, ready=None, name="web-2"), EndpointSlice)
    following.until(*all_of(here=True))
    kube.remove(EndpointSlice, "web-2", "shop")
    following.until(*all_of(here=False))
    kube.remove(Service, "web", "shop")
    following.until()


def test_what_went_while_nobody_watched_is_gone(following: Following) -> None:
    kube = following.kube
    kube.put(service("Local"), Service)
    kube.put(endpoints(NODE), EndpointSlice)
    following.start()
    following.until(*all_of(here=True))
    kube.cut_watches()
    kube.remove(Service, "web", "shop")
    kube.compact()
    following.until()


def test_nothing_is_asked_before_it_is_wanted() -> None:
    following = Following(wanted=False)
    following.start()
    following.stop()
    assert following.kube.calls == []
    assert following.told == []


def test_who_may_not_see_services_does_not_wait_for_them() -> None:
    """Else BIRD would wait, too, with its sessions to all other nodes as they once were."""
    times = iter([100.0, 100.0 + REFUSED_SECONDS])
    following = Following(now=lambda: next(times))
    following.kube.put(service("Local"), Service)
    following.kube.put(endpoints(NODE), EndpointSlice)
    following.kube.fail(errors.Unavailable("silent"), verb="list", plural="services")
    following.kube.fail(errors.Unauthorized("no"), verb="list", plural="services", times=2)
    following.start()
    try:
        following.until(*all_of(here=True))
    finally:
        following.stop()
    assert following.told[0] == BgpTold(services=frozenset())


def test_a_list_of_what_is_known_costs_no_look_at_everything(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube, looks = following.kube, []

    def counted(*args: Any) -> frozenset[ServiceAddress]:
        looks.append(args)
        return addresses_of(*args)

    monkeypatch.setattr(bird_services, "addresses_of", counted)
    kube.put(service("Local"), Service)
    for number in range(50):
        kube.put(service("Local", f"web-{number}"), Service)
        kube.put(endpoints("elsewhere", name=f"slice-{number}"), EndpointSlice)
    following.start()
    following.until(*all_of(here=False))
    before = len(looks)
    list_again(kube)
    kube.put(endpoints("third", name="slice-1"), EndpointSlice)
    kube.put(endpoints(NODE, name="slice-2"), EndpointSlice)
    following.until(*all_of(here=False), *all_of(here=True))
    assert len(looks) - before == 1


def list_again(kube: FakeKube) -> None:
    """Have both kinds listed once more: a watch that has only just been asked for is cut, too."""
    wanted = {"services", "endpointslices"}
    before, end = len(kube.calls), time.monotonic() + 60
    while not wanted <= {plural for verb, plural in kube.calls[before:] if verb == "list"}:
        assert time.monotonic() < end, kube.calls
        kube.cut_watches(errors.Compacted("a while ago"))
        time.sleep(0.05)
