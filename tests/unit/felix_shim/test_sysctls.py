"""Kernel settings of a node and of workload interfaces."""

from __future__ import annotations

from cni_plugin.dataplane import HOST_LINK_LOCAL
from felix_shim.drivers import sysctls
from felix_shim.drivers.sysctls import NodeSettings, Wires
from libtortie.errors import KernelError
from libtortie.linux.port import Route, RouteProto
from tests.fakes.kernel import FakeKernel

FORWARDING = "net/ipv6/conf/all/forwarding"


def test_a_node_forwards_ipv4_only_until_it_has_an_ipv6_workload() -> None:
    kernel = FakeKernel()
    sysctls.ensure_node(kernel)
    assert kernel.read_sysctl("net/ipv4/ip_forward") == "1"
    assert kernel.read_sysctl(FORWARDING) == "0"
    sysctls.ensure_ipv6(kernel, ())
    assert kernel.read_sysctl(FORWARDING) == "1"


def test_uplinks_go_on_listening_to_router_advertisements() -> None:
    kernel = FakeKernel()
    for name in ("eth0", "eth1"):
        kernel.add_link(name)
    kernel.write_sysctl("net/ipv6/conf/eth0/accept_ra", "1")
    changes = kernel.namespaces.changes
    changes.clear()
    sysctls.ensure_ipv6(kernel, ("eth0", "eth1", "gone"))
    assert [subject for _, subject in changes] == [
        "net/ipv6/conf/eth0/accept_ra 2",
        f"{FORWARDING} 1",
    ], "first the uplinks: turning forwarding on drops what was learnt"
    sysctls.ensure_ipv6(kernel, ("eth0", "eth1", "gone"))
    assert len(changes) == 2


def test_a_workload_that_is_not_there_is_named() -> None:
    kernel = FakeKernel()
    kernel.add_link("cali1")
    assert sysctls.ensure_workloads(kernel, ("cali1", "cali2")) == {"cali2"}
    assert kernel.read_sysctl("net/ipv4/conf/cali1/proxy_arp") == "1"


def written(kernel: FakeKernel) -> list[str]:
    """Sysctls that were changed since it was last asked."""
    changes = kernel.namespaces.changes
    found = [subject for operation, subject in changes if operation == "write_sysctl"]
    changes.clear()
    return found


def test_only_a_workload_with_ipv6_addresses_forwards_ipv6() -> None:
    kernel = FakeKernel()
    for name in ("cali4", "cali6"):
        kernel.add_link(name)
        kernel.write_sysctl(f"net/ipv6/conf/{name}/accept_ra", "1")
    assert sysctls.ensure_workloads(kernel, ("cali4", "cali6"), {"cali6"}) == frozenset()
    names = {name for name in written(kernel) if "ipv6" in name}
    assert {name for name in names if "cali4" in name} == {
        "net/ipv6/conf/cali4/accept_ra 1",
        "net/ipv6/conf/cali4/accept_ra 0",
    }, "but none of them may be the node's router"
    assert "net/ipv6/conf/cali6/forwarding 1" in names
    assert "net/ipv6/conf/cali6/accept_ra 0" in names


def test_a_wire_is_set_up_once_and_again_when_it_is_another_or_a_round_begins() -> None:
    kernel = FakeKernel()
    kernel.add_link("cali1")
    settings = NodeSettings(kernel)
    first, second = object(), object()
    nobody: frozenset[str] = frozenset()
    proxy_arp = "net/ipv4/conf/cali1/proxy_arp"

    def undone(wire: object, turn: int) -> bool:
        """Whether somebody's change stays."""
        kernel.write_sysctl(proxy_arp, "0")
        settings.ensure(Wires({"cali1": wire}, turn), nobody)
        return kernel.read_sysctl(proxy_arp) == "0"

    assert not undone(first, 0)
    assert undone(first, 0)
    assert not undone(second, 0)
    assert undone(second, 0)
    assert not undone(second, 1)
    settings.ensure(Wires({}, 1), nobody)
    assert not undone(second, 1), "it was away meanwhile"


def test_a_wire_that_could_not_be_set_up_is_tried_again() -> None:
    kernel = FakeKernel()
    settings = NodeSettings(kernel)
    wires = Wires({"cali1": object()})
    assert settings.ensure(wires, frozenset()) == {"cali1"}
    kernel.add_link("cali1")
    assert settings.ensure(wires, frozenset()) == frozenset()
    assert kernel.read_sysctl("net/ipv4/conf/cali1/proxy_arp") == "1"


def test_the_node_begins_to_forward_ipv6_with_its_first_ipv6_workload_whenever_it_comes() -> None:
    kernel = FakeKernel()
    kernel.add_link("cali1")
    settings = NodeSettings(kernel, ("eth0",))
    settings.ensure(Wires({}), frozenset())
    assert (kernel.read_sysctl("net/ipv4/ip_forward"), kernel.read_sysctl(FORWARDING)) == ("1", "0")
    settings.ensure(Wires({"cali1": object()}), frozenset({"cali1"}))
    assert kernel.read_sysctl(FORWARDING) == "1"
    kernel.write_sysctl("net/ipv4/ip_forward", "0")
    kernel.write_sysctl(FORWARDING, "0")
    settings.ensure(Wires({"cali1": object()}, 1), frozenset({"cali1"}))
    assert (kernel.read_sysctl("net/ipv4/ip_forward"), kernel.read_sysctl(FORWARDING)) == ("1", "1")


def test_an_ipv6_gateway_that_is_gone_is_given_back() -> None:
    """One that is there is left alone, and so is a link that is not."""
    kernel = FakeKernel()
    for name in ("cali1", "cali2"):
        kernel.add_link(name)
    network = HOST_LINK_LOCAL.network
    kernel.ensure_route(Route(network, 256, ifname="cali1", proto=RouteProto.KERNEL))
    changes = kernel.namespaces.changes
    changes.clear()
    assert sysctls.ensure_gateways(kernel, ("cali1", "cali2", "cali3")) == ""
    assert changes == [("ensure_address", f"cali2 {HOST_LINK_LOCAL}")]
    assert sysctls.ensure_gateways(kernel, ()) == ""


def test_a_gateway_that_the_kernel_refuses_keeps_no_other_from_its_own() -> None:
    kernel = FakeKernel()
    for name in ("cali1", "cali2"):
        kernel.add_link(name)

    def refuse(operation: str, subject: str) -> None:
        if subject.startswith("cali1 "):
            raise KernelError(f"{operation} {subject}: IPv6 is off")

    kernel.namespaces.before = refuse
    said = sysctls.ensure_gateways(kernel, ("cali1", "cali2"))
    assert said.startswith("cali1: ")
    assert kernel.addresses("cali2") == (HOST_LINK_LOCAL,)
