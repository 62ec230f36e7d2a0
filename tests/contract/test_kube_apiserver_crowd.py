"""The lab's API server with many writers and watchers at once: none is lost, all see one order."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.apiserver.server import ApiServer
from libtortie.errors import (
    AlreadyExists,
    Conflict,
    TortieError,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.objects import Pod
from libtortie.kube.port import Applied, Gone
from tests.fakes.objects import named

PODS = "/api/v1/namespaces/default/pods"
COUNTED = "/api/v1/namespaces/default/configmaps"


def test_no_update_is_lost(client: HttpKubeClient) -> None:
    """Optimistic concurrency: 4 writers, 25 increments each, counted by compare-and-swap."""
    client.raw("POST", COUNTED, named("b", data={"n": "0"}))
    met = threading.Barrier(4)

    def increment(number: int) -> int:
        retries = 0
        while True:
            body = client.raw("GET", f"{COUNTED}/b")
            if number < 4 and not retries:
                met.wait(60)  # all four have read the same
            body["data"] = {"n": str(int(body["data"]["n"]) + 1)}
            try:
                client.raw("PUT", f"{COUNTED}/b", body)
            except Conflict:
                retries += 1
            else:
                return retries

    with ThreadPoolExecutor(4) as pool:
        retries = sum(pool.map(increment, range(100)))
    assert client.raw("GET", f"{COUNTED}/b")["data"] == {"n": "100"}
    assert retries >= 3  # of the four that met, one was first


def test_unconditional_patches_from_many_all_count(client: HttpKubeClient) -> None:
    client.raw("POST", PODS, named("web"))

    def label(number: int) -> None:
        client.patch(Pod, "web", "default", {"metadata": {"labels": {f"l{number}": "x"}}})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(label, range(40)))
    assert len(client.get(Pod, "web", "default").metadata.labels) == 40


def test_one_creator_wins(client: HttpKubeClient) -> None:
    def create(_: int) -> bool:
        try:
            client.raw("POST", PODS, named("web"))
        except (AlreadyExists, Conflict):
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(create, range(12))) == 1


def test_watchers_see_every_write_in_order(client: HttpKubeClient, server: ApiServer) -> None:
    _, version = client.list(Pod)
    stop = threading.Event()

    def collect(_: int) -> list[str]:
        seen: list[str] = []
        for event in client.watch(Pod, resource_version=version, stop=stop):
            if isinstance(event, Applied | Gone):
                seen.append(f"{type(event).__name__} {event.object.metadata.resource_version}")
            if len(seen) == 80:
                return seen
        return seen

    def churn(number: int) -> None:
        for step in range(10):
            client.raw("POST", PODS, named(f"p{number}-{step}"))
            client.delete(Pod, f"p{number}-{step}", "default")

    with ThreadPoolExecutor(8) as pool:
        watchers = [pool.submit(collect, n) for n in range(3)]
        list(pool.map(churn, range(4)))
        guard = threading.Timer(120, stop.set)
        guard.start()
        views = [watcher.result() for watcher in watchers]
        guard.cancel()
    assert len(views[0]) == 80
    assert views[0] == views[1] == views[2]
    versions = [int(line.split()[1]) for line in views[0]]
    assert versions == sorted(set(versions))


def test_old_history_is_pruned(client: HttpKubeClient, server: ApiServer) -> None:
    server.api.store._history = 5
    _, version = client.list(Pod)
    for number in range(6):
        client.raw("POST", PODS, named(f"p{number}"))
    with pytest.raises(TortieError, match="too old resource version"):
        next(client.watch(Pod, resource_version=version))


def test_watch_without_a_version_shows_what_is_there(client: HttpKubeClient) -> None:
    client.raw("POST", PODS, named("a"))
    stream = client.watch(Pod)
    first = next(stream)
    assert isinstance(first, Applied) and first.object.metadata.name == "a"


def test_a_watch_ends_at_its_time(client: HttpKubeClient) -> None:
    """By the server: the client's own deadline would be an error."""
    began = time.monotonic()
    text = client.raw(
        "GET", f"{PODS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion=1"
    )
    assert time.monotonic() - began > 0.9
    assert {json.loads(line)["type"] for line in text.splitlines()} == {"BOOKMARK"}
