"""One suite for the kernel port, in memory and in real namespaces (root): links, addresses."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

import pytest

from libtortie.errors import InvalidInput, KernelError, NotFound
from libtortie.linux.port import (
    Kernel,
    VethPair,
)
from tests.contract.conftest import World
from tests.fakes.veth import HOST_MAC, POD_MAC, pair_to


def names(kernel: Kernel) -> set[str]:
    return {link.name for link in kernel.links()}


# Links


def test_a_fresh_namespace_has_loopback_only(host: Kernel) -> None:
    assert names(host) == {"lo"}
    lo = host.link("lo")
    assert lo is not None
    assert lo.ifindex == 1
    assert host.link("eth0") is None
    assert host.link("a-name-no-link-can-have") is None
    assert host.link("") is None


def test_veth_ends_are_born_where_they_belong(host: Kernel, pod: Kernel, pod_path: str) -> None:
    near, far = host.ensure_veth(pair_to(pod_path))
    assert (near.name, near.mac, near.mtu, near.up, near.kind) == (
        "cali1",
        HOST_MAC,
        1440,
        True,
        "veth",
    )
    assert (far.name, far.mac, far.mtu, far.up) == ("eth0", POD_MAC, 1440, True)
    assert (near.peer_ifindex, far.peer_ifindex) == (far.ifindex, near.ifindex)
    assert names(host) == {"lo", "cali1"}
    assert names(pod) == {"lo", "eth0"}
    assert host.link("cali1") == near
    assert pod.link("eth0") == far


def test_macs_are_lower_case_and_may_be_the_kernels_choice(host: Kernel, pod_path: str) -> None:
    pair = VethPair("cali1", "EE:EE:EE:EE:EE:EE", "eth0", pod_path, 1500)
    near, far = host.ensure_veth(pair)
    assert near.mac == HOST_MAC
    assert len(far.mac) == 17
    assert far.mac not in ("00:00:00:00:00:00", HOST_MAC)
    assert host.ensure_veth(pair) == (near, far)


def test_ensure_veth_again_finds_the_pair(host: Kernel, pod_path: str) -> None:
    first = host.ensure_veth(pair_to(pod_path))
    assert host.ensure_veth(pair_to(pod_path)) == first


def test_the_alias_is_on_the_host_end_and_follows_the_asker(
    host: Kernel, pod: Kernel, pod_path: str
) -> None:
    plain = pair_to(pod_path)
    near, far = host.ensure_veth(replace(plain, alias="tortie:net/c1"))
    assert (near.alias, far.alias) == ("tortie:net/c1", "")
    assert host.link("cali1") == near
    assert near in host.links()
    assert host.ensure_veth(plain)[0].alias == "tortie:net/c1", "no alias asked for: left alone"
    longest = "tortie:" + "n" * 247
    again, _ = host.ensure_veth(replace(plain, alias=longest))
    assert again == replace(near, alias=longest)
    assert pod.link("eth0") == far


def test_ensure_veth_corrects_the_pair_in_place(host: Kernel, pod: Kernel, pod_path: str) -> None:
    near, far = host.ensure_veth(pair_to(pod_path))
    host.set_link("cali1", up=False, mac="02:00:00:00:00:99")
    pod.set_link("eth0", mtu=1300, up=False)
    assert host.ensure_veth(pair_to(pod_path)) == (near, far)


def test_a_leftover_into_another_namespace_is_replaced(
    world: World, host: Kernel, pod: Kernel, pod_path: str
) -> None:
    old = world.create("old")
    host.ensure_veth(pair_to(old))
    host.ensure_veth(pair_to(pod_path))
    assert names(pod) == {"lo", "eth0"}
    old_kernel = world.namespaces.open(old)
    assert names(old_kernel) == {"lo"}
    old_kernel.close()


def test_a_pair_is_told_by_namespace_not_by_index(
    world: World, host: Kernel, pod: Kernel, pod_path: str
) -> None:
    """Two fresh pods' ends have equal indices; the second pod's link is none of ours."""
    other = world.create("other")
    host.ensure_veth(pair_to(other, "cali2"))
    before = host.link("cali2")
    _, far = host.ensure_veth(pair_to(pod_path, "cali1"))
    assert before is not None
    assert before.peer_ifindex == far.ifindex
    with pytest.raises(KernelError):
        host.ensure_veth(pair_to(other, "cali1"))
    assert host.link("cali2") == before
    other_kernel = world.namespaces.open(other)
    assert names(other_kernel) == {"lo", "eth0"}
    other_kernel.close()


def test_a_name_taken_by_another_kind_is_left_alone(
    world: World, host: Kernel, host_path: str, pod: Kernel, pod_path: str
) -> None:
    world.bridge(host_path, "cali1")
    bridge = host.link("cali1")
    with pytest.raises(KernelError, match=r"cali1.*bridge"):
        host.ensure_veth(pair_to(pod_path))
    assert host.link("cali1") == bridge
    assert names(pod) == {"lo"}


def test_a_pods_own_link_of_that_name_is_left_alone(
    world: World, host: Kernel, pod: Kernel, pod_path: str
) -> None:
    world.bridge(pod_path, "eth0")
    with pytest.raises(KernelError, match="eth0"):
        host.ensure_veth(pair_to(pod_path))
    assert names(host) == {"lo"}
    assert pod.link("eth0") is not None


def test_a_pair_in_use_under_another_name_is_left_alone(
    host: Kernel, pod: Kernel, pod_path: str
) -> None:
    """KubeVirt renames a VM pod's eth0; a late second ADD must not cut the VM off."""
    host.ensure_veth(pair_to(pod_path, pod_name="eth0-nic"))
    with pytest.raises(KernelError, match="eth0"):
        host.ensure_veth(pair_to(pod_path))
    assert names(pod) == {"lo", "eth0-nic"}


