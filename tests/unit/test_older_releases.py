"""What older versions of ours wrote, as it was recorded when they were made: this one reads all of
it, goes on from there, and still writes what the newest of them understands."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cni_plugin.frame import Response, read_request, read_response
from felix_shim.desired import speaks_of
from felix_shim.endpoints import parse_endpoint
from felix_shim.migration import State
from felix_shim.peer_messages import HEADER, decode, parse_header
from felix_shim.peer_messages import Kind as MessageKind
from felix_shim.policy_cache import PolicyCache
from felix_shim.settings import Settings
from felix_shim.state import decode as decode_state
from ipam.client import AddressRequest, IPAMClient
from libtortie.datastore.codec import decode as decode_value
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.history import history
from libtortie.history_spool import read_facts
from libtortie.kube.policies import KubeNetworkPolicy
from libtortie.model.keys import Blocks, Handles, Kind, Resources, parse_path
from libtortie.model.resources import WorkloadEndpoint
from libtortie.past_migrations import migrations
from tests.fakes.agent_world import RecordingLog
from tests.fakes.release_words import (
    BOOT,
    ENDPOINT,
    ENVIRONMENT,
    HANDLE,
    MEMORY,
    MESSAGES,
    MONOTONIC,
    NOW,
    POLICIES,
    RELEASES,
    STDIN,
    owner,
    words,
)

ALL = sorted(RELEASES.iterdir())
NEWEST = ALL[-1]


@pytest.fixture(params=ALL, ids=lambda path: path.name)
def release(request: pytest.FixtureRequest) -> Path:
    found = request.param
    assert isinstance(found, Path)
    return found


def recorded(release: Path, name: str) -> Any:
    return json.loads((release / name).read_text())


@pytest.fixture
def store(release: Path, tmp_path: Path) -> Iterator[SqliteDatastore]:
    """The file that a release left on a node."""
    left = recorded(release, "store.json")
    with closing(sqlite3.connect(tmp_path / "tortie.db")) as raw:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute(f"PRAGMA application_id = {left['application_id']}")
        raw.execute(f"PRAGMA user_version = {left['user_version']}")
        for statement in left["schema"]:
            if "sqlite_sequence" not in statement:  # the database makes that one itself
                raw.execute(statement)
        raw.execute("INSERT INTO meta VALUES ('node', 'n1')")
        for number, (path, data) in enumerate(left["kv"].items(), 1):
            raw.execute("INSERT INTO kv VALUES (?, ?, ?)", (path, number, data.encode()))
            raw.execute("INSERT INTO log VALUES (?, ?, ?)", (number, path, data.encode()))
        raw.commit()
    with closing(SqliteDatastore(tmp_path / "tortie.db", node="n1")) as opened:
        yield opened


def test_what_agents_say_to_each_other(release: Path) -> None:
    said = recorded(release, "peers.json")
    for name, frame in said.items():
        raw = bytes.fromhex(frame)
        length, kind = parse_header(raw[: HEADER.size])
        assert len(raw) == HEADER.size + length
        assert isinstance(kind, MessageKind)
        assert decode(kind, raw[HEADER.size :]) == MESSAGES[name]
    assert {"wanted", "cut-over", "flows", "end", "refused"} <= said.keys()


def test_what_executable_and_agent_say_to_each_other(release: Path) -> None:
    said = {name: bytes.fromhex(text) for name, text in recorded(release, "shim.json").items()}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said["request"])
        request = read_request(ours)
        assert (dict(request.env), request.stdin) == (ENVIRONMENT, STDIN)
        theirs.sendall(said["answer"])
        assert read_response(ours) == Response(1, b'{"code": 11}\n')


def test_the_state_of_migrations(release: Path) -> None:
    raw = (release / "migration-state.json").read_bytes()
    read = decode_state(raw, BOOT, MONOTONIC, Settings())
    assert read.raises == MEMORY.raises
    assert [(one.endpoint, one.container_id, one.returned) for one in read.machines] == [
        (one.endpoint, one.container_id, one.returned) for one in MEMORY.machines
    ]
    for one, known in zip(read.machines, MEMORY.machines, strict=True):
        machine, before = one.machine, known.machine
        assert (machine.state, machine.facts, machine.since) == (
            before.state,
            before.facts,
            before.since,
        )
        assert machine.episode > before.episode
    assert {one.machine.state for one in read.machines} == set(State) - {State.ENDED}


def test_files_beside_it(release: Path, tmp_path: Path) -> None:
    assert isinstance(ENDPOINT.value, WorkloadEndpoint)
    body = (release / "endpoint-status.json").read_text()
    assert speaks_of(body, parse_endpoint(ENDPOINT.value))
    (tmp_path / "networkpolicies.json").write_bytes((release / "networkpolicies.json").read_bytes())
    cache = PolicyCache(tmp_path, "https://api", BOOT, RecordingLog())
    assert cache.load(KubeNetworkPolicy) == POLICIES
    spool = release / "history.spool"
    if spool.exists():
        lines = [line for line in spool.read_text().splitlines() if line]
        assert len(read_facts(spool.read_bytes())) == len(lines) > 0


def test_a_datastore(release: Path, store: SqliteDatastore) -> None:
    """Nothing in it is unreadable, a migration goes on in it, and so does the rest of life."""
    for path, data in recorded(release, "store.json")["kv"].items():
        assert decode_value(parse_path(path), data.encode())
    for scope in (Blocks(4), Blocks(6), Handles(), Resources(Kind.WORKLOAD_ENDPOINT)):
        listing = store.list(scope)
        assert listing.records
        assert not listing.malformed
    client = IPAMClient(store, "n2", now=lambda: NOW)
    (v4, v6) = client.by_handle(HANDLE)
    assert [one.alternate["pod"] for one in (v4, v6)] == ["db-b", "db-b"]
    assert client.promote(HANDLE, owner("db-b", "n2", migration="mig-1"))
    held = {one.address for one in client.by_handle(HANDLE)}
    assert {one.active["pod"] for one in client.by_handle(HANDLE)} == {"db-b"}
    fresh = client.assign("k8s-pod-network.c-x", owner("x", "n2"), AddressRequest(ipv6=True))
    assert not held & {one.address for one in fresh}
    assert client.disown_vm(HANDLE, owner("db-b", "n2"), vm_deleting=True) is False  # db-a is left
    told = history(store, vm=("shop", "db"))
    assert not told.unreadable
    if any("/history/" in path for path in recorded(release, "store.json")["kv"]):
        assert [one.migration_uid for one in migrations(told.facts)] == ["mig-1"]


def test_this_version_writes_what_the_newest_of_them_reads(tmp_path: Path) -> None:
    """To the byte: who changes one of these makes a record of what is new (`release_words`), and
    thinks of the agent before, which reads it after a downgrade and on other nodes."""
    written = dict(words(tmp_path))
    assert written.keys() == {path.name for path in NEWEST.iterdir()}
    for name, data in written.items():
        assert data == (NEWEST / name).read_bytes(), name
