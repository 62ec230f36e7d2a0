"""The history over every datastore: kept, read, pruned; and IPAM's own facts of what it did."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

import pytest

from ipam.annals import Annals
from ipam.client import AddressRequest, IPAMClient
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_history import API
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput
from libtortie.history import PORTION, Bounds, Direct, history, keep, prune
from libtortie.history_spool import Spool
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Api, KubeObject
from libtortie.model.history import Fact, Facts, Lane, What
from libtortie.model.keys import History, HistoryKey
from tests.fakes.ipam_world import World, pool, vm_pod
from tests.fakes.kubernetes_store import stores_of

NOW = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)
HANDLE = "k8s-pod-network.vmi.shop.db"


def fact(after: int = 0, vm: str = "db") -> Fact:
    addresses = (ip_address("10.65.0.7"), ip_address("fd00::7"))
    at = NOW + timedelta(seconds=after)
    return Fact(
        at, What.GRANTED, "n1", HANDLE, addresses, "shop", vm, "l-a", "n1", "l-0", {"a": "b"}
    )


def test_what_is_kept_is_read_and_goes_the_oldest_first(store: Datastore) -> None:
    for number in (2, 0, 1):
        for _ in range(2):
            keep(store, [fact(number), fact(number, vm="")], str(number))
    assert history(store, vm=("shop", "db")).facts == tuple(fact(number) for number in range(3))
    assert len(history(store, address=ip_address("fd00::7")).facts) == 6
    assert [len(store.names(History(lane))) for lane in Lane] == [3, 3]
    assert prune(store, NOW, Bounds(vm=1, pod=2)) == 3
    assert history(store, vm=("shop", "db")).facts == (fact(2),)
    assert [one.at for one in history(store).facts if not one.vm] == [fact(1).at, fact(2).at]
    assert history(store).unreadable == ()


def test_names_that_are_none_and_records_without_facts_are_refused(store: Datastore) -> None:
    with pytest.raises(InvalidInput):
        store.create(HistoryKey("vm", "1-a"), Facts(()))
    with pytest.raises(InvalidInput):
        store.create(HistoryKey("vm", "a/b"), Facts((fact(),)))
    assert store.names(History("vm")) == ()


def test_a_vms_life_is_told_by_the_commits_themselves(store: Datastore, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "history.spool")
    world = World(store).pools(pool("a", "10.0.0.0/24"))

    def client(node: str) -> IPAMClient:
        return world.client(node, annals=Annals(node, world.now, spool.append))

    source, target = vm_pod("src"), vm_pod("dst", node="n2", vmim_uid="m-1")
    client("n1").claim_vm(HANDLE, source, AddressRequest())
    client("n2").claim_vm_target(HANDLE, target)
    client("n2").promote(HANDLE, target)
    client("n1").disown_vm(HANDLE, source, vm_deleting=False)
    direct = Direct(store, "tortiectl")
    world.client("x", annals=Annals("tortiectl", world.now, direct.write)).release(HANDLE)
    direct.flush()
    spool.drain(store)
    told = history(store, vm=("shop", "db"))
    assert sorted(one.what for one in told.facts) == sorted(
        (What.GRANTED, What.TARGETED, What.PROMOTED, What.RELEASED)
    )
    assert {one.by for one in told.facts} == {"n1", "n2", "tortiectl"}
    world.audit()


def test_what_is_longest_is_taken_too(store: Datastore) -> None:
    """By every store, also by an API server that checks our CRD's bounds."""
    texts = "x" * 5000
    many = tuple(ip_address(f"fd00::{number:x}") for number in range(64))
    long = Fact(
        NOW,
        What.MIGRATION,
        texts,
        texts,
        many,
        texts,
        texts,
        texts,
        texts,
        texts,
        {"reason": texts},
    )
    keep(store, [long] * PORTION, "long")
    (first, *_) = history(store).facts
    assert (first.addresses, len(first.pod), len(first.details["reason"])) == (many, 1024, 1024)


def test_the_crd_refuses_what_is_no_history(server: ApiServer) -> None:
    kube = HttpKubeClient(direct(server.url))
    try:
        for spec in ({}, {"facts": "x"}, {"facts": [{"at": "2026-08-22T13:30:00Z"}]}):
            body = {"metadata": {"name": "vm-1-a"}, "spec": spec}
            with pytest.raises(InvalidInput):
                kube.create(Stored, body)
    finally:
        kube.close()


class Stored(KubeObject):
    """A HistoryRecord as it is."""

    api: ClassVar[Api] = API


def test_a_cluster_without_the_crd_has_no_history_and_fails_nothing(server: ApiServer) -> None:
    server.api.catalogue.hide("tortie.io")
    with stores_of(server) as (store,):
        assert history(store).facts == ()
        assert prune(store, NOW) == 0
        direct = Direct(store, "tortiectl")
        direct.write([fact()])
        direct.flush()
        assert "historyrecords" in direct.trouble
