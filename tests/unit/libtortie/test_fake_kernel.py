"""The in-memory kernel's own extras: faults, the record of changes, lost notifications."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from libtortie.errors import KernelError, NotFound
from libtortie.linux.port import Overrun, Route, VethPair
from tests.fakes.kernel import FakeKernel, FakeNamespaces

ROUTE = Route(IPv4Network("10.65.0.2/32"), 1024, "cali1")


def test_a_fault_leaves_nothing_changed() -> None:
    namespaces = FakeNamespaces()
    host, pod = namespaces.open(""), namespaces.create("/pod")
    host.ensure_veth(VethPair("cali1", "ee:ee:ee:ee:ee:ee", "eth0", pod, 1500))

    def fail(operation: str, subject: str) -> None:
        if operation == "ensure_route":
            raise KernelError(f"as asked: {subject}")

    namespaces.before = fail
    with pytest.raises(KernelError, match=r"as asked: 10\.65\.0\.2/32 metric 1024"):
        host.ensure_route(ROUTE)
    assert host.routes() == ()
    host.write_sysctl("net/ipv4/conf/cali1/proxy_arp", "1")
    host.write_sysctl("net/ipv4/conf/cali1/proxy_arp", "1")
    assert namespaces.changes == [
        ("ensure_veth", "cali1"),
        ("write_sysctl", "net/ipv4/conf/cali1/proxy_arp 1"),
    ]


def test_a_deleted_namespace_takes_its_links_along() -> None:
    namespaces = FakeNamespaces()
    host, pod = namespaces.open(""), namespaces.create("/pod")
    namespaces.alias("/proc/1/ns/net", pod)
    host.ensure_veth(VethPair("cali1", "ee:ee:ee:ee:ee:ee", "eth0", pod, 1500))
    host.ensure_route(ROUTE)
    namespaces.delete(pod)
    assert host.link("cali1") is not None
    namespaces.delete("/proc/1/ns/net")
    assert host.link("cali1") is None
    assert host.routes() == ()
    with pytest.raises(NotFound):
        namespaces.open(pod)


def test_an_overrun_is_told_to_followers() -> None:
    kernel = FakeKernel()
    events = kernel.events()
    kernel.overrun()
    assert next(events) == Overrun()
    kernel.close()
    assert list(events) == []
