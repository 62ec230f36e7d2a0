"""Kernel settings of a node and of workload interfaces."""

from __future__ import annotations

from felix_shim.drivers import sysctls
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
