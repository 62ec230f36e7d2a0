"""In a chain: what came before is passed on, in the chain's version, and ours follows it."""

from __future__ import annotations

from ipaddress import ip_interface
from typing import Any

import pytest

from cni_plugin import chain
from cni_plugin.errors import InvalidConfig
from cni_plugin.types import SUPPORTED_VERSIONS, Interface, Result

CHAINS = [version for version in SUPPORTED_VERSIONS if version not in ("0.1.0", "0.2.0")]
OURS = Result(
    (
        Interface("cali0", "ee:ee:ee:ee:ee:ee", 1500),
        Interface("eth0", "02:00:00:00:00:01", 1500, "/n"),
    ),
    (ip_interface("10.65.0.2/32"), ip_interface("fd00::2/128")),
)
LOOPBACK = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/n", "mtu": 65536}],
    "ips": [{"interface": 0, "address": "127.0.0.1/8"}, {"interface": 0, "address": "::1/128"}],
    "routes": [{"dst": "127.0.0.0/8"}],
    "dns": {"nameservers": ["10.96.0.10"]},
    "x-theirs": 7,
}


def merged(before: dict[str, Any] | None, version: str) -> dict[str, Any]:
    return chain.extended(chain.previous(before), OURS.to_wire(version), version)


def test_the_first_plugin_answers_for_itself() -> None:
    for version in SUPPORTED_VERSIONS:
        assert merged(None, version) == OURS.to_wire(version)


@pytest.mark.parametrize("version", CHAINS)
def test_what_came_before_is_passed_on_and_ours_follows(version: str) -> None:
    out = merged(LOOPBACK, version)
    assert out["cniVersion"] == version
    assert [item["name"] for item in out["interfaces"]] == ["lo", "cali0", "eth0"]
    named = [(out["interfaces"][ip["interface"]]["name"], ip["address"]) for ip in out["ips"]]
    assert named == [
        ("lo", "127.0.0.1/8"),
        ("lo", "::1/128"),
        ("eth0", "10.65.0.2/32"),
        ("eth0", "fd00::2/128"),
    ]
    old = version.startswith("0.")
    assert [ip.get("version") for ip in out["ips"]] == (["4", "6", "4", "6"] if old else [None] * 4)
    assert all(("mtu" in one) == (version == "1.1.0") for one in out["interfaces"])
    assert out["routes"] == LOOPBACK["routes"]
    assert out["dns"] == LOOPBACK["dns"]
    assert out["x-theirs"] == 7


def test_an_older_spelling_is_read_and_left_behind() -> None:
    before = {
        "cniVersion": "0.3.1",
        "interfaces": [{"name": "lo", "sandbox": "/n"}],
        "ips": [{"version": "4", "interface": 0, "address": "127.0.0.1/8"}],
    }
    assert "version" not in merged(before, "1.0.0")["ips"][0]
    assert merged(before, "0.4.0")["ips"][0]["version"] == "4"
    oldest = {
        "ip4": {
            "ip": "10.1.0.2/24",
            "gateway": "10.1.0.1",
            "routes": [{"dst": "0.0.0.0/0"}],
        }
    }
    out = merged(oldest, "1.0.0")
    assert out["ips"][0] == {"address": "10.1.0.2/24", "gateway": "10.1.0.1"}
    assert out["routes"] == [{"dst": "0.0.0.0/0"}]


def test_dns_is_the_first_plugins_that_says_any() -> None:
    ours = {**OURS.to_wire("1.0.0"), "dns": {"nameservers": ["10.65.0.53"]}}

    def dns(before: dict[str, Any]) -> object:
        return chain.extended(chain.previous(before), ours, "1.0.0")["dns"]

    assert dns({}) == dns({"dns": {}}) == {"nameservers": ["10.65.0.53"]}
    assert dns(LOOPBACK) == LOOPBACK["dns"]


def test_an_empty_result_is_a_result() -> None:
    assert merged({"cniVersion": "1.0.0"}, "1.0.0") == OURS.to_wire("1.0.0")


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_before_there_were_chains(version: str) -> None:
    chain.require_chains(None, version)
    with pytest.raises(InvalidConfig, match=r"prevResult: .*0\.3\.0"):
        chain.require_chains(chain.previous(LOOPBACK), version)


@pytest.mark.parametrize(
    ("before", "key"),
    [
        ({"ips": {}}, "prevResult.ips"),
        ({"ips": ["10.0.0.1/8"]}, "prevResult.ips"),
        ({"ips": [{"address": "nonsense"}]}, "prevResult.ips"),
        ({"ips": [{"interface": 0}]}, "prevResult.ips"),
        ({"ip6": {"gateway": "fd00::1"}}, "prevResult.ips"),
        ({"interfaces": "eth0"}, "prevResult.interfaces"),
        ({"routes": [7]}, "prevResult.routes"),
        ({"ip4": "10.0.0.1"}, "prevResult.ip4"),
    ],
)
def test_what_is_no_result_is_refused_by_its_key(before: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidConfig, match=key):
        chain.previous(before)


def test_whose_an_address_is() -> None:
    before = chain.previous(merged(LOOPBACK, "1.0.0"))
    assert before is not None
    assert before.addresses_of("eth0") == {"10.65.0.2/32", "fd00::2/128"}
    assert before.addresses_of("eth1") == frozenset()
    assert before.addresses_of("cali0") == frozenset(), "it is the node's side"
    loose = chain.previous(
        {"ips": [{"address": "10.65.0.2/32"}, {"address": "10.1.0.2/8", "interface": 9}]}
    )
    assert loose is not None
    assert loose.addresses_of("eth0") == {"10.65.0.2/32"}, "no interface named: anybody's"
    for odd in ("0", 1.0, -1, [0]):
        ours = {**OURS.to_wire("1.0.0"), "ips": [{"address": "10.65.0.2/32", "interface": odd}]}
        wrong = chain.previous(ours)
        assert wrong is not None
        assert wrong.addresses_of("eth0") == frozenset(), odd
    assert {str(one) for one in loose.addresses()} == {"10.65.0.2", "10.1.0.2"}
