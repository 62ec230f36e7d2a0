"""Equal texts kept once: what is read is equal to what is stored, and shares what it repeats."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Network, ip_address, ip_interface

import pytest

from ipam.block import assign_ordinal, new_block
from ipam.gc_endpoints import addresses, endpoint_of
from ipam.gc_inventory import read_inventory
from ipam.gc_sharing import Texts
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Create
from libtortie.model.ipam import Block, Handle
from libtortie.model.keys import BlockKey, HandleKey
from libtortie.model.names import ANNOTATION_POD_UID
from libtortie.model.resources import ObjectMeta, WorkloadEndpoint, WorkloadEndpointSpec

NOW = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)
CIDR = IPv4Network("10.65.0.0/29")


def anew(text: str) -> str:
    """An equal text that is another object, as every reading makes one."""
    return "".join(list(text))


def block_of(*pods: str) -> Block:
    block = new_block(CIDR, node="n1", now=NOW)
    for ordinal, pod in enumerate(pods):
        owner = {"pod": pod, "namespace": anew("shop"), "node": anew("n1"), "pod-uid": f"u-{pod}"}
        block = assign_ordinal(block, ordinal, handle_id=f"net.{pod}", owner=owner)
    return block


def endpoint(pod: str) -> WorkloadEndpoint:
    return WorkloadEndpoint(
        metadata=ObjectMeta(
            name=f"n1-k8s-{pod}-eth0",
            namespace=anew("shop"),
            annotations={ANNOTATION_POD_UID: anew(f"u-{pod}")},
        ),
        spec=WorkloadEndpointSpec(
            orchestrator="k8s", node=anew("n1"), pod=anew(pod), ip_networks=("10.65.0.1/32",)
        ),
    )


def test_a_block_is_equal_and_what_its_owners_repeat_is_one_object() -> None:
    block = block_of("web", "app")
    released = replace(block.attributes[1], released_at=NOW, extra={"odd": 1}, active={})
    block = replace(block, attributes=(*block.attributes, replace(released, handle_id=None)))
    shared = Texts().block(block)
    assert shared == block
    web, app = (one.active for one in shared.attributes[:2])
    assert web["namespace"] is app["namespace"]
    assert web["node"] is app["node"]


def test_an_endpoint_shares_what_the_owner_of_its_address_says() -> None:
    texts = Texts()
    (attribute,) = texts.block(block_of("web")).attributes
    found, owner = endpoint_of(endpoint("web"), texts), attribute.active
    assert (found.pod, found.pod_uid, found.node) == ("web", "u-web", "n1")
    assert found.pod is owner["pod"]
    assert found.pod_uid is owner["pod-uid"]
    assert found.node is owner["node"]


def test_handles_of_a_block_share_what_they_count() -> None:
    store = MemoryDatastore()
    store.commit([Create(BlockKey(CIDR), block_of("web", "app"))])
    store.commit(
        [Create(HandleKey(name), Handle({IPv4Network(CIDR): 1})) for name in ("net.web", "net.app")]
    )
    inventory = read_inventory(store, NOW)
    web, app = inventory.handles["net.web"], inventory.handles["net.app"]
    assert web.counts == ((CIDR, 1),)
    assert web.counts is app.counts
    (name,) = (name for name in inventory.handles if name == "net.web")
    assert name is inventory.allocated[0].handle_id


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1/32",
        " 10.0.0.1/32 ",
        "10.0.0.1",
        "10.0.0.1/24",
        "fd00::1/128",
        "fd00::/32",
        "fd00::1",
    ],
)
def test_an_address_is_read_with_and_without_a_prefix_length(text: str) -> None:
    assert list(addresses([text, text])) == [ip_interface(text.strip()).ip]


@pytest.mark.parametrize("text", ["", "/32", "10.0.0.1/33", "10.0.0.1/32/32", "x/32", "10.0.0/32"])
def test_what_is_no_address_is_left_out(text: str) -> None:
    assert list(addresses([text, "10.0.0.9"])) == [ip_address("10.0.0.9")]
