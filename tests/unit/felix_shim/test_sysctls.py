"""Kernel settings of a node and of workload interfaces."""

from __future__ import annotations

from cni_plugin.dataplane import HOST_LINK_LOCAL
from felix_shim.drivers import sysctls
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
