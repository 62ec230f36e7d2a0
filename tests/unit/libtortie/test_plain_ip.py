"""What is read as an address is written as one, wherever it came from: never text of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from cni_plugin.annotations import SOURCES, source_prefixes
from felix_shim.kube_policy import IPBlock
from libtortie.datastore import crd_ipam, crd_node, ipam_codec
from libtortie.errors import TortieError
from libtortie.model import fields, policy_spec
from libtortie.model.bgp_spec import address_and_port
from libtortie.model.keys import parse_path
from libtortie.model.names import block_of_name
from libtortie.model.plain_ip import can_be_reached, plain_address, plain_network
from libtortie.model.resources import IPPoolSpec

ZONE = "%x }; flush ruleset\nadd table inet mine {"
ADDRESS, NETWORK = f"fe80::1{ZONE}", f"fe80::{ZONE}/64"


def annotated(name: str) -> dict[str, str]:
    return {name: json.dumps([NETWORK])}


READERS: dict[str, Callable[[], object]] = {
    "address": lambda: plain_address(ADDRESS),
    "network": lambda: plain_network(NETWORK),
    "strict network": lambda: plain_network(NETWORK, strict=True),
    "pool": lambda: IPPoolSpec.model_validate({"cidr": NETWORK}),
    "a policy's net": lambda: policy_spec.EntityWire.model_validate({"nets": [NETWORK]}),
    "a network set's net": lambda: policy_spec.NetworkSetSpecWire.model_validate(
        {"nets": [NETWORK]}
    ),
    "a host endpoint's address": lambda: policy_spec.HostEndpointSpecWire.model_validate(
        {"node": "n1", "interfaceName": "eth0", "expectedIPs": [ADDRESS]}
    ),
    "a reservation": lambda: fields.reserved_of(ADDRESS),
    "ipBlock.cidr": lambda: IPBlock.model_validate({"cidr": NETWORK}),
    "ipBlock.except": lambda: IPBlock.model_validate({"cidr": "fe80::/10", "except": [NETWORK]}),
    "a pod's source prefixes": lambda: source_prefixes(annotated(SOURCES)),
    "a BGP peer": lambda: address_and_port(ADDRESS),
    "a node's tunnel": lambda: crd_node._address(ADDRESS),
    "a block of the CRDs": lambda: crd_ipam._network("x", {"cidr": NETWORK}),
    "a block's key": lambda: parse_path(f"/calico/ipam/v2/assignment/ipv6/block/fe80::{ZONE}-64"),
    "a block's name": lambda: block_of_name(f"fe80--{ZONE}-64"),
    "a block": lambda: ipam_codec._network(NETWORK),
}


@pytest.mark.parametrize("reader", READERS)
def test_an_address_has_no_text_of_its_writers_choice(reader: str) -> None:
    with pytest.raises((ValueError, TortieError), match=r"zone|is not a CIDR"):
        READERS[reader]()


def test_what_is_plain_is_read() -> None:
    assert str(plain_network("10.0.0.7/8")) == "10.0.0.0/8"
    assert str(plain_address("2001:DB8::1")) == "2001:db8::1"
    with pytest.raises(ValueError, match="host bits"):
        plain_network("10.0.0.7/8", strict=True)


@pytest.mark.parametrize(
    "text",
    [
        *("0.0.0.0", "127.0.0.1", "224.0.0.5", "255.255.255.255", "169.254.1.1"),
        *("::", "::1", "ff02::1", "fe80::1", "::ffff:192.0.2.1", "2001:db8::1%eth0"),
    ],
)
def test_nobody_is_reached_by_an_address_that_is_not_one_hosts_everywhere(text: str) -> None:
    assert not can_be_reached(ip_address(text))
    assert can_be_reached(ip_address("192.0.2.1")) and can_be_reached(ip_address("fd00::1"))
