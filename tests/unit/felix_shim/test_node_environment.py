"""The node's name, and Calico's variables beside the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path

import pytest

from felix_shim.config import NodeConfig, parse_config
from felix_shim.defaults import pool
from libtortie.errors import InvalidInput


def config(text: str = "", /, **environ: str) -> NodeConfig:
    return parse_config(text, "node.yaml", environ, "OSname")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nodename"
    path.write_text("from-file\n")
    return path


@pytest.mark.parametrize(
    ("named", "environ", "expected"),
    [
        ("nodename: from-config", {"NODENAME": "from-env", "HOSTNAME": "h"}, "from-env"),
        ("nodename: from-config", {"HOSTNAME": "h"}, "from-config"),
        ("", {"HOSTNAME": "h"}, "from-file"),
    ],
)
def test_the_node_name_in_order(
    file: Path, named: str, environ: Mapping[str, str], expected: str
) -> None:
    assert config(f"{named}\nnodename_file: {file}", **environ).node == expected


def test_without_a_file_the_hostname_in_lower_case(tmp_path: Path) -> None:
    text = f"nodename_file: {tmp_path}/none"
    assert config(text, HOSTNAME="Host-7").node == "host-7"
    assert config(text).node == "osname"
    (tmp_path / "none").write_text(" \n")
    assert config(text).node == "osname", "an empty file is none"


@pytest.mark.parametrize("name", ["Upper", "under_score", "a/b", "-a", "a..b", "x" * 254])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"NODENAME.*lower-case DNS name"):
        config(NODENAME=name)
    with pytest.raises(InvalidInput, match=r"node\.yaml"):
        config(f"nodename: {name}")


def test_a_nodename_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nodename_file"):
        config(f"nodename_file: {tmp_path}")


def test_variables_fill_in_what_the_file_does_not_say() -> None:
    found = config(
        "nodename: n1\ndefault_pools: {ipv4: {block_size: 28}}",
        IP="autodetect",
        IP_AUTODETECTION_METHOD="interface=eth.*",
        AS="64999",
        CLUSTER_TYPE="k8s",
        DISABLE_NODE_IP_CHECK="true",
        CALICO_IPV4POOL_CIDR="10.244.0.0/16",
        CALICO_IPV4POOL_BLOCK_SIZE="24",
        CALICO_IPV4POOL_NAT_OUTGOING="false",
        CALICO_IPV4POOL_NODE_SELECTOR="has(rack)",
        CALICO_IPV4POOL_IPIP="Never",
        CALICO_IPV6POOL_CIDR="none",
        CALICO_K8S_NODE_REF="kube-1",
    )
    assert (found.ip, found.as_number, found.cluster_type) == ("interface=eth.*", 64999, "k8s")
    assert not found.ip_check
    ipv4 = found.default_pools.ipv4
    assert (ipv4.cidr, ipv4.block_size, ipv4.nat_outgoing) == ("10.244.0.0/16", 28, False)
    assert ipv4.node_selector == "has(rack)"
    assert found.default_pools.ipv6.cidr == "none"
    assert found.kube_node == "", "without an API the name there means nothing"


@pytest.mark.parametrize(
    ("text", "mode"),
    [("", "Never"), ("off", "Never"), ("Always", "Always"), ("CrossSubnet", "CrossSubnet")],
)
def test_default_pools_in_the_overlay(text: str, mode: str) -> None:
    pools = config("nodename: n1", CALICO_IPV6POOL_VXLAN=text).default_pools
    assert (pools.ipv4.vxlan_mode, pools.ipv6.vxlan_mode) == ("Never", mode)
    assert pool(ip_network("fd65::/48"), pools.ipv6).spec.vxlan_mode == mode


def test_the_file_beats_the_variables() -> None:
    found = config("nodename: n1\nip: 10.0.0.1/24\nas_number: 1", IP="10.0.0.2/24", AS="2")
    assert (found.ip, found.as_number) == ("10.0.0.1/24", 1)


@pytest.mark.parametrize(
    ("environ", "ip"),
    [
        ({}, "autodetect"),
        ({"IP": ""}, "autodetect"),
        ({"IP": "192.0.2.1/24", "IP_AUTODETECTION_METHOD": "cidr=10.0.0.0/8"}, "192.0.2.1/24"),
        ({"IP_AUTODETECTION_METHOD": "can-reach=192.0.2.1"}, "can-reach=192.0.2.1"),
        ({"IP_AUTODETECTION_METHOD": "first-found"}, "first-found"),
    ],
)
def test_the_address_of_calicos_variables(environ: Mapping[str, str], ip: str) -> None:
    assert config("nodename: n1", **environ).ip == ip


@pytest.mark.parametrize(
    ("environ", "ip6"),
    [
        ({}, "none"),
        ({"IP6": "none"}, "none"),
        ({"IP6_AUTODETECTION_METHOD": "first-found"}, "none"),
        ({"IP6": "autodetect"}, "autodetect"),
        ({"IP6": "autodetect", "IP6_AUTODETECTION_METHOD": "cidr=fd00::/8"}, "cidr=fd00::/8"),
        ({"IP6": "fd00::1/64", "IP6_AUTODETECTION_METHOD": "cidr=fd01::/16"}, "fd00::1/64"),
    ],
)
def test_ipv6_is_spoken_only_when_asked_for(environ: Mapping[str, str], ip6: str) -> None:
    assert config("nodename: n1", **environ).ip6 == ip6


def test_no_default_pools_at_all() -> None:
    for found in (config("nodename: n1", NO_DEFAULT_POOLS="true"), config("default_pools: none")):
        assert found.default_pools.ipv4.cidr == found.default_pools.ipv6.cidr == "none"


@pytest.mark.parametrize(
    ("text", "environ", "complaint"),
    [
        ("", {"CALICO_IPV4POOL_IPIP": "Always"}, "CALICO_IPV4POOL_IPIP=Always"),
        ("", {"CALICO_IPV6POOL_IPIP": "CrossSubnet"}, "there is no IPIP"),
        ("", {"CALICO_IPV6POOL_VXLAN": "Sometimes"}, "default_pools.ipv6.vxlan_mode"),
        ("", {"AS": "as"}, "as_number"),
        ("", {"IP": "none"}, "ip and ip6 are both none: a node needs an address"),
        ("", {"CALICO_ROUTER_ID": "0.0.0.0"}, "router_id '0.0.0.0': want four numbers"),
        ("router_id: 'fd00::1'", {}, "router_id 'fd00::1'"),
        ("as_number: 0", {}, "as_number"),
        ("calico_version: latest", {}, "calico_version"),
        ("default_pools: {ipv4: {cidr: 'fd00::/48'}}", {}, "not IPv4"),
        ("default_pools: {ipv4: {cidr: 10.0.0.1/16}}", {}, "host bits"),
        ("default_pools: {ipv4: {cidr: 10.0.0.0/28, block_size: 26}}", {}, "28..32"),
        ("default_pools: {ipv6: {block_size: 64}}", {}, "116..128"),
        ("default_pools: {ipv5: {}}", {}, "ipv5"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(
    text: str, environ: Mapping[str, str], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        config(text, **environ)


def test_the_nodes_name_in_kubernetes() -> None:
    assert config("nodename: n1\nk8s_api_root: http://x").kube_node == "n1"
    assert config("nodename: n1\nk8s_api_root: http://x\nk8s_node: k1").kube_node == "k1"
