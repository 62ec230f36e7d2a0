"""A fact that the datastore refuses for what it is, and why facts were lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Record, Value
from libtortie.errors import InvalidInput, Malformed, TortieError
from libtortie.history import PORTION, Direct, history
from libtortie.history_spool import Spool, read_facts
from libtortie.model.history import Fact, Facts, What
from libtortie.model.keys import Key
from tests.fakes.agent_world import RecordingLog

NOW = datetime(2026, 8, 22, 13, 30, 0, 125000, tzinfo=UTC)


def fact(vm: str, after: int = 0) -> Fact:
    return Fact(NOW + timedelta(seconds=after), What.GRANTED, "n1", namespace="shop", vm=vm)


class Picky(MemoryDatastore):
    """Refuses records with a VM called odd in them."""

    def __init__(self, error: type[TortieError]) -> None:
        super().__init__()
        self.error = error

    def create(self, key: Key, value: Value) -> Record:
        if isinstance(value, Facts) and any(one.vm == "odd" for one in value.facts):
            raise self.error("odd")
        return super().create(key, value)


@pytest.mark.parametrize("error", [InvalidInput, Malformed])
def test_a_fact_that_is_refused_for_what_it_is_holds_up_nothing(
    tmp_path: Path, error: type[TortieError]
) -> None:
    log = RecordingLog()
    spool = Spool(tmp_path / "history.spool", log=log)
    store = Picky(error)
    facts = [fact("odd" if n == 3 else "db", n) for n in range(PORTION + 5)]
    spool.append(facts)
    assert spool.drain(store) == len(facts) - 1
    assert {one.at for one in history(store).facts} == {one.at for one in facts if one.vm == "db"}
    (aside,) = spool.path.parent.glob("*")
    assert read_facts(aside.read_bytes()) == (facts[3],)
    assert log.of("history_refused") == [{"facts": 1, "reason": "odd", "file": str(aside)}]
    spool.append(facts)
    assert spool.drain(store) == len(facts) - 1
    assert len(history(store).facts) == len(facts) - 1, "those were there already"


def test_a_fact_that_is_refused_is_why_a_flush_did_not_store_all() -> None:
    direct = Direct(Picky(InvalidInput), "tortiectl")
    direct.write([fact("odd"), fact("db")])
    direct.flush()
    assert direct.trouble == "odd"
    assert [one.vm for one in history(direct.store).facts] == ["db"]
