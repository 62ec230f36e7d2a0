"""What survives a restart, and what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from felix_shim.migration import Facts, Machine, State
from felix_shim.model import EndpointId, Proof, Role
from felix_shim.raises import Raises
from felix_shim.settings import Settings
from felix_shim.state import Memory, Remembered, StateFile, decode, encode
from libtortie.errors import Malformed

ENDPOINT = EndpointId("default", "tgt")
MACHINE = Machine(
    State.TIME_WAIT,
    episode=4,
    facts=Facts(Role.NONE, final=True, proof=Proof.HERE, migration_uid=""),
    seen_raise=2,
    last_raise=3,
    arrived=True,
    since=990.0,
    migration_uid="m1",
)
MEMORY = Memory((Remembered(ENDPOINT, "ctr", MACHINE, returned=True),), Raises(3, {}))


def test_a_round_trip_in_the_same_boot(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state" / "m.json", "boot-1")
    assert file.load(1000.0, Settings()) == Memory()
    file.save(MEMORY, 1000.0)
    found = file.load(1007.0, Settings()).of(ENDPOINT, "ctr")
    assert found is not None
    assert found.returned
    assert found.machine.state is State.TIME_WAIT
    assert found.machine.since == pytest.approx(990.0), "the monotonic clock ran on"
    assert found.machine.arrived
    assert file.load(1007.0, Settings()).raises == Raises(3, {})
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["m.json"]


def test_nothing_survives_a_reboot() -> None:
    assert decode(encode(MEMORY, "boot-1", 1000.0), "boot-2", 5.0, Settings()) == Memory()


def test_another_sandbox_of_the_pod_remembers_nothing() -> None:
    assert MEMORY.of(ENDPOINT, "other") is None
    assert MEMORY.of(EndpointId("default", "other"), "ctr") is None


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"{}", b'{"format": 2}', b'{"format": 1, "bootID": "boot-1"}', b"\xff\xfe"],
)
def test_nonsense_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        decode(raw, "boot-1", 0.0, Settings())


def test_every_truncation_is_malformed_or_whole() -> None:
    whole = encode(MEMORY, "boot-1", 1000.0)
    for length in range(len(whole) - 1):
        with pytest.raises(Malformed):
            decode(whole[:length], "boot-1", 0.0, Settings())
