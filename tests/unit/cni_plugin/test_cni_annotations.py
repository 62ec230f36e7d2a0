"""Annotations: what a pod may ask for, and how nonsense is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from ipaddress import ip_address

import pytest

from cni_plugin.annotations import (
    floating_addresses,
    source_prefixes,
    static_addresses,
    translations,
    wanted_addresses,
    wanted_mac,
)
from cni_plugin.types import NetConf
from libtortie.errors import InvalidInput
from libtortie.model.ipam import IPAddress
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


GATES = {"feature_control": {"ip_addrs_no_ipam": True, "floating_ips": True}}


def texts(found: Iterable[object]) -> list[str]:
    return [str(one) for one in found]


@pytest.mark.parametrize(
    ("read", "name", "gate"),
    [
        (static_addresses, "ipAddrsNoIpam", "ip_addrs_no_ipam"),
        (floating_addresses, "floatingIPs", "floating_ips"),
    ],
)
def test_what_the_operator_has_to_allow(
    read: Callable[[dict[str, str], NetConf], tuple[IPAddress, ...]], name: str, gate: str
) -> None:
    pod = {P + name: '["10.0.0.1", "fd00::1"]'}
    with pytest.raises(InvalidInput, match=f"{name}: feature_control.{gate} is off"):
        read(pod, conf())
    others = {key: key != gate for key in GATES["feature_control"]}
    with pytest.raises(InvalidInput, match=gate):
        read(pod, conf(feature_control=others))
    assert texts(read(pod, conf(**GATES))) == ["10.0.0.1", "fd00::1"]
    assert read({}, conf()) == ()
    for value in ("x", "[]", '["10.0.0.0/24"]', '["0.0.0.0"]', '["224.0.0.1"]', '["::1"]'):
        with pytest.raises(InvalidInput, match=name):
            read({P + name: value}, conf(**GATES))


def test_addresses_of_its_own_are_one_per_family_and_not_beside_ipams() -> None:
    two = {P + "ipAddrsNoIpam": '["10.0.0.1", "10.0.0.2"]'}
    with pytest.raises(InvalidInput, match="more than one IPv4"):
        static_addresses(two, conf(**GATES))
    both = {P + "ipAddrsNoIpam": '["10.0.0.1"]', P + "ipAddrs": '["10.0.0.1"]'}
    with pytest.raises(InvalidInput, match=r"ipAddrs and .*ipAddrsNoIpam"):
        static_addresses(both, conf(**GATES))


def test_floating_addresses_lead_to_the_first_of_their_family() -> None:
    own = [ip_address(text) for text in ("10.0.0.1", "10.0.0.2", "fd00::1")]
    floating = [ip_address(text) for text in ("192.0.2.1", "192.0.2.2", "2001:db8::1")]
    assert [texts(pair) for pair in translations(floating, own)] == [
        ["10.0.0.1", "192.0.2.1"],
        ["10.0.0.1", "192.0.2.2"],
        ["fd00::1", "2001:db8::1"],
    ]
    with pytest.raises(InvalidInput, match=r"floatingIPs: 169\.254\.1\.1 is not reached from else"):
        floating_addresses({P + "floatingIPs": '["169.254.1.1"]'}, conf(**GATES))
    with pytest.raises(InvalidInput, match="floatingIPs: 2001:db8::1: the pod has no IPv6"):
        translations(floating, own[:2])


def test_allowed_source_prefixes() -> None:
    name = P + "allowedSourcePrefixes"
    pod = {name: '["10.1.2.3/16", "fd00::1/64", "192.0.2.1", "10.1.0.0/16"]'}
    assert source_prefixes(pod) == ("10.1.0.0/16", "fd00::/64", "192.0.2.1/32")
    assert source_prefixes({}) == ()
    for value in ("10.0.0.0/8", "[]", '["10.0.0.0/33"]', '["x"]', "[7]", '["fe80::%x;/64"]'):
        with pytest.raises(InvalidInput, match="allowedSourcePrefixes"):
            source_prefixes({name: value})


def test_ip_ranges_of_the_runtime_are_pools() -> None:
    ranges = [[{"subnet": "10.1.0.0/16"}, {"subnet": "10.2.0.0/16"}], [{"subnet": "fd00::/64"}]]
    settings = conf(runtimeConfig={"ipRanges": ranges}, ipam={"ipv4_pools": ["from-conf"]})
    want = wanted_addresses({}, {}, settings)
    assert (want.ipv4_pools, want.ipv6_pools) == (("10.1.0.0/16", "10.2.0.0/16"), ("fd00::/64",))
    pod = {P + "ipv4pools": '["from-pod"]'}
    assert wanted_addresses(pod, {}, settings).ipv4_pools == ("from-pod",)


def test_mac() -> None:
    assert wanted_mac({P + "hwAddr": "02:AA:00:00:00:01"}, conf()) == "02:aa:00:00:00:01"
    assert wanted_mac({}, conf(), "02:aa:00:00:00:02") == "02:aa:00:00:00:02"
    by_runtime = conf(runtimeConfig={"mac": "02:AA:00:00:00:03"})
    assert wanted_mac({}, by_runtime) == "02:aa:00:00:00:03"
    for bad in ("ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "02:aa", "02-aa-00-00-00-01"):
        with pytest.raises(InvalidInput, match="hwAddr"):
            wanted_mac({P + "hwAddr": bad}, conf())
