"""What rules can be about and only Kubernetes knows: whom Services lead to, and its nodes. Pure.

As Calico's: an endpoint of a Service counts whether it is ready or not. What is no address or port
is left out; nothing here raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_network
from typing import Any

from felix_shim.policy_compile import LABEL_SERVICE
from libtortie.kube.policies import EndpointSlice, PeerNode
from libtortie.model.plain_ip import plain_address
from libtortie.model.policy import IPNetwork, Item, NamedPort
from libtortie.model.policy_spec import protocol_number

SERVICE_NAME = "kubernetes.io/service-name"
"""The label that says which Service an EndpointSlice is of."""
_NODE_ADDRESSES = ("InternalIP", "ExternalIP")


def slice_item(found: EndpointSlice) -> Item:
    """The addresses of an EndpointSlice with its ports, under the name of its Service."""
    service = found.metadata.labels.get(SERVICE_NAME, "")
    name = f"{found.metadata.namespace}/{service}" if service else ""
    addresses = [text for one in _dicts(found.endpoints) for text in _list(one.get("addresses"))]
    ports = tuple(_ports(found.ports))
    return Item(((LABEL_SERVICE, name),), (), tuple(_networks(addresses)), ports)


def node_item(found: PeerNode) -> Item:
    """A node's addresses under its labels."""
    status = found.status if isinstance(found.status, Mapping) else {}
    entries = _dicts(status.get("addresses"))
    addresses = [one.get("address") for one in entries if one.get("type") in _NODE_ADDRESSES]
    labels = tuple(sorted(found.metadata.labels.items()))
    return Item(labels, (), tuple(_networks(addresses)))


def _networks(texts: list[Any]) -> Iterator[IPNetwork]:
    for text in texts:
        with suppress(ValueError):  # of an FQDN slice, say
            yield ip_network(plain_address(str(text)))


def _ports(value: Any) -> Iterator[NamedPort]:
    for one in _dicts(value):
        port = one.get("port")
        with suppress(ValueError):
            number = protocol_number(one.get("protocol") or "TCP")
            if isinstance(port, int) and 0 < port < 1 << 16:
                yield NamedPort(str(one.get("name") or ""), number, port)


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _list(value) if isinstance(one, Mapping)]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
