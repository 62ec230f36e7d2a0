"""Two versions of the agent on one node, one after the other: what a newer one has written, with
fields that this one does not know, is read by it; so does a downgrade lose nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from felix_shim.desired import speaks_of, status_body
from felix_shim.endpoints import parse_endpoint
from felix_shim.migration import Facts, Machine, State
from felix_shim.model import EndpointId, Proof, Role
from felix_shim.peer_messages import HEADER, VERSION, encode, parse_header
from felix_shim.peer_messages import End as EndMessage
from felix_shim.policy_cache import PolicyCache
from felix_shim.raises import Raises
from felix_shim.settings import Settings
from felix_shim.state import Memory, Remembered
from felix_shim.state import decode as decode_state
from felix_shim.state import encode as encode_state
from libtortie.errors import Malformed
from libtortie.history_spool import read_facts
from libtortie.kube.policies import KubeNetworkPolicy
from libtortie.model.history import Fact, What, to_wire
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import RecordingLog, endpoint_record

BOOT = "boot-1"
NEW = {"ofANewerAgent": {"more": [1, None]}}


def newer(value: Any) -> Any:
    """JSON with a field more in every object whose keys are names of fields."""
    if isinstance(value, list):
        return [newer(one) for one in value]
    if isinstance(value, dict):
        data = any(not key.isidentifier() for key in value)  # addresses, labels: keys are data
        return {key: newer(one) for key, one in value.items()} | ({} if data or not value else NEW)
    return value


def machines() -> Iterator[Remembered]:
    facts = Facts(Role.TARGET, final=False, proof=Proof.HERE, migration_uid="m1")
    for number, state in enumerate(one for one in State if one is not State.ENDED):
        endpoint = EndpointId("default", f"pod{number}", "eth0")
        machine = Machine(state, facts=facts, arrived=True, migration_uid="m1", last_raise=3)
        yield Remembered(endpoint, f"ctr{number}", machine, returned=True)


def test_the_state_of_migrations() -> None:
    memory = Memory(
        tuple(machines()), Raises(last=7, numbers={ip_address("10.65.0.1"): {"10.0.0.2": 7}})
    )
    raw = encode_state(memory, BOOT, 100.0)
    known = decode_state(raw, BOOT, 100.0, Settings())
    body = newer(json.loads(raw))
    body["raises"]["numbers"].pop("ofANewerAgent", None)
    read = decode_state(json.dumps(body).encode(), BOOT, 100.0, Settings())
    assert read == known
    assert len(read.machines) == len(memory.machines)


def test_a_state_that_this_agent_does_not_know_costs_its_endpoint_alone() -> None:
    memory = Memory(tuple(machines()), Raises(last=7))
    body = json.loads(encode_state(memory, BOOT, 100.0))
    body["machines"][2]["machine"]["state"] = "of-a-newer-agent"
    read = decode_state(json.dumps(body).encode(), BOOT, 100.0, Settings())
    left = [one.endpoint for number, one in enumerate(memory.machines) if number != 2]
    assert [one.endpoint for one in read.machines] == left
    assert read.raises == memory.raises


def test_what_the_api_said_of_policy(tmp_path: Path) -> None:
    kept = (
        KubeNetworkPolicy.model_validate(
            {"metadata": {"name": "p", "namespace": "default"}, "spec": {"podSelector": {}}}
        ),
    )
    cache = PolicyCache(tmp_path, "https://api", BOOT, RecordingLog())
    cache.put(KubeNetworkPolicy, kept)
    cache.stop()
    cache.run()
    (path,) = tmp_path.glob("*.json")
    known = cache.load(KubeNetworkPolicy)
    body = json.loads(path.read_text())
    for one in (body, *body["objects"], *(one["metadata"] for one in body["objects"])):
        one.update(NEW)  # but not to a policy's own words: one that is not understood must be told
    path.write_text(json.dumps(body))
    assert cache.load(KubeNetworkPolicy) == known
    assert known is not None


def test_status_files() -> None:
    record = endpoint_record("db")
    assert isinstance(record.value, WorkloadEndpoint)
    endpoint = parse_endpoint(record.value)
    body = status_body(endpoint, 5)
    assert speaks_of(json.dumps(newer(json.loads(body))), endpoint)


def test_lines_of_the_history() -> None:
    fact = Fact(datetime(2026, 3, 1, tzinfo=UTC), What.GRANTED, "agent", node="n1")
    line = json.dumps(newer(to_wire(fact)))
    unknown = line.replace(fact.what.value, "of-a-newer-agent")
    assert read_facts(f"{unknown}\n{line}\n".encode()) == (fact,)


def test_a_peer_of_another_version_is_told_apart_before_anything_is_believed() -> None:
    length, _, kind = HEADER.unpack(encode(EndMessage(3))[: HEADER.size])
    with pytest.raises(Malformed, match=f"of version 2; this agent speaks {VERSION}"):
        parse_header(HEADER.pack(length, VERSION + 1, kind))
