"""Names that other programs see: lengths they must keep, and what must not collide."""

from __future__ import annotations

import re

import pytest

from libtortie.model import names

LONGEST_POD = ".".join(["a" * 63] * 3 + ["b" * 61])
LONGEST_NAMESPACE = "n" * 63


def test_a_status_file_is_named_as_in_calico() -> None:
    assert names.status_file_name("k8s", "default/web-0", "eth0") == "k8s default%2Fweb-0 eth0"


@pytest.mark.parametrize("size", [230, 231, 232, 233, 253])
def test_a_status_file_name_fits_into_a_directory(size: int) -> None:
    workload = f"ns/{LONGEST_POD[:size]}"
    name = names.status_file_name("k8s", workload, "eth0")
    plain = f"k8s ns%2F{LONGEST_POD[:size]} eth0"
    assert len(name) == min(len(plain), 255)
    assert (name == plain) == (len(plain) <= 255)
    assert name == names.status_file_name("k8s", workload, "eth0")
    assert name.startswith(f"k8s ns%2F{LONGEST_POD[:150]}")


def test_long_status_file_names_differ_where_their_endpoints_do() -> None:
    workloads = [f"{LONGEST_NAMESPACE}/{LONGEST_POD[:-1]}{end}" for end in "bc"]
    found = {
        names.status_file_name("k8s", workload, ifname)
        for workload in workloads
        for ifname in ("eth0", "net1")
    }
    assert len(found) == 4
    assert all(len(name) == 255 and "/" not in name and "#" in name for name in found)
    assert "#" not in names.status_file_name("k8s", "ns/pod", "a#b")


def test_host_names_of_containers_whose_ids_begin_alike() -> None:
    one, two = (names.host_ifname_of_container(f"podman-0123456789{end}") for end in "ab")
    assert one != two
    assert len(one) == 15
    assert one.startswith("cali")


def test_an_alias_names_network_and_container_and_fits_the_kernel() -> None:
    longest = names.link_alias("n" * 63, "c" * 128)
    assert len(longest) <= 254
    assert names.sandbox_of_alias(longest) == ("n" * 63, "c" * 128)
    for other in (
        "",
        "tortie:",
        "tortie:net",
        "tortie:net/",
        "tortie:/c1",
        "net/c1",
        "x tortie:a/b",
    ):
        assert names.sandbox_of_alias(other) is None


def test_an_interface_beside_the_first_has_names_that_no_other_workload_has() -> None:
    """A pod's name may have dots, an interface's too; a `/` has neither."""
    pods = [f"{name}{number}" for name in ("web", "web.net1", "net1") for number in range(10_000)]
    calls = [(pod, ifname) for pod in pods for ifname in ("eth0", "net1", "net1.5")]
    found = {names.host_ifname("default", *call) for call in calls}
    assert len(found) == len(calls)
    assert {len(name) for name in found} == {15}
    assert names.host_ifname("default", "web", "eth0") == names.host_ifname("default", "web")


def test_the_handle_of_a_pods_further_interface() -> None:
    """Kubernetes keeps it as an object's name, in which case does not count."""
    assert names.container_handle("lan", "c1", "eth0") == "lan.c1"
    assert names.container_handle("lan", "c1", "net-1") == "lan.c1.net-1"
    odd = ["Net1", "NET1", "net_1", "net.1", "net1.", "-net1", "net1-", "1.net", "eth0.100", "n+~{"]
    ids = ["c1", "c1.net", "c1.1"]
    found = [names.container_handle("lan", one, name) for name in ["1", *odd] for one in ids]
    assert len(set(found)) == len(found)
    for handle in found:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", handle)
    longest = names.container_handle("n" * 63, "c" * 128, "I" * 15)
    assert len(longest) <= names.KUBERNETES_NAME_MAX


def test_the_handle_of_a_vms_further_interface() -> None:
    calls = [(vm, ifname) for vm in ("db", "db.net1", "d") for ifname in ("net1", "net1.net1", "b")]
    handles = {names.vm_interface_handle("lan", "default", *call) for call in calls}
    assert len(handles) == len(calls)
    for handle in handles:
        assert handle.startswith("lan.vmi.")
        assert names.vm_of_handle(handle) is None, "whose it is, its owners say"
    longest = names.vm_interface_handle("n" * 63, "s" * 63, "v" * 253, "i" * 15)
    assert len(longest) <= names.KUBERNETES_NAME_MAX
    assert longest == longest.lower()
