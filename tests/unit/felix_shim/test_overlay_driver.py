"""The overlay in a kernel in memory: what is made, in which order, and what is left alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from felix_shim.drivers.vxlan import OverlayDriver
from felix_shim.overlay import Overlay, Whereabouts, overlay
from felix_shim.overlay_places import Pool, tunnel_mac
from felix_shim.overlay_settings import TunnelSettings
from libtortie.errors import KernelError
from libtortie.linux.port import Link, Route, RouteProto, RouteType
from libtortie.linux.tunnel import VxlanLink
from tests.fakes.agent_world import RecordingLog
from tests.fakes.kernel import FakeKernel
from tests.fakes.tunnels import FakeTunnels
from tests.unit.felix_shim.test_overlay_plan import METRIC, POOL, VM, ground, where

DEVICE = "vxlan.calico"
UPLINK_MTU = 1500


@dataclass
class Site:
    """A driver on a kernel with an uplink."""

    kernel: FakeKernel = field(default_factory=FakeKernel)
    log: RecordingLog = field(default_factory=RecordingLog)
    tunnels: FakeTunnels = field(init=False)
    driver: OverlayDriver = field(init=False)

    def __post_init__(self) -> None:
        self.tunnels = FakeTunnels(self.kernel)
        self.driver = OverlayDriver(self.kernel, self.tunnels, self.log)
        self.kernel.add_link("eth0")

    def restarted(self) -> None:
        """Another agent on the same kernel."""
        self.driver = OverlayDriver(self.kernel, self.tunnels, self.log)

    def apply(self, *wanted: Overlay, resyncs: int = 0) -> list[tuple[str, str]]:
        """What changed."""
        self.kernel.namespaces.changes.clear()
        self.driver.apply(wanted, resyncs)
        return list(self.kernel.namespaces.changes)

    def routes(self) -> frozenset[Route]:
        return frozenset(self.kernel.routes())


@pytest.fixture
def site() -> Site:
    return Site()


def wanted(vm_on: str = "n1", node: str = "n3", **changes: object) -> Overlay:
    return overlay(ground(node), where(vm_on, **changes))


NOTHING = overlay(ground(pools=()), Whereabouts())


def test_everything_is_made_far_ends_before_routes(site: Site) -> None:
    changes = site.apply(wanted())
    local, mac = ip_address("172.31.3.2"), tunnel_mac("n3", 4)
    assert site.tunnels.vxlan(DEVICE) == VxlanLink(DEVICE, 4096, 4789, local, mac, UPLINK_MTU - 50)
    assert site.kernel.addresses(DEVICE) == (ip_interface("10.65.3.1/32"),)
    assert site.routes() == wanted().routes
    assert site.kernel.read_sysctl(f"net/ipv4/conf/{DEVICE}/accept_redirects") == "0"
    assert {one.address for one in site.tunnels.neighbours(DEVICE)} == {
        ip_address("10.65.1.1"),
        ip_address("10.65.2.1"),
    }
    kinds = [operation for operation, _ in changes]
    last_end = max(i for i, kind in enumerate(kinds) if kind.startswith(("ensure_n", "ensure_f")))
    assert last_end < kinds.index("ensure_route")


def test_doing_it_again_changes_nothing(site: Site) -> None:
    site.apply(wanted("n2"))
    assert site.apply(wanted("n2")) == []
    site.restarted()
    quiet = {"set_link", "ensure_address"}  # said again, with nothing new in it
    assert {kind for kind, _ in site.apply(wanted("n2"))} <= quiet
    assert {kind for kind, _ in site.apply(wanted("n2"), resyncs=1)} <= quiet


def test_a_vms_move_is_one_route(site: Site) -> None:
    site.apply(wanted("n1"))
    assert site.apply(wanted("n2")) == [("ensure_route", f"{VM}/32 metric {METRIC}")]
    assert site.apply(wanted("n1")) == [("delete_route", f"{VM}/32 metric {METRIC}")]


def test_a_route_that_changes_its_way_is_replaced_in_place(site: Site) -> None:
    site.apply(wanted("n1", heard={VM: "n2"}))
    moved = replace(ground(), places={**ground().places})
    third = overlay(
        replace(
            moved,
            places={
                **moved.places,
                "n4": replace(
                    moved.places["n1"],
                    node="n4",
                    tunnel=ip_address("10.65.4.1"),
                    underlay=ip_interface("172.31.4.2/24"),
                    mac="66:00:00:00:00:04",
                ),
            },
        ),
        where("n4"),
    )
    changes = site.apply(third)
    assert [what for what in changes if "route" in what[0]] == [
        ("ensure_route", f"{VM}/32 metric {METRIC}")
    ]
    assert site.routes() == third.routes


def test_a_node_that_goes_takes_its_entries_along_after_the_routes(site: Site) -> None:
    site.apply(wanted("n2"))
    made = ground()
    fewer = overlay(
        replace(made, places={n: p for n, p in made.places.items() if n != "n2"}), where("n1")
    )
    kinds = [kind for kind, _ in site.apply(fewer)]
    assert {"delete_neighbour", "delete_forwarding", "delete_route"} == set(kinds)
    last_route = max(i for i, kind in enumerate(kinds) if kind == "delete_route")
    assert last_route < min(i for i, kind in enumerate(kinds) if kind == "delete_neighbour")
    assert [one.address for one in site.tunnels.neighbours(DEVICE)] == [ip_address("10.65.1.1")]


def test_a_far_end_with_another_mac_keeps_its_address(site: Site) -> None:
    site.apply(wanted())
    made = ground()
    changed = replace(made.places["n1"], mac="66:00:00:00:00:77")
    other = overlay(replace(made, places={**made.places, "n1": changed}), where())
    site.apply(other)
    neighbours = {one.address: one.mac for one in site.tunnels.neighbours(DEVICE)}
    assert neighbours[ip_address("10.65.1.1")] == "66:00:00:00:00:77"
    macs = {one.mac for one in site.tunnels.forwarding(DEVICE)}
    assert macs == {"66:00:00:00:00:77", made.places["n2"].mac}


def test_when_no_pool_wants_it_all_goes_and_what_is_others_stays(site: Site) -> None:
    others = (
        Route(ip_network("10.1.0.0/16"), 0, "eth0", ip_address("10.0.0.1")),
        Route(ip_network("10.2.0.0/26"), 768, proto=RouteProto.BIRD, type=RouteType.BLACKHOLE),
        Route(ip_network("10.3.0.1/32"), 0, "eth0", proto=RouteProto.TORTIE),
    )
    for route in others:
        site.kernel.ensure_route(route)
    site.apply(wanted("n2"))
    site.restarted()
    site.apply(NOTHING)
    assert site.routes() == frozenset(others)
    assert site.kernel.link(DEVICE) is None
    assert site.kernel.link("eth0") is not None
    assert site.apply(NOTHING) == []


def test_what_others_left_behind_is_put_right(site: Site) -> None:
    """Stale ends, routes and addresses of an earlier run, or of Calico's own agent."""
    site.apply(wanted("n2"))
    stale = Route(
        ip_network("10.65.9.0/26"),
        0,
        DEVICE,
        ip_address("10.65.9.1"),
        RouteProto.TORTIE,
        onlink=True,
    )
    site.kernel.ensure_route(stale)
    site.kernel.ensure_address(DEVICE, ip_interface("10.65.3.9/32"))
    site.tunnels.ensure_neighbour(DEVICE, ip_address("10.65.9.1"), "66:00:00:00:00:09")
    site.tunnels.ensure_forwarding(DEVICE, "66:00:00:00:00:09", ip_address("172.31.9.2"))
    site.tunnels.ensure_neighbour(DEVICE, ip_address("10.65.8.1"), "66:00:00:00:00:08")
    site.tunnels.ensure_forwarding(DEVICE, "66:00:00:00:00:07", ip_address("172.31.7.2"))
    site.apply(wanted("n2"), resyncs=1)
    assert site.routes() == wanted("n2").routes
    assert site.kernel.addresses(DEVICE) == (ip_interface("10.65.3.1/32"),)
    ends = {ip_address("10.65.1.1"), ip_address("10.65.2.1")}
    assert {one.address for one in site.tunnels.neighbours(DEVICE)} == ends
    assert len(site.tunnels.forwarding(DEVICE)) == len(ends)


