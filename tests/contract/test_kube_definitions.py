"""CRDs that come, change and go on the lab's API server, and a client that follows their kind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lab.apiserver.server import ApiServer
from libtortie.errors import InvalidInput, TortieError
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.follow import Backoff, follow
from libtortie.kube.objects import VirtualMachine
from libtortie.kube.port import Applied, Gone, NotServed

GROUP = "kubevirt.io"
PLURAL = "virtualmachines"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
VMS = f"/apis/{GROUP}/v1/namespaces/default/{PLURAL}"
QUICK = Backoff(first=0.01, cap=0.05, overload_cap=0.05, absent=0.05)


def definition(*versions: str, served: bool = True, group: str = GROUP) -> dict[str, Any]:
    listed = [{"name": version, "served": served, "storage": True} for version in versions]
    spec = {"group": group, "names": {"plural": PLURAL}, "versions": listed}
    return {"metadata": {"name": f"{PLURAL}.{group}"}, "spec": spec}


def make(client: HttpKubeClient, name: str, version: str = "v1") -> None:
    body = {"metadata": {"name": name, "namespace": "default"}}
    client.raw("POST", VMS.replace("/v1/", f"/{version}/"), body)


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    """Without KubeVirt."""
    server.api.catalogue.hide(GROUP)
    return server


def groups(client: HttpKubeClient) -> dict[str, list[str]]:
    found = client.raw("GET", "/apis")["groups"]
    return {one["name"]: [each["version"] for each in one["versions"]] for one in found}


def test_a_kind_is_served_from_its_definition_on(client: HttpKubeClient) -> None:
    assert GROUP not in groups(client)
    with pytest.raises(NotServed):
        client.list(VirtualMachine)
    client.raw("POST", CRDS, definition("v1"))
    assert groups(client)[GROUP] == ["v1"]
    assert client.list(VirtualMachine)[0] == ()
    make(client, "db")
    assert client.get(VirtualMachine, "db", "default").metadata.name == "db"
    with pytest.raises(NotServed):
        client.raw("GET", VMS.replace(PLURAL, "virtualmachineinstances"))


def test_it_is_served_in_the_versions_that_are_defined(client: HttpKubeClient) -> None:
    client.raw("POST", CRDS, definition("v1alpha3", "v1"))
    make(client, "db", "v1alpha3")
    assert client.get(VirtualMachine, "db", "default").metadata.name == "db"
    client.raw("PUT", f"{CRDS}/{PLURAL}.{GROUP}", definition("v1alpha3"))
    assert groups(client)[GROUP] == ["v1alpha3"]
    with pytest.raises(NotServed):
        client.list(VirtualMachine)
    client.raw("PUT", f"{CRDS}/{PLURAL}.{GROUP}", definition("v1", served=False))
    assert GROUP not in groups(client)


def test_its_objects_go_with_it(client: HttpKubeClient) -> None:
    client.raw("POST", CRDS, definition("v1"))
    make(client, "db")
    client.raw("DELETE", f"{CRDS}/{PLURAL}.{GROUP}")
    assert GROUP not in groups(client)
    client.raw("POST", CRDS, definition("v1"))
    assert client.list(VirtualMachine)[0] == ()


def test_a_definition_of_what_is_served_anyway_means_nothing(
    server: ApiServer, client: HttpKubeClient
) -> None:
    server.api.catalogue.offer(GROUP)
    make(client, "db")
    client.raw("POST", CRDS, definition("v2"))
    client.raw("DELETE", f"{CRDS}/{PLURAL}.{GROUP}")
    assert client.get(VirtualMachine, "db", "default").metadata.name == "db"


def test_a_definition_without_a_kind_is_invalid(client: HttpKubeClient) -> None:
    with pytest.raises(InvalidInput, match="has no 'versions'"):
        client.raw("POST", CRDS, {"metadata": {"name": "a.b"}, "spec": {"group": "b"}})


def test_who_follows_a_kind_outlives_its_definition(client: HttpKubeClient) -> None:
    """Late, gone, of another version, back: one thread, no restart, and nothing is "gone"."""
    heard: list[str] = []
    troubles: list[TortieError] = []
    changed, stop = threading.Condition(), threading.Event()

    def complain(kind: str, error: TortieError, delay: float) -> None:
        with changed:
            troubles.append(error)
            changed.notify_all()

    def run() -> None:
        for event in follow(client, VirtualMachine, stop=stop, backoff=QUICK, trouble=complain):
            assert not isinstance(event, Gone)
            with changed:
                heard.append(event.object.metadata.name if isinstance(event, Applied) else "synced")
                changed.notify_all()

    def wait(*names: str, more_troubles: int = 0) -> None:
        with changed:
            enough = len(troubles) + more_troubles
            assert changed.wait_for(
                lambda: heard[-len(names) or None :] == list(names) and len(troubles) >= enough, 60
            ), (heard, troubles)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait(more_troubles=2)
        client.raw("POST", CRDS, definition("v1"))
        wait("synced")
        make(client, "db")
        wait("db")
        client.raw("PUT", f"{CRDS}/{PLURAL}.{GROUP}", definition("v1alpha3"))
        wait("db", more_troubles=2)
        assert all(isinstance(error, NotServed) for error in troubles)
        client.raw("PUT", f"{CRDS}/{PLURAL}.{GROUP}", definition("v1alpha3", "v1"))
        wait("db", "db", "synced")
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