def test_no_veth_into_a_missing_namespace(host: Kernel) -> None:
    with pytest.raises(NotFound):
        host.ensure_veth(pair_to("/run/netns/tt-there-is-none"))
    assert names(host) == {"lo"}


def test_no_veth_into_the_hosts_own_namespace(world: World, host: Kernel, host_path: str) -> None:
    with pytest.raises(KernelError, match="own"):
        host.ensure_veth(pair_to(world.alias(host_path)))
    assert names(host) == {"lo"}


def test_a_link_name_too_long_is_refused(host: Kernel, pod: Kernel, pod_path: str) -> None:
    with pytest.raises(InvalidInput):
        host.ensure_veth(pair_to(pod_path, host_name="cali-sixteen-car"))
    assert names(host) == names(pod) == {"lo"}


def test_a_veth_into_a_namespace_that_is_open(host: Kernel, pod: Kernel, pod_path: str) -> None:
    near, far = host.ensure_veth(pair_to(pod_path), pod)
    assert (names(host), names(pod)) == ({"lo", near.name}, {"lo", far.name})
    assert host.ensure_veth(pair_to(pod_path), pod) == (near, far)
    assert names(pod) == {"lo", far.name}, "it stays open"


def test_a_visit_is_to_its_own_namespace(host: Kernel, pod: Kernel) -> None:
    name = "net/ipv4/conf/default/proxy_arp"

    def both() -> str:
        pod.write_sysctl(name, "1")
        host.write_sysctl(name, "0")
        return pod.read_sysctl(name)

    assert pod.visit(lambda: pod.visit(both)) == "1"
    assert host.visit(lambda: (pod.read_sysctl(name), host.read_sysctl(name))) == ("1", "0")
    assert (host.read_sysctl(name), pod.read_sysctl(name)) == ("0", "1")
    with pytest.raises(NotFound):
        pod.visit(lambda: pod.read_sysctl("net/ipv4/conf/nobody/proxy_arp"))


def test_deleting_one_end_deletes_both(host: Kernel, pod: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    assert host.delete_link("cali1") is True
    assert host.delete_link("cali1") is False
    assert names(host) == names(pod) == {"lo"}


def test_what_cannot_be_deleted_says_so(host: Kernel) -> None:
    with pytest.raises(KernelError, match="lo"):
        host.delete_link("lo")


def test_set_link_changes_only_what_is_given(host: Kernel, pod_path: str) -> None:
    near, _ = host.ensure_veth(pair_to(pod_path))
    host.set_link("cali1", mtu=1300)
    host.set_link("cali1", mac="02:AA:00:00:00:01")
    changed = host.link("cali1")
    assert changed is not None
    assert (changed.mtu, changed.mac, changed.up) == (1300, "02:aa:00:00:00:01", True)
    host.set_link("cali1", up=False)
    down = host.link("cali1")
    assert down is not None
    assert (down.up, down.mtu, down.ifindex) == (False, 1300, near.ifindex)


def test_a_port_joins_and_leaves_a_bridge(
    world: World, host: Kernel, host_path: str, pod_path: str
) -> None:
    world.bridge(host_path, "br0")
    host.ensure_veth(pair_to(pod_path))
    bridge = host.link("br0")
    assert bridge is not None
    host.set_link("cali1", master="br0")
    port = host.link("cali1")
    assert port is not None
    assert port.master == bridge.ifindex
    host.set_link("cali1", master="")
    port = host.link("cali1")
    assert port is not None
    assert port.master == 0


def test_set_link_names_what_is_missing(host: Kernel, pod_path: str) -> None:
    with pytest.raises(NotFound, match="cali1"):
        host.set_link("cali1", up=True)
    host.ensure_veth(pair_to(pod_path))
    with pytest.raises(NotFound, match="br0"):
        host.set_link("cali1", master="br0")


# Addresses


def test_addresses_of_both_families(host: Kernel, pod: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    wanted = (IPv4Interface("10.65.0.2/32"), IPv6Interface("fd00:65::2/128"))
    for address in (*wanted, *wanted):
        pod.ensure_address("eth0", address)
    held = [address for address in pod.addresses("eth0") if not address.ip.is_link_local]
    assert sorted(map(str, held)) == sorted(map(str, wanted))
    assert not [each for each in host.addresses("cali1") if not each.ip.is_link_local]


def test_an_address_is_taken_from_one_link_alone(host: Kernel, pod: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    for text in ("169.254.0.179/32", "fd00:65::179/128"):
        address = ip_interface(text)
        host.ensure_address("cali1", address)
        pod.ensure_address("eth0", address)
        assert host.delete_address("cali1", address)
        assert not host.delete_address("cali1", address), "it is gone"
        assert not host.delete_address("cali9", address), "no such link"
        assert address not in host.addresses("cali1")
        assert address in pod.addresses("eth0")


def test_addresses_of_a_missing_link(host: Kernel) -> None:
    with pytest.raises(NotFound, match="eth9"):
        host.addresses("eth9")
    with pytest.raises(NotFound, match="eth9"):
        host.ensure_address("eth9", IPv4Interface("10.0.0.1/32"))
