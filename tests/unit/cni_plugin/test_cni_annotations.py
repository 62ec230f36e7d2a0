"""Annotations: what a pod may ask for, and how nonsense is refused."""

from __future__ import annotations

import json
from ipaddress import ip_address

import pytest

from cni_plugin.annotations import wanted_addresses, wanted_mac
from libtortie.errors import InvalidInput
from tests.fakes.cni_world import conf

P = "cni.projectcalico.org/"


def test_pools_pod_before_namespace_before_configuration() -> None:
    settings = conf(ipam={"ipv4_pools": ["from-conf"]})
    pod, space = {P + "ipv4pools": '["from-pod"]'}, {P + "ipv4pools": '["from-ns"]'}
    assert wanted_addresses(pod, space, settings).ipv4_pools == ("from-pod",)
    assert wanted_addresses({}, space, settings).ipv4_pools == ("from-ns",)
    assert wanted_addresses({}, {}, settings).ipv4_pools == ("from-conf",)
    assert wanted_addresses({}, {}, conf()).ipv4_pools == ()


def test_families() -> None:
    both = {P + "ipFamilies": '["IPv4","IPv6"]'}
    want = wanted_addresses(both, {}, conf())
    assert (want.ipv4, want.ipv6) == (True, True)
    want = wanted_addresses({}, {P + "ipFamilies": '["IPv6"]'}, conf())
    assert (want.ipv4, want.ipv6) == (False, True)
    with pytest.raises(InvalidInput, match="ipFamilies"):
        wanted_addresses({P + "ipFamilies": '["IPv5"]'}, {}, conf())


def test_explicit_addresses() -> None:
    pod = {P + "ipAddrs": '["10.0.0.1", "fd00::1"]'}
    want = wanted_addresses(pod, {}, conf(), asked="10.0.0.9")
    assert want.addresses == (ip_address("10.0.0.1"), ip_address("fd00::1"))
    assert (want.ipv4, want.ipv6) == (True, True)
    assert wanted_addresses({}, {}, conf(), asked="10.0.0.9").addresses == (ip_address("10.0.0.9"),)
    by_runtime = conf(runtimeConfig={"ips": ["10.0.0.8/24"]})
    assert wanted_addresses({}, {}, by_runtime).addresses == (ip_address("10.0.0.8"),)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "10.0.0.1",
        "7",
        "null",
        "{}",
        '{"a":1}',
        "[[]]",
        "[]",
        '[""]',
        "[1]",
        '["10.0.0.1","10.0.0.2"]',
        '["10.0.0.0/24"]',
        '[" 10.0.0.1"]',
        '["\u0661\u0660.\u0660.\u0660.\u0661"]',
        '["::ffff:10.0.0.1"]',
        '["fe80::1%eth0"]',
        '["010.0.0.1"]',
        json.dumps(["x" * 1_000_000]),
        "[" * 3000,
    ],
)
def test_nonsense_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidInput, match="ipAddrs") as refused:
        wanted_addresses({P + "ipAddrs": value}, {}, conf())
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("name", ["ipAddrsNoIpam", "floatingIPs"])
def test_what_we_do_not_honour_is_not_ignored(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        wanted_addresses({P + name: '["10.0.0.1"]'}, {}, conf())


def test_mac() -> None:
    assert wanted_mac({P + "hwAddr": "02:AA:00:00:00:01"}, conf()) == "02:aa:00:00:00:01"
    assert wanted_mac({}, conf(), "02:aa:00:00:00:02") == "02:aa:00:00:00:02"
    by_runtime = conf(runtimeConfig={"mac": "02:AA:00:00:00:03"})
    assert wanted_mac({}, by_runtime) == "02:aa:00:00:00:03"
    for bad in ("ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "02:aa", "02-aa-00-00-00-01"):
        with pytest.raises(InvalidInput, match="hwAddr"):
            wanted_mac({P + "hwAddr": bad}, conf())
