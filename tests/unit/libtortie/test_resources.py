"""The wire form of resources: what Go's tags would write, and what its decoder would accept."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from libtortie.errors import Malformed
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import (
    BGPConfigurationSpec,
    FelixConfiguration,
    FelixConfigurationSpec,
    GenericResource,
    IPAMConfiguration,
    IPAMConfigurationSpec,
    IPPool,
    Node,
    NodeBGP,
    ObjectMeta,
    OwnerReference,
    Tier,
    TierSpec,
    parse_resource,
)


def test_maps_are_written_in_key_order_and_unknown_objects_as_they_came() -> None:
    wire = {
        "name": "x",
        "labels": {"b": "1", "a": "2", "\u00e9": "3", "B": "4"},
        "managedFields": [{"z": 1, "a": {"y": 2, "b": 3}}],
    }
    out = ObjectMeta.model_validate(wire).to_wire()
    assert list(out["labels"]) == ["B", "a", "b", "\u00e9"]
    assert list(out["managedFields"][0]) == ["z", "a"]
    assert list(out["managedFields"][0]["a"]) == ["y", "b"]
    assert list(out) == ["name", "labels", "managedFields"]


def test_metadata_is_in_the_order_of_kubernetes() -> None:
    wire = {
        "name": "n",
        "generateName": "g",
        "namespace": "ns",
        "uid": "u",
        "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-02T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
        "labels": {"l": ""},
        "annotations": {"a": ""},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}],
        "finalizers": ["f"],
    }
    shuffled = dict(sorted(wire.items()))
    assert list(ObjectMeta.model_validate(shuffled).to_wire().items()) == list(wire.items())


@pytest.mark.parametrize(
    ("model", "wire"),
    [
        (BGPConfigurationSpec, {"nodeToNodeMeshEnabled": False}),
        (BGPConfigurationSpec, {"asNumber": 0}),
        (NodeBGP, {"asNumber": 0}),
        (TierSpec, {"order": 0.0, "defaultAction": "Pass"}),
        (
            OwnerReference,
            {"apiVersion": "", "kind": "", "name": "", "uid": "", "controller": False},
        ),
    ],
)
def test_a_pointer_that_is_set_is_written(model: Any, wire: dict[str, Any]) -> None:
    assert model.model_validate(wire).to_wire() == wire


def test_a_pointer_that_is_not_set_is_not() -> None:
    assert BGPConfigurationSpec().to_wire() == {}
    assert NodeBGP().to_wire() == {}
    assert IPAMConfigurationSpec(auto_allocate_blocks=False).to_wire() == {
        "strictAffinity": False,
        "autoAllocateBlocks": False,
    }


def test_null_is_the_zero_value_for_fields_we_know_and_kept_for_others() -> None:
    metadata = ObjectMeta.model_validate(
        {"name": "n", "labels": None, "finalizers": None, "creationTimestamp": None, "new": None}
    )
    assert metadata == ObjectMeta.model_validate({"name": "n", "new": None})
    assert metadata.to_wire() == {"name": "n", "new": None}


def test_a_felix_configuration_always_has_its_bpf_log_level() -> None:
    assert FelixConfigurationSpec().to_wire() == {"bpfLogLevel": ""}
    spec = FelixConfigurationSpec.model_validate({"ipv4ElevatedRoutePriority": 100})
    assert spec.to_wire() == {"bpfLogLevel": "", "ipv4ElevatedRoutePriority": 100}


def test_resources_are_immutable() -> None:
    pool = IPPool.model_validate({"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/8"}})
    with pytest.raises(ValidationError):
        pool.spec.cidr = "10.0.0.0/9"


def test_keys_of_resources() -> None:
    assert Tier.model_validate({"metadata": {"name": "t"}}).key == ResourceKey(Kind.TIER, "t")
    odd = GenericResource.model_validate(
        {"kind": "Profile", "metadata": {"name": "p", "namespace": "ignored"}}
    )
    assert odd.key == ResourceKey(Kind.PROFILE, "p")
    policy = GenericResource.model_validate(
        {"kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "ns"}}
    )
    assert policy.key == ResourceKey(Kind.NETWORK_POLICY, "p", "ns")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"kind": "FelixConfiguration", "metadata": 5}, r"FelixConfiguration '\?': metadata"),
        ({"metadata": {"name": "d"}}, "FelixConfiguration 'd': kind is None"),
        (
            {
                "kind": "FelixConfiguration",
                "metadata": {"name": "d"},
                "spec": {"ipv4NormalRoutePriority": "high"},
            },
            r"FelixConfiguration 'd': spec\.ipv4NormalRoutePriority",
        ),
    ],
)
def test_a_malformed_resource_is_named_with_its_field(data: dict[str, Any], text: str) -> None:
    with pytest.raises(Malformed, match=text):
        parse_resource(Kind.FELIX_CONFIGURATION, data)


def test_a_felix_configuration_keeps_what_it_does_not_know() -> None:
    spec = {"bpfLogLevel": "", "floatingIPs": "Disabled", "wireguardEnabled": False, "x": []}
    wire = {"kind": "FelixConfiguration", "metadata": {"name": "d"}, "spec": spec}
    resource = parse_resource(Kind.FELIX_CONFIGURATION, wire)
    assert isinstance(resource, FelixConfiguration)
    assert resource.to_wire()["spec"] == spec


def pool_of(**spec: Any) -> IPPool:
    wire = {"kind": "IPPool", "metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/16", **spec}}
    resource = parse_resource(Kind.IP_POOL, wire)
    assert isinstance(resource, IPPool)
    return resource


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"cidr": "10.0.0.0/33"}, r"spec\.cidr: '10\.0\.0\.0/33' does not appear"),
        (
            {"cidr": "10.0.0.1/16"},
            r"spec\.cidr: 10\.0\.0\.1/16 has host bits set: .* 10\.0\.0\.0/16",
        ),
        ({"cidr": "fd00::1/64"}, r"spec\.cidr: fd00::1/64 has host bits set: .* fd00::/64"),
        ({"cidr": "10.0.0.0"}, r"spec\.cidr: '10\.0\.0\.0' is not address/prefix length"),
        ({"cidr": "10.0.0.0/255.255.0.0"}, r"spec\.cidr: .* is not address/prefix length"),
        ({"cidr": ""}, r"spec\.cidr: '' is not address/prefix length"),
        ({"cidr": 7}, r"spec\.cidr: "),
        ({"blockSize": 19}, r"spec\.blockSize: 19 is not one of 20\.\.32 for IPv4"),
        ({"blockSize": 33}, r"spec\.blockSize: 33 is not one of"),
        ({"blockSize": -1}, r"spec\.blockSize: -1 is not one of"),
        ({"cidr": "10.0.0.0/24", "blockSize": 23}, r"spec\.blockSize: a block of /23 does not fit"),
        (
            {"cidr": "10.0.0.0/28"},
            r"spec\.blockSize: a block of /26 does not fit into 10\.0\.0\.0/28",
        ),
        ({"cidr": "fd00::/64", "blockSize": 64}, r"spec\.blockSize: 64 is not one of 116\.\.128"),
        ({"blockSize": "big"}, r"spec\.blockSize: "),
        ({"ipipMode": "Sometimes"}, r"spec\.ipipMode: .*'Never', 'Always' or 'CrossSubnet'"),
        ({"vxlanMode": "always"}, r"spec\.vxlanMode: .*'Never', 'Always' or 'CrossSubnet'"),
        ({"allowedUses": ["Workload", "Any"]}, r"spec\.allowedUses\.1: .*'LoadBalancer'"),
        ({"assignmentMode": "Auto"}, r"spec\.assignmentMode: .*'Automatic' or 'Manual'"),
        ({"disabled": "perhaps"}, r"spec\.disabled: "),
    ],
)
def test_a_pool_that_can_not_be_used_is_named_with_its_field(
    spec: dict[str, Any], text: str
) -> None:
    with pytest.raises(Malformed, match=f"^IPPool 'p': {text}"):
        pool_of(**spec)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"ipipMode": "", "vxlanMode": "", "assignmentMode": "", "allowedUses": [], "blockSize": 0},
        {"ipipMode": None, "allowedUses": None, "assignmentMode": None, "blockSize": None},
    ],
)
def test_an_older_pool_has_calicos_stored_defaults(spec: dict[str, Any]) -> None:
    assert pool_of(**spec).to_wire()["spec"] == {
        "cidr": "10.0.0.0/16",
        "vxlanMode": "Never",
        "ipipMode": "Never",
        "blockSize": 26,
        "nodeSelector": "all()",
        "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic",
    }
    assert pool_of(cidr="fd00::/64", **spec).spec.block_size == 122


def configuration_of(**spec: Any) -> IPAMConfiguration:
    wire = {"kind": "IPAMConfiguration", "metadata": {"name": "default"}, "spec": spec}
    resource = parse_resource(Kind.IPAM_CONFIGURATION, wire)
    assert isinstance(resource, IPAMConfiguration)
    return resource


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"kubeVirtVMAddressPersistence": "on"}, "kubeVirtVMAddressPersistence: .*'Disabled'"),
        ({"maxBlocksPerHost": -1}, "maxBlocksPerHost: .*greater than or equal to 0"),
        ({"ipCooldownSeconds": -1}, "ipCooldownSeconds: .*greater than or equal to 0"),
        ({"strictAffinity": "perhaps"}, "strictAffinity: "),
    ],
)
def test_a_configuration_that_can_not_be_obeyed_is_named_with_its_field(
    spec: dict[str, Any], text: str
) -> None:
    with pytest.raises(Malformed, match=rf"^IPAMConfiguration 'default': spec\.{text}"):
        configuration_of(**spec)


@pytest.mark.parametrize("value", ["", None])
def test_an_empty_persistence_is_none(value: str | None) -> None:
    found = configuration_of(kubeVirtVMAddressPersistence=value)
    assert found.spec.kubevirt_persistence is None
    assert "kubeVirtVMAddressPersistence" not in found.to_wire()["spec"]


def test_the_tunnel_addresses_of_a_node_are_calicos_fields() -> None:
    spec = {
        "bgp": {"ipv4Address": "192.0.2.11/24", "ipv4IPIPTunnelAddr": "10.250.0.4"},
        "ipv4VXLANTunnelAddr": "10.250.0.5",
        "vxlanTunnelMACAddr": "66:00:00:00:00:01",
        "ipv6VXLANTunnelAddr": "fd00::5",
        "vxlanTunnelMACAddrV6": "66:00:00:00:00:02",
        "wireguard": {"interfaceIPv4Address": "10.250.0.6", "interfaceIPv6Address": "fd00::6"},
    }
    wire = {"kind": "Node", "metadata": {"name": "n"}, "spec": spec}
    node = parse_resource(Kind.NODE, wire)
    assert isinstance(node, Node)
    assert node.spec.wireguard is not None
    assert node.spec.wireguard.interface_ipv6_address == "fd00::6"
    assert node.spec.ipv6_vxlan_tunnel_addr == "fd00::5"
    assert node.to_wire()["spec"] == spec
