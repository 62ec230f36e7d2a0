"""ADD and the node's network: routes in the way, the gateway, MTU, IPv6."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_plugin.errors import (
    AttachmentConflict,
)
from libtortie.errors import (
    KernelError,
)
from libtortie.linux.port import Route, RouteProto, VethPair
from libtortie.model import names
from tests.fakes.cni_world import (
    CniWorld,
    first_address,
)

# --- routes in the way -----------------------------------------------------------------------


def occupy(world: CniWorld, address: str) -> str:
    """A live veth of another workload that has a route for an address."""
    node = world.node()
    node.netns("other")
    node.kernel.ensure_veth(
        VethPair("cali00000000000", "ee:ee:ee:ee:ee:ee", "eth0", "/run/netns/other", 1500)
    )
    node.kernel.ensure_route(Route(ip_network(address + "/32"), 512, "cali00000000000"))
    return "cali00000000000"


def test_a_route_on_another_live_veth_stops_an_ordinary_pod(world: CniWorld) -> None:
    node = world.node()
    occupy(world, "10.65.0.77")
    world.put_pod("web-0")
    with pytest.raises(AttachmentConflict, match=r"10\.65\.0\.77/32 dev cali00000000000"):
        node.add("web-0", "c1", IP="10.65.0.77")
    assert world.allocated() == {}
    assert [n for n in node.host.links if n.startswith("cali")] == ["cali00000000000"]
    assert world.endpoints() == []


def test_a_route_on_the_right_veth_is_accepted(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    first = node.add("web-0", "c1")
    node.kernel.ensure_route(
        Route(ip_network(f"{first_address(first)}/32"), 0, first.interfaces[0].name)
    )
    assert node.add("web-0", "c1") == first


def test_a_bird_route_to_an_uplink_is_not_in_the_way(world: CniWorld) -> None:
    node = world.node()
    node.kernel.ensure_route(Route(ip_network("10.65.0.77/32"), 768, "uplink0"))
    world.put_pod("web-0")
    assert first_address(node.add("web-0", "c1", IP="10.65.0.77")) == "10.65.0.77"


# --- gateway, MTU, IPv6 ----------------------------------------------------------------------


def test_the_gateway_is_routable_without_a_default_route(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    (helper,) = [r for r in node.host.routes.values() if str(r.dst) == "169.254.1.1/32"]
    assert helper.ifname == "lo"
    assert helper.proto == RouteProto.KERNEL, "BIRD must not learn it"


@pytest.mark.parametrize(
    ("file", "settings", "default_route", "expected"),
    [
        (None, {}, False, 1500),
        (None, {}, True, 1442),
        ("1430\n", {}, True, 1430),
        ("garbage", {}, True, 1442),
        ("1430\n", {"mtu": 1400}, True, 1400),
    ],
)
def test_mtu(
    world: CniWorld, file: str | None, settings: dict[str, int], default_route: bool, expected: int
) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.kernel.set_link("uplink0", mtu=1442)
    if default_route:
        node.kernel.ensure_route(Route(ip_network("0.0.0.0/0"), 100, "uplink0"))
    if file is not None:
        (world.directory / "mtu").write_text(file)
    result = node.add("web-0", "c1", conf=settings)
    assert [i.mtu for i in result.interfaces] == [expected, expected]


def test_dual_stack(world: CniWorld) -> None:
    node = world.node()
    world.pool("pool-6", "fd00:10:65::/112")
    world.put_pod("web-0", annotations={"cni.projectcalico.org/ipFamilies": '["IPv4", "IPv6"]'})
    result = node.add("web-0", "c1")
    assert [a.version for a in result.addresses] == [4, 6]
    assert result.addresses[1].network.prefixlen == 128
    host = result.interfaces[0].name
    assert str(node.host.addresses[host][0]) == "fe80::ecee:eeff:feee:eeee/64"
    inside = node.machine.space("/run/netns/c1")
    assert any(
        str(r.dst) == "::/0" and str(r.gateway) == "fe80::ecee:eeff:feee:eeee"
        for r in inside.routes.values()
    )
    assert any(r.dst == result.addresses[1].network for r in node.host.routes.values())
    assert node.host.sysctls[f"net/ipv6/conf/{host}/forwarding"] == "1"


def test_nobody_looks_for_duplicates_of_an_ipv6_address(world: CniWorld) -> None:
    """For two seconds it would answer nobody. A search that has begun ends with IPv6."""
    node = world.node()
    world.pool("pool-6", "fd00:10:65::/112")
    world.put_pod("web-0", annotations={"cni.projectcalico.org/ipFamilies": '["IPv6"]'})
    host, netns = names.host_ifname("default", "web-0"), node.netns("c1")
    for name, space in ((host, node.host), ("eth0", node.machine.space(netns))):
        space.sysctls[f"net/ipv6/conf/{name}/accept_dad"] = "1"  # as the kernel has it
    node.add("web-0", "c1")
    for name in (host, "eth0"):
        base = f"write_sysctl net/ipv6/conf/{name}"
        steps = [f"{base}/disable_ipv6 1", f"{base}/accept_dad 0", f"{base}/disable_ipv6 0"]
        assert [step for step in world.faults.seen if step in steps] == steps


def test_no_ipv6_in_the_kernel_matters_to_those_who_want_it_only(world: CniWorld) -> None:
    node = world.node()
    world.pool("pool-6", "fd00:10:65::/112")

    def no_ipv6(operation: str, subject: str) -> None:
        if operation == "write_sysctl" and "ipv6" in subject:
            raise KernelError(f"cannot write sysctl {subject}: Read-only file system")

    node.machine.before = no_ipv6
    node.host.sysctls["net/ipv6/conf/all/disable_ipv6"] = "1"
    world.put_pod("web-0")
    node.add("web-0", "c1")
    world.put_pod("web-1")
    with pytest.raises(KernelError, match="net/ipv6"):
        node.add("web-1", "c2", conf={"ipam": {"assign_ipv6": "true"}})
    assert len(world.endpoints()) == 1
