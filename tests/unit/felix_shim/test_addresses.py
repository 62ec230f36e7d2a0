"""Which address a method in words means, over the links of a fake kernel."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network

import pytest

from felix_shim.addresses import (
    Outside,
    find_address,
    find_address6,
    interfaces,
    parse_method,
    uplink_mtu,
)
from libtortie.errors import InvalidInput
from libtortie.linux.port import Route
from tests.fakes.kernel import FakeKernel


def machine(*links: tuple[str, str]) -> FakeKernel:
    """A kernel with these links, up, each with its addresses (comma-separated)."""
    kernel = FakeKernel()
    for name, addresses in links:
        kernel.add_link(name)
        for address in filter(None, addresses.split(",")):
            kernel.ensure_address(name, ip_interface(address))
    return kernel


def default_route(kernel: FakeKernel, link: str) -> None:
    kernel.ensure_route(Route(ip_network("0.0.0.0/0"), 0, ifname=link))


@pytest.fixture
def kernel() -> FakeKernel:
    """A NAT network that every VM has, a container bridge, the real network, storage."""
    return machine(
        ("nat0", "10.0.2.2/24"),
        ("docker0", "172.17.0.1/16"),
        ("cali0123", "10.65.0.9/32"),
        ("eth1", "169.254.7.7/16,192.0.2.11/24,fd00::11/64"),
        ("stor0", "198.51.100.11/25"),
    )


@pytest.mark.parametrize(
    ("method", "address", "link"),
    [
        ("autodetect", "10.0.2.2/24", "nat0"),
        ("first-found", "10.0.2.2/24", "nat0"),
        ("skip-interface=nat.*", "192.0.2.11/24", "eth1"),
        ("skip-interface=nat,eth", "198.51.100.11/25", "stor0"),
        ("interface=stor.*", "198.51.100.11/25", "stor0"),
        ("interface=^stor0$, eth1", "192.0.2.11/24", "eth1"),
        ("interface=docker0", "172.17.0.1/16", "docker0"),
        ("cidr=198.51.100.0/24", "198.51.100.11/25", "stor0"),
        ("cidr=203.0.113.0/24,192.0.2.0/24", "192.0.2.11/24", "eth1"),
        ("192.0.2.11/24", "192.0.2.11/24", "eth1"),
        ("192.0.2.11/32", "192.0.2.11/32", "eth1"),
        ("203.0.113.1/24", "203.0.113.1/24", ""),
    ],
)
def test_each_method(kernel: FakeKernel, method: str, address: str, link: str) -> None:
    found = find_address(kernel, method)
    assert (str(found.address), found.link) == (address, link)


@pytest.mark.parametrize(
    ("method", "address", "link"),
    [
        ("autodetect", "fd00::11/64", "eth1"),
        ("skip-interface=eth", "fd00:2::11/64", "stor0"),
        ("interface=stor0", "fd00:2::11/64", "stor0"),
        ("cidr=fd00:2::/32", "fd00:2::11/64", "stor0"),
        ("fd00:2::11/64", "fd00:2::11/64", "stor0"),
        ("can-reach=2001:db8::1", "fd00:2::11/64", "stor0"),
        ("kubernetes-internal-ip", "fd00:2::11/64", "stor0"),
    ],
)
def test_each_method_for_ipv6(kernel: FakeKernel, method: str, address: str, link: str) -> None:
    kernel.ensure_address("stor0", ip_interface("fd00:2::11/64"))
    kernel.ensure_address("stor0", ip_interface("fe80::11/64"))
    outside = Outside(
        source_towards=lambda _: ip_address("fd00:2::11"),
        internal_ips=lambda: (ip_address("198.51.100.11"), ip_address("fd00:2::11")),
    )
    found = find_address6(kernel, method, outside)
    assert (str(found.address), found.link) == (address, link)


def test_the_default_route_of_the_family_decides(kernel: FakeKernel) -> None:
    kernel.ensure_address("stor0", ip_interface("fd00:2::11/64"))
    default_route(kernel, "eth1")
    kernel.ensure_route(Route(ip_network("::/0"), 0, ifname="stor0"))
    assert find_address(kernel, "autodetect").link == "eth1"
    assert find_address6(kernel, "autodetect").link == "stor0"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("192.0.2.1/24", 6),
        ("fd00::1/64", 4),
        ("cidr=192.0.2.0/24", 6),
        ("cidr=fd00::/64", 4),
        ("can-reach=192.0.2.1", 6),
        ("can-reach=fd00::1", 4),
        ("fe80::1%eth0/64", 6),
        ("can-reach=fe80::1%eth0", 6),
    ],
)
def test_a_method_of_the_other_family_or_with_a_zone_is_none(text: str, version: int) -> None:
    with pytest.raises(ValueError, match="^ip6:" if version == 6 else "^ip:"):
        parse_method(text, version=version)


def test_the_default_routes_link_goes_first(kernel: FakeKernel) -> None:
    default_route(kernel, "eth1")
    assert find_address(kernel, "autodetect").link == "eth1"
    assert find_address(kernel, "skip-interface=eth1").link == "nat0"


def test_links_that_are_down_have_no_address(kernel: FakeKernel) -> None:
    kernel.set_link("nat0", up=False)
    assert find_address(kernel, "autodetect").link == "eth1"


def test_the_kernels_own_choice(kernel: FakeKernel) -> None:
    asked = []

    def towards(destination: object) -> object:
        asked.append(str(destination))
        return ip_address("192.0.2.11")

    outside = Outside(source_towards=towards)  # type: ignore[arg-type]  # a fake
    assert find_address(kernel, "can-reach=203.0.113.7", outside).link == "eth1"
    assert asked == ["203.0.113.7"]
    with pytest.raises(InvalidInput, match=r"can-reach.*10\.0\.2\.2/24 on nat0"):
        find_address(kernel, "can-reach=203.0.113.7", Outside(source_towards=lambda _: None))


def test_the_apis_choice(kernel: FakeKernel) -> None:
    both = (ip_address("fd00::11"), ip_address("198.51.100.11"))
    outside = Outside(internal_ips=lambda: both)
    assert find_address(kernel, "kubernetes-internal-ip", outside).link == "stor0"
    with pytest.raises(InvalidInput, match="needs kubeconfig"):
        find_address(kernel, "kubernetes-internal-ip")


@pytest.mark.parametrize("method", ["interface=wlan", "cidr=10.9.0.0/16", "skip-interface=.*"])
def test_nothing_found_says_what_there_is(kernel: FakeKernel, method: str) -> None:
    with pytest.raises(InvalidInput, match=r"192\.0\.2\.11/24 on eth1"):
        find_address(kernel, method)


def test_a_machine_without_addresses_says_so() -> None:
    with pytest.raises(InvalidInput, match="none at all"):
        find_address(machine(("eth0", "")), "autodetect")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("192.0.2.1", "prefix length"),
        ("none", "known are"),
        ("192.0.2.300/24", "known are"),
        ("interface=", "nothing after"),
        ("cidr=10.0.0.0/8,", "nothing after"),
        ("interface=(", "regular expression"),
        ("cidr=10.0.0.1/8", "host bits"),
        ("can-reach=example.org", "example.org"),
        ("ethernet=eth0", "known are"),
    ],
)
def test_what_is_no_method(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_method(text)


def test_an_address_on_the_loopback_link_counts_when_asked_for() -> None:
    kernel = machine(("eth0", "192.0.2.1/24"))
    kernel.set_link("lo", up=True)
    for address in ("127.0.0.1/8", "198.51.100.1/32"):
        kernel.ensure_address("lo", ip_interface(address))
    assert str(find_address(kernel, "interface=lo").address) == "198.51.100.1/32"


def test_interfaces_are_uplinks_by_name_without_prefix_lengths(kernel: FakeKernel) -> None:
    assert interfaces(kernel) == (
        ("eth1", ("192.0.2.11", "fd00::11")),
        ("nat0", ("10.0.2.2",)),
        ("stor0", ("198.51.100.11",)),
    )


@pytest.mark.parametrize("name", ["br-ex", "local0", "bond0.100", "enp1s0"])
def test_names_that_look_like_containers_but_are_not(name: str) -> None:
    assert find_address(machine((name, "192.0.2.1/24")), "autodetect").link == name


@pytest.mark.parametrize("name", ["br-0123456789ab", "veth12", "tunl0", "lo", "wireguard.cali"])
def test_links_of_containers_and_tunnels_are_no_uplinks(name: str) -> None:
    kernel = machine() if name == "lo" else machine((name, "192.0.2.1/24"))
    if name == "lo":
        kernel.set_link("lo", up=True)
        kernel.ensure_address("lo", ip_interface("192.0.2.1/32"))
    with pytest.raises(InvalidInput):
        find_address(kernel, "autodetect")


def test_the_smallest_mtu_of_the_uplinks(kernel: FakeKernel) -> None:
    kernel.set_link("eth1", mtu=9000)
    kernel.set_link("stor0", mtu=1400)
    assert uplink_mtu(kernel, ("eth1", "stor0", "gone")) == 1400
    assert uplink_mtu(kernel, ("eth1",)) == 9000
    assert uplink_mtu(kernel, ("gone",)) == 0
