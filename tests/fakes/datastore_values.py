"""Small values to store, and the keys they are stored under."""

from __future__ import annotations

from ipaddress import ip_network

from libtortie.datastore.port import Value
from libtortie.model.ipam import Block, Handle
from libtortie.model.keys import HandleKey, Kind, ResourceKey
from libtortie.model.resources import GenericResource, Resource, parse_resource

CIDR = ip_network("10.250.0.4/30")
NOT_A_HANDLE = b'{"block":5}'


def handle_key(name: str = "h1") -> HandleKey:
    return HandleKey(name)


def handle(count: int = 1) -> Handle:
    return Handle({CIDR: count})


def block(count: int = 0) -> Block:
    return Block(CIDR, "host:n1", (None,) * 4, (0, 1, 2, 3), sequence_number=count)


def called(key: HandleKey | ResourceKey) -> str:
    """What errors of any store call a value, as a pattern: its path, or its object in the API."""
    if isinstance(key, HandleKey):
        return rf"handles?(\.[.\w]*)?/{key.handle_id}\b"
    return rf"{key.kind.plural}(\.[.\w]*)?/{key.namespace}/{key.name}\b"


def set_key(name: str, namespace: str = "ns") -> ResourceKey:
    return ResourceKey(Kind.NETWORK_SET, name, namespace)


def network_set(key: ResourceKey, net: str = "10.0.0.0/8") -> Resource:
    """A resource in a namespace that no store treats as special."""
    meta = {"name": key.name, "namespace": key.namespace}
    wire = {"kind": key.kind.value, "metadata": meta, "spec": {"nets": [net]}}
    return parse_resource(key.kind, wire)


def nets_of(value: Value) -> object:
    assert isinstance(value, GenericResource)
    return (value.spec.model_extra or {}).get("nets")
