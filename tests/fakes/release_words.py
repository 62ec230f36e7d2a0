"""What one version of ours writes for another to read, of the same small story each time.

    python -m tests.fakes.release_words tests/fakes/releases/NAME

keeps what this checkout writes, as a release is made; `test_older_releases` reads all that was kept
so, and holds this checkout to what the newest one wrote. Where it must write something else, think
first of who reads it: agents of the release before, on this node (a downgrade) and on others.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cni_plugin.frame import encode_request, encode_response
from felix_shim.desired import status_body
from felix_shim.endpoints import parse_endpoint
from felix_shim.migration import Facts, Machine, State
from felix_shim.model import EndpointId, Proof, Role
from felix_shim.peer_messages import Batch, End, Message, Moved, Refused, Request, encode
from felix_shim.policy_cache import PolicyCache
from felix_shim.raises import Raises
from felix_shim.state import Memory, Remembered
from felix_shim.state import encode as encode_state
from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.history import keep
from libtortie.history_spool import Spool
from libtortie.kube.policies import KubeNetworkPolicy
from libtortie.linux.flows import (
    SCTP,
    TCP,
    UDP,
    Flow,
    FlowTuple,
    SctpTracking,
    Status,
    TcpFlag,
    TcpState,
    TcpTracking,
)
from libtortie.model.history import Fact, Step, What
from libtortie.model.keys import Kind
from libtortie.model.names import vm_handle
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import RecordingLog, endpoint_record, resource_record

RELEASES = Path(__file__).with_name("releases")
NOW = datetime(2026, 11, 30, 12, 0, 0, 250000, tzinfo=UTC)
BOOT, MONOTONIC = "11111111-2222-3333-4444-555555555555", 1000.0
V4, V6 = ip_address("10.65.0.7"), ip_address("fd00:10:65::7")
ONE = FlowTuple(V4, ip_address("192.0.2.1"), TCP, 40000, 443)
SIX = FlowTuple(V6, ip_address("fd00::1"), UDP, 53, 53)
ASSOCIATION = FlowTuple(V4, ip_address("192.0.2.9"), SCTP, 9, 9)
LIBERAL = TcpFlag.BE_LIBERAL | TcpFlag.WINDOW_SCALE
FLOWS = (
    Flow(
        ONE, ONE.inverse(), 432000, Status.ASSURED | Status.SEEN_REPLY,
        tcp=TcpTracking(TcpState.ESTABLISHED, (7, 9), (LIBERAL, LIBERAL)), mark=5, labels=b"\1\2",
    ),
    Flow(SIX, SIX.inverse(), 30),
    Flow(ASSOCIATION, ASSOCIATION.inverse(), 210, sctp=SctpTracking(3, (1, 2**32 - 1))),
)  # fmt: skip
MESSAGES: Mapping[str, Message] = {
    "wanted": Request("mig-1", "vmi-1", (V4, V6)),
    "cut-over": Request("mig-1", "vmi-1", (V4,), cut_over=True),
    "moved": Moved("mig-1", (V4, V6)),
    "flows": Batch(FLOWS),
    "end": End(3),
    "refused": Refused("no such migration"),
}
ENVIRONMENT = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web",
    "CNI_PATH": "/opt/cni/bin",
}
STDIN = b'{"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "tortie"}'
MEMORY = Memory(
    tuple(
        Remembered(
            EndpointId("shop", f"pod-{state.value}", "eth0"),
            f"container-{state.value}",
            Machine(
                state,
                episode=4,
                facts=Facts(Role.TARGET, final=False, proof=Proof.HERE, migration_uid="mig-1"),
                seen_raise=2,
                last_raise=3,
                arrived=True,
                since=MONOTONIC - 2.5 if state is State.TIME_WAIT else None,
                migration_uid="mig-1",
            ),
            returned=True,
        )
        for state in State
        if state is not State.ENDED
    ),
    Raises(last=7, numbers={V4: {"10.0.0.2": 7}}),
)
POLICIES = (
    KubeNetworkPolicy.model_validate(
        {
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "web"}},
                "policyTypes": ["Ingress"],
                "ingress": [{"ports": [{"protocol": "TCP", "port": 80}]}],
            },
        }
    ),
)
HANDLE = vm_handle("", "shop", "db")
ENDPOINT = endpoint_record("virt-launcher-db-a", migration="mig-0")


def owner(pod: str, node: str, *, migration: str = "") -> dict[str, str]:
    """A pod of the VM."""
    return pod_owner(
        namespace="shop", pod=pod, node=node, timestamp=NOW, container_id=f"c-{pod}",
        pod_uid=f"u-{pod}", vmi_name="db", vmi_uid="vmi-1", vm_uid="vm-1", vmim_uid=migration,
    )  # fmt: skip


def facts() -> tuple[Fact, ...]:
    """Of each kind, and each step of a migration."""
    whose: dict[str, Any] = {
        "addresses": (V4,),
        "namespace": "shop",
        "vm": "db",
        "pod": "db-b",
        "node": "n2",
    }
    kinds = [Fact(NOW, what, "n2", HANDLE, before="db-a", **whose) for what in What]
    steps = [
        Fact(
            NOW, What.MIGRATION, "n2", **whose,
            details={"step": step.value, "migration_uid": "mig-1", "latency_ms": "3.25"},
        )
        for step in Step
    ]  # fmt: skip
    return (*kinds, *steps)


def furnish(store: Datastore) -> None:
    """A pod, a VM in the middle of a migration, a stopped VM, an endpoint and a history."""
    records = [
        resource_record(Kind.IP_POOL, "a", {"cidr": "10.65.0.0/24", "blockSize": 28}),
        resource_record(Kind.IP_POOL, "b", {"cidr": "fd00:10:65::/64", "blockSize": 124}),
        resource_record(Kind.FELIX_CONFIGURATION, "default", {"logSeverityScreen": "Info"}),
        ENDPOINT,
    ]
    for record in records:
        store.create(record.key, record.value)
    client = IPAMClient(store, "n1", now=lambda: NOW)
    want = AddressRequest(ipv6=True)
    plain = pod_owner(namespace="shop", pod="web", node="n1", timestamp=NOW, container_id="c-web")
    client.assign("k8s-pod-network.c-web", plain, want)
    client.claim_vm(HANDLE, owner("db-a", "n1"), want)
    client.claim_vm_target(HANDLE, owner("db-b", "n2", migration="mig-1"))
    stopped = vm_handle("", "shop", "old")
    client.claim_vm(stopped, owner("old-a", "n1"), want)
    client.disown_vm(stopped, owner("old-a", "n1"), vm_deleting=False)
    keep(store, facts(), "recorded")


def rows(store: Path) -> dict[str, Any]:
    """What a SQLite datastore's file holds, as its programs see it."""
    with closing(sqlite3.connect(store)) as raw:
        kept = raw.execute("SELECT path, data FROM kv ORDER BY path").fetchall()
        return {
            "application_id": raw.execute("PRAGMA application_id").fetchone()[0],
            "user_version": raw.execute("PRAGMA user_version").fetchone()[0],
            "schema": [
                row[0] for row in raw.execute("SELECT sql FROM sqlite_master WHERE sql > ''")
            ],
            "kv": {path: bytes(data).decode() for path, data in kept},
        }


