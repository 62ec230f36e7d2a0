"""Staged policies are what somebody thinks of doing: no datastore gives them to the agent."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from felix_shim.cluster import POLICY_SCOPES
from libtortie.datastore.crd_names import Group
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.port import Datastore
from libtortie.model.resources import Resource
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.kubernetes_store import kubernetes_api, put_object, stores_of

STAGED = ("StagedNetworkPolicy", "StagedGlobalNetworkPolicy", "StagedKubernetesNetworkPolicy")
SPEC = {"stagedAction": "Set", "selector": "all()", "types": ["Ingress"]}


def found(store: Datastore) -> list[str]:
    """What there is in what the agent follows of policy, and what it cannot read there."""
    listings = [store.list(scope) for scope in POLICY_SCOPES]
    records = [record for listing in listings for record in listing.records]
    kinds = [one.value.kind for one in records if isinstance(one.value, Resource)]
    return [*kinds, *(text for listing in listings for text in listing.malformed)]


def plural(kind: str) -> str:
    return f"{kind.lower()[:-1]}ies"


def place(kind: str) -> dict[str, str]:
    return {"name": "p"} if "Global" in kind else {"name": "p", "namespace": "shop"}


def test_in_etcd(shared_etcd: EtcdMember) -> None:
    shared_etcd.remove_all()
    for kind in STAGED:
        body = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": place(kind)}
        where = "/".join(value for _, value in sorted(place(kind).items(), reverse=True))
        path = f"/calico/resources/v3/projectcalico.org/{plural(kind)}/{where}"
        shared_etcd.put(path, json.dumps({**body, "spec": SPEC}).encode())
    with closing(EtcdDatastore(EtcdConfig(shared_etcd.url))) as store:
        assert found(store) == []


@pytest.mark.parametrize("group", list(Group))
def test_in_kubernetes(group: Group) -> None:
    with kubernetes_api() as server, stores_of(server, group) as (store,):
        for kind in STAGED:
            resource = f"{plural(kind)}.{group.value.partition('/')[0]}"
            put_object(server, resource, {"metadata": place(kind), "spec": SPEC})
        assert set(found(store)) <= {"Profile"}