def test_a_device_of_another_network_is_made_anew_with_all_that_is_on_it(site: Site) -> None:
    site.apply(wanted("n2"))
    other = overlay(ground(settings=TunnelSettings(vni=7)), where("n2"))
    site.apply(other)
    held = site.tunnels.vxlan(DEVICE)
    assert held is not None
    assert held.vni == 7
    assert site.routes() == other.routes
    assert len(site.tunnels.neighbours(DEVICE)) == 2


def test_a_link_of_another_kind_is_left_alone_and_the_rest_is_told(site: Site) -> None:
    site.kernel.add_link(DEVICE, "bridge")
    with pytest.raises(KernelError, match="is a bridge link"):
        site.apply(wanted())
    site.apply(NOTHING)
    link: Link | None = site.kernel.link(DEVICE)
    assert link is not None
    assert link.kind == "bridge"


def test_one_route_that_fails_costs_no_other_and_is_made_later(site: Site) -> None:
    def refuse(operation: str, subject: str) -> None:
        if operation == "ensure_route" and subject.startswith(str(VM)):
            raise KernelError("no room")

    site.apply(wanted("n1"))
    site.kernel.namespaces.before = refuse
    with pytest.raises(KernelError, match="no room"):
        site.apply(wanted("n2"))
    assert site.routes() == wanted("n1").routes
    site.kernel.namespaces.before = lambda operation, subject: None
    assert site.apply(wanted("n2")) == [("ensure_route", f"{VM}/32 metric {METRIC}")]


def test_a_device_that_was_taken_away_comes_back_on_the_next_look(site: Site) -> None:
    site.apply(wanted("n2"))
    site.kernel.delete_link(DEVICE)
    site.apply(wanted("n2"), resyncs=1)
    assert site.routes() == wanted("n2").routes
    assert len(site.tunnels.neighbours(DEVICE)) == 2


def test_a_family_in_trouble_costs_the_other_nothing(site: Site) -> None:
    site.kernel.add_link(DEVICE, "bridge")
    six = Overlay(6, settings=TunnelSettings())
    stale = Route(ip_network("fd65::/122"), 896, proto=RouteProto.TORTIE, type=RouteType.BLACKHOLE)
    site.kernel.ensure_route(stale)
    with pytest.raises(KernelError):
        site.apply(wanted(), six)
    assert site.kernel.routes(version=6) == ()


def test_problems_are_told_once(site: Site) -> None:
    made = ground()
    mute = replace(made, places={**made.places, "n1": replace(made.places["n1"], tunnel=None)})
    for _ in range(2):
        site.apply(overlay(mute, where()))
    assert site.log.of("overlay_incomplete") == [
        {"reason": "Node n1 has no tunnel address of IPv4"}
    ]
    site.apply(overlay(ground(pools=(Pool(POOL),)), where()))
    site.apply(overlay(mute, where()))
    assert len(site.log.of("overlay_incomplete")) == 2