def furnished(path: Path) -> dict[str, Any]:
    """A new SQLite datastore's, after the story."""
    uids = (f"00000000-0000-4000-8000-{number:012d}" for number in itertools.count())
    with closing(SqliteDatastore(path, node="n1", now=lambda: NOW, new_uid=uids.__next__)) as store:
        furnish(store)
    return rows(path)


def words(scratch: Path) -> Iterator[tuple[str, bytes]]:
    """File names, and what is in them."""
    yield "peers.json", _json({name: encode(one).hex() for name, one in MESSAGES.items()})
    frames = encode_request(ENVIRONMENT, STDIN).hex(), encode_response(1, b'{"code": 11}\n').hex()
    yield "shim.json", _json(dict(zip(("request", "answer"), frames, strict=True)))
    yield "migration-state.json", encode_state(MEMORY, BOOT, MONOTONIC)
    assert isinstance(ENDPOINT.value, WorkloadEndpoint)
    yield "endpoint-status.json", status_body(parse_endpoint(ENDPOINT.value), 5).encode()
    cache = PolicyCache(scratch / "policy", "https://api", BOOT, RecordingLog())
    cache.put(KubeNetworkPolicy, POLICIES)
    cache.stop()
    cache.run()
    (saved,) = (scratch / "policy").glob("*.json")
    yield saved.name, saved.read_bytes()
    spool = Spool(scratch / "spool")
    spool.append(facts())
    yield "history.spool", spool.path.read_bytes()
    yield "store.json", _json(furnished(scratch / "store.db"))


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def main(place: Path) -> None:
    """Keep them."""
    place.mkdir(parents=True)
    scratch = place / "scratch"
    scratch.mkdir()
    for name, data in words(scratch):
        (place / name).write_bytes(data)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
