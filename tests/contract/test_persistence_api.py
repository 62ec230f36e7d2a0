"""The persistence toggle against an API server over HTTP: kubectl's requests and ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipam.attempts import DEFAULT_RETRY, Attempts
from ipam.configure import Change, configure
from ipam.persistence import persistence
from lab.apiserver.faults import CloseConnection, Delay, Fault, Reject
from lab.apiserver.server import ApiServer
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import Malformed, Unauthorized, Unavailable
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.model.ipam import Persistence
from tests.fakes.ports import refusing_port

V3 = "/apis/projectcalico.org/v3/ipamconfigurations"
V1 = "/apis/crd.projectcalico.org/v1/ipamconfigs"
MERGE = "application/merge-patch+json"
ON, OFF = Persistence.ENABLED, Persistence.DISABLED
PATHS = {"v3": V3, "v1": V1}
HASTE = 0.5
"""Seconds that a client waits for a server that will say nothing."""


@pytest.fixture
def client(server: ApiServer) -> Iterator[HttpKubeClient]:
    made = HttpKubeClient(direct(server.url))
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteDatastore]:
    made = SqliteDatastore(tmp_path / "t.db")
    yield made
    made.close()


def attempts(store: SqliteDatastore) -> Attempts:
    return Attempts(store, DEFAULT_RETRY, time.monotonic, time.sleep)


def put(client: HttpKubeClient, path: str, **spec: Any) -> None:
    """The object as Calico's node makes it at its first start."""
    body = {
        "apiVersion": path.removeprefix("/apis/").rpartition("/")[0],
        "kind": "IPAMConfiguration" if path == V3 else "IPAMConfig",
        "metadata": {"name": "default"},
        "spec": {"strictAffinity": False, "autoAllocateBlocks": True, **spec},
    }
    client.raw("POST", path, body)


def kubectl_patch(client: HttpKubeClient, path: str, value: str | None) -> None:
    """What `kubectl patch ... default --type=merge -p '{"spec":{...}}'` sends."""
    body = {"spec": {"kubeVirtVMAddressPersistence": value}}
    client.raw("PATCH", f"{path}/default", body, content_type=MERGE)


@pytest.mark.parametrize("version", PATHS)
def test_kubectl_sets_it_and_takes_it_back(
    server: ApiServer, client: HttpKubeClient, store: SqliteDatastore, version: str
) -> None:
    path = PATHS[version]
    if version == "v1":
        server.api.catalogue.hide("projectcalico.org")
    put(client, path)
    assert persistence(store, client).value is ON
    kubectl_patch(client, path, "Disabled")
    assert persistence(store, client).value is OFF
    assert persistence(store, None).value is ON
    kubectl_patch(client, path, None)
    assert persistence(store, client).value is ON
    if version == "v3":
        put(client, V1, kubeVirtVMAddressPersistence="Disabled")
        assert persistence(store, client).value is ON


@pytest.mark.parametrize("served", ["both", "v3", "v1", "none"])
@pytest.mark.parametrize("there", [False, True])
def test_both_ways_of_setting_it_are_one(
    server: ApiServer, client: HttpKubeClient, store: SqliteDatastore, served: str, there: bool
) -> None:
    groups = {"v3": "projectcalico.org", "v1": "crd.projectcalico.org"}
    server.api.catalogue.hide(*(g for name, g in groups.items() if served not in ("both", name)))
    path = V1 if served == "v1" else V3
    if there and served != "none":
        put(client, path)
    for value in (OFF, ON, OFF):
        done = configure(store, client, Change(persistence=value), attempts(store))
        assert bool(done.api_place) is (served != "none")
        assert persistence(store, client).value is value
        assert persistence(store, None).value is value
        if served == "none":
            continue
        seen = client.raw("GET", f"{path}/default")["spec"]
        assert seen["kubeVirtVMAddressPersistence"] == value
        assert (seen["strictAffinity"], seen["autoAllocateBlocks"]) == (False, True)
        other = OFF if value is ON else ON
        kubectl_patch(client, path, other.value)
        assert persistence(store, client).value is other


@pytest.mark.parametrize(
    "case",
    [
        (Reject(403, "Forbidden"), Unauthorized),
        (Reject(401, "Unauthorized"), Unauthorized),
        (Reject(500, "InternalError"), Unavailable),
        (Reject(503, "ServiceUnavailable"), Unavailable),
        (Reject(429, "TooManyRequests"), Unavailable),
        (CloseConnection(), Unavailable),
        (Delay(30), Unavailable),
    ],
)
@pytest.mark.parametrize(
    "resource", ["ipamconfigurations.projectcalico.org", "ipamconfigs.crd.projectcalico.org"]
)
def test_what_an_api_does_not_say_is_not_guessed(
    server: ApiServer,
    client: HttpKubeClient,
    store: SqliteDatastore,
    resource: str,
    case: tuple[Any, type[Exception]],
) -> None:
    action, error = case
    if isinstance(action, Delay):
        client = HttpKubeClient(direct(server.url), timeout=HASTE)
    configure(store, None, Change(persistence=ON), attempts(store))
    server.faults.add(Fault(action, resource=resource))
    with pytest.raises(error):
        persistence(store, client)
    with pytest.raises(error):
        configure(store, client, Change(persistence=OFF), attempts(store))
    assert persistence(store, None).value is ON


def test_nobody_listens(store: SqliteDatastore) -> None:
    with refusing_port() as port:
        client = HttpKubeClient(direct(f"http://127.0.0.1:{port}"))
        with pytest.raises(Unavailable):
            persistence(store, client)
        client.close()


def test_an_unreadable_value_is_not_guessed(
    server: ApiServer, client: HttpKubeClient, store: SqliteDatastore
) -> None:
    """An object from before the kind had a schema."""
    put(client, V1)
    resource, key = "ipamconfigs.crd.projectcalico.org", ("", "default")
    body = client.raw("GET", f"{V1}/default")
    body["spec"]["kubeVirtVMAddressPersistence"] = "off"
    version = body["metadata"]["resourceVersion"]
    server.api.store.put(resource, key, body, expected=version)
    with pytest.raises(Malformed, match="'off' is none of Enabled, Disabled"):
        persistence(store, client)
    configure(store, client, Change(persistence=OFF), attempts(store))
    assert persistence(store, client).value is OFF


def test_reads_only_what_calicos_role_for_the_plugin_may_read(
    server: ApiServer, client: HttpKubeClient, store: SqliteDatastore
) -> None:
    persistence(store, client)
    assert {(asked.verb, asked.resource, asked.name) for asked in server.audit} == {
        ("get", "ipamconfigurations.projectcalico.org", "default"),
        ("get", "ipamconfigs.crd.projectcalico.org", "default"),
    }
