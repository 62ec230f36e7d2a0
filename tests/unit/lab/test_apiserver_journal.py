"""The store on disk: whatever moment the process dies, a restart sees all it had answered."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.apiserver import journal
from lab.apiserver.errors import ApiError
from lab.apiserver.journal import Journal
from lab.apiserver.store import Store

KILLED: list[Journal] = []


def opened(path: Path) -> Store:
    """A store as a fresh process finds it, the process before it having been killed."""
    while KILLED:
        log = KILLED.pop()._log
        assert log is not None
        log.close()
    store = Store()
    fresh = Journal(path, store)
    fresh.open()
    KILLED.append(fresh)
    return store


@pytest.fixture(autouse=True)
def no_file_left_open() -> Iterator[None]:
    yield
    while KILLED:
        KILLED.pop().close()


def write(store: Store, rng: random.Random) -> None:
    """One random create, update or delete."""
    key = (rng.choice(("a", "b")), rng.choice("xyz"))
    old = store.get("pods", key)
    version = None if old is None else old["metadata"]["resourceVersion"]
    if version is not None and rng.random() < 0.3:
        store.remove("pods", key, expected=version)
    else:
        meta = {"namespace": key[0], "name": key[1]}
        body = {"metadata": meta, "spec": {"n": rng.random()}}
        store.put("pods", key, body, expected=version)


def test_reopening_without_a_close_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SNAPSHOT_EVERY", 4)
    rng = random.Random(7)
    path = tmp_path / "state.json"
    store = opened(path)
    for _ in range(60):
        for _ in range(rng.randrange(7)):
            write(store, rng)
        expected = store.snapshot()
        store = opened(path)
        assert store.snapshot() == expected


def test_a_crash_between_snapshot_and_log_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    store = opened(path)
    rng = random.Random(1)
    for _ in range(10):
        write(store, rng)
    log = (tmp_path / "state.json.log").read_text()
    expected = opened(path).snapshot()  # its start wrote a snapshot and emptied the log
    (tmp_path / "state.json.log").write_text(log)
    assert opened(path).snapshot() == expected


def test_history_does_not_survive_a_restart_but_versions_do(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    store = opened(path)
    body = {"metadata": {"namespace": "a", "name": "x"}}
    store.put("pods", ("a", "x"), body, expected=None)
    version = store.version
    again = opened(path)
    assert again.since("pods", version, 0) == ((), version)
    with pytest.raises(ApiError) as caught:
        again.since("pods", version - 1, 0)
    assert caught.value.code == 410


def test_an_unreadable_file_is_an_error_not_an_empty_cluster(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        opened(tmp_path / "state.json")
