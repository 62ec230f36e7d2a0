"""The Kubernetes datastore over the lab's API server, and what foreign writers do to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct

Json = dict[str, Any]
NAMESPACES = ("ns", "ns2", "shop")


@contextmanager
def kubernetes_api() -> Iterator[ApiServer]:
    """A server of the test's own, with a few namespaces."""
    with ApiServer(bookmark_interval=0.05) as server:
        server.api.bootstrap_kind(
            "namespaces", tuple({"metadata": {"name": name}} for name in NAMESPACES)
        )
        yield server
        assert server.crashes == []


@contextmanager
def stores_of(
    server: ApiServer, group: Group | None = None, count: int = 1, **options: Any
) -> Iterator[tuple[KubernetesDatastore, ...]]:
    """Datastores on one server, each with a client of its own, as other processes have."""
    with ExitStack() as stack:
        stores = []
        for _ in range(count):
            client = HttpKubeClient(direct(server.url))
            store = KubernetesDatastore(client, group=group, close=client.close, **options)
            stack.callback(store.close)
            stores.append(store)
        yield tuple(stores)


def put_object(server: ApiServer, resource: str, body: Json) -> Json:
    """Store an object past every check of the server's, whether or not it existed."""
    meta = dict(body["metadata"])
    place = (meta.get("namespace", ""), meta["name"])
    old = server.api.store.get(resource, place)
    meta.setdefault("uid", "00000000-0000-4000-8000-000000000001")
    meta.setdefault("creationTimestamp", "2026-08-22T13:30:00Z")
    expected = None if old is None else old["metadata"]["resourceVersion"]
    kind = next(kind for kind in server.api.catalogue.kinds if kind.resource == resource)
    full = {"apiVersion": kind.api_version, "kind": kind.kind, **body, "metadata": meta}
    return server.api.store.put(resource, place, full, expected=expected)


def put_raw(server: ApiServer, group: Group, path: str, data: bytes) -> None:
    """What a path and its bytes are in etcd, as an object: IPAM's handles and blocks."""
    tail = path.rpartition("/")[2]
    plural, name, known = "ipamhandles", tail.lower(), {"handleID": tail}
    if "/block/" in path:
        plural, name = "ipamblocks", tail.replace(".", "-").replace(":", "-")
        known = {}
    try:
        spec: Any = {**known, **json.loads(data)}
    except (ValueError, TypeError):
        spec = data.decode()
    resource = f"{plural}.{group.value.partition('/')[0]}"
    put_object(server, resource, {"metadata": {"name": name}, "spec": spec})
