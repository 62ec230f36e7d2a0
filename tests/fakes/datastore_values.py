"""Small values to store, and the keys they are stored under."""

from __future__ import annotations

from ipaddress import ip_network

from libtortie.model.ipam import Block, Handle
from libtortie.model.keys import HandleKey
from libtortie.model.resources import WorkloadEndpoint

CIDR = ip_network("10.250.0.4/30")
NOT_A_HANDLE = b'{"block":5}'


def handle_key(name: str = "h1") -> HandleKey:
    return HandleKey(name)


def handle(count: int = 1) -> Handle:
    return Handle({CIDR: count})


def block(count: int = 0) -> Block:
    return Block(CIDR, "host:n1", (None,) * 4, (0, 1, 2, 3), sequence_number=count)


def endpoint(name: str, namespace: str, pod: str = "p") -> WorkloadEndpoint:
    return WorkloadEndpoint.model_validate(
        {"metadata": {"name": name, "namespace": namespace}, "spec": {"node": "n1", "pod": pod}}
    )
