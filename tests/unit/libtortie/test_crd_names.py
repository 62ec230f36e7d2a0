"""Object names, labels and UIDs are Calico's."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libtortie.datastore.crd_names import (
    Group,
    affinity_place,
    converted_uid,
    group_named,
    hostname_hash,
    resource_api,
)
from libtortie.errors import InvalidInput
from libtortie.model.keys import AffinityKey, Kind
from libtortie.model.names import block_name, block_of_name

UID = "3f2b1c9e-7d4a-4e6b-9a51-0c8e2f7d6b14"
CONVERTED = "fcd43879-be52-4ed6-9a8a-3071f4bed628"


def test_uids_are_shown_converted_and_back() -> None:
    assert converted_uid(UID) == CONVERTED
    assert converted_uid(CONVERTED) == UID
    assert converted_uid("u-1") == "u-1"
    assert converted_uid("") == ""


def test_the_label_of_a_node() -> None:
    assert hostname_hash("node-1") == "A3XPYDATRKB7Q4SM2O5FN4RXIHBFIL2PITFX26BAIP5XAB2X74CA"


def test_a_long_nodes_affinity_has_a_name_of_252() -> None:
    place = affinity_place(Group.V1, AffinityKey("n" * 250, ip_network("10.0.0.0/26")))
    assert len(place.name) == 252
    assert "-10-0-0-0-26-" in place.name


@pytest.mark.parametrize("version", [4, 6])
@given(data=st.data())
def test_a_blocks_name_says_which_it_is(version: int, data: st.DataObject) -> None:
    address = data.draw(st.ip_addresses(v=version))  # type: ignore[arg-type]  # 4 or 6
    prefixlen = data.draw(st.integers(1, address.max_prefixlen))
    cidr = ip_network((address, prefixlen), strict=False)
    assert block_of_name(block_name(cidr)) == cidr


@pytest.mark.parametrize(
    "name", ["", "x", "10-0-0-1-30", "10-0-0-0", "10-0-0-0-33", "010-0-0-0-26", "-26", "default"]
)
def test_what_is_no_blocks_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        block_of_name(name)


def test_groups_by_name_and_where_the_configuration_is() -> None:
    assert group_named("projectcalico.ORG/v3") is Group.V3
    assert group_named("crd.projectcalico.org/v1") is Group.V1
    with pytest.raises(InvalidInput, match=r"calico_api_group: 'v3' is none of crd\."):
        group_named("v3")
    assert resource_api(Group.V1, Kind.IPAM_CONFIGURATION).plural == "ipamconfigs"
    assert resource_api(Group.V3, Kind.IPAM_CONFIGURATION).plural == "ipamconfigurations"
    policies = resource_api(Group.V3, Kind.NETWORK_POLICY)
    assert (policies.group, policies.version) == ("projectcalico.org", "v3")
    assert policies.namespaced
