"""Processes that share a SQLite file with a test: run as `python -m tests.contract.sqlite_worker`.

`herd` forks many at once from one warm parent; the other modes are single processes that print
a line for each thing they did, so that the test knows where they are when it kills them.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_network
from itertools import count
from pathlib import Path

from libtortie.datastore.port import Create, Delete, Record, Update
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import Conflict, NotFound
from libtortie.model.ipam import Attribute, Block, Handle
from libtortie.model.keys import BlockKey, HandleKey, Handles

CIDR = ip_network("10.250.0.0/26")
BLOCK = BlockKey(CIDR)
PAIR = (HandleKey("left"), HandleKey("right"))
PATIENCE = 90.0
"""Seconds to wait for the lock: whoever holds it may be stopped for a while."""
Way = Callable[[sqlite3.Connection, Path, int], None]


def add_and_delete(path: Path, number: int, rounds: int) -> None:
    """Take an address and give it back, by compare-and-swap, as attachments do."""
    with closing(SqliteDatastore(path, node="n1", timeout=PATIENCE)) as store:
        for i in range(rounds):
            key = HandleKey(f"h{number}-{i}")
            _retried(lambda key=key: _take(store, key))  # type: ignore[misc]  # bound per round
            _retried(lambda key=key: _give_back(store, key))  # type: ignore[misc]  # the same


def create_at_once(path: Path, number: int, rounds: int) -> None:
    """Open a file that may not exist yet and write to it."""
    with closing(SqliteDatastore(path, node="n1", timeout=PATIENCE)) as store:
        for i in range(rounds):
            store.create(HandleKey(f"h{number}-{i}"), Handle({CIDR: 1}))


def churn(path: Path) -> None:
    """Raise two handles together for ever; print each number that was committed."""
    store = SqliteDatastore(path, timeout=PATIENCE)
    for number in count(1):
        old = [_found(store, key) for key in PAIR]
        ops = [
            Create(key, Handle({CIDR: number}))
            if was is None
            else Update(key, _raised(was), was.revision)
            for key, was in zip(PAIR, old, strict=True)
        ]
        (record, _) = store.commit(ops)
        assert record is not None
        print(record.revision, flush=True)


def hold(path: Path) -> None:
    """Take the write lock, write, say so, and never commit."""
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA cache_size = 1")  # so that pages go to the file before the commit
    raw.execute("BEGIN IMMEDIATE")
    raw.execute("DELETE FROM kv")
    raw.executemany(
        "INSERT INTO log (path, data) VALUES ('/junk', ?)", [(b"x" * 4000,) for _ in range(64)]
    )
    print("held", flush=True)
    sys.stdin.read()


def put_each(path: Path) -> None:
    """Create a handle named by each line of stdin; say when it is done."""
    store = SqliteDatastore(path, timeout=PATIENCE)
    for line in sys.stdin:
        store.create(HandleKey(line.strip()), Handle({CIDR: 1}))
        print(line.strip(), flush=True)


def die_everywhere(path: Path) -> None:
    """Fork a child for each step of a commit, which dies before it; judge what each leaves."""
    with closing(SqliteDatastore(path)) as store:
        store.commit([Create(key, Handle({CIDR: 0})) for key in (*PAIR, turn(0))])
    for way in (at_statement, at_instruction, at_byte):
        deaths = 0
        while _dies(path, way, deaths + 1):
            deaths += 1
            judge_turns(path)
        judge_turns(path)
        print(way.__name__, deaths, flush=True)


def turn(number: int) -> HandleKey:
    return HandleKey(f"turn-{number}")


def take_turn(store: SqliteDatastore) -> None:
    """One commit of every kind of operation: two updates, a creation, a deletion."""
    left, right = (store.get(key) for key in PAIR)
    number = _count(left)
    old = store.get(turn(number))
    store.commit(
        [
            Update(left.key, _raised(left), left.revision),
            Create(turn(number + 1), Handle({CIDR: number + 1})),
            Delete(old.key, old.revision),
            Update(right.key, _raised(right), right.revision),
        ]
    )


def judge_turns(path: Path) -> None:
    """All of a commit is there or nothing, in the table and in its log, and the file is sound."""
    with closing(SqliteDatastore(path)) as store:
        records = {record.key: record for record in store.list(Handles()).records}
        number = _count(records[PAIR[0]])
        assert set(records) == {*PAIR, turn(number)}
        assert _count(records[PAIR[1]]) == number
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        newest = "SELECT path, max(revision), data FROM log GROUP BY path"
        logged = {row for row in raw.execute(newest) if row[2] is not None}
        assert logged == set(raw.execute("SELECT path, revision, data FROM kv"))


def at_statement(connection: sqlite3.Connection, path: Path, step: int) -> None:
    """Die before that SQL statement."""
    left = count(1)
    connection.set_trace_callback(lambda _: _die() if next(left) == step else None)


def at_instruction(connection: sqlite3.Connection, path: Path, step: int) -> None:
    """Die before that instruction of SQLite's machine, in fives."""
    left = count(1)
    connection.set_progress_handler(lambda: _die() if next(left) == step else 0, 5)


def at_byte(connection: sqlite3.Connection, path: Path, step: int) -> None:
    """Die within a write, 300 bytes later than the one before: the kernel takes no byte more."""
    limit = path.with_name(path.name + "-wal").stat().st_size + 300
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def _dies(path: Path, way: Way, step: int) -> bool:
    """Whether a child with that step to die at dies of it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store = SqliteDatastore(path)
            with store._file.connection() as connection:  # the one it will use
                way(connection, path, step)
            take_turn(store)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ)
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _take(store: SqliteDatastore, key: HandleKey) -> None:
    record = store.get(BLOCK)
    block = record.value
    assert isinstance(block, Block)
    ordinal, *left = block.unallocated
    assert block.allocations[ordinal] is None, "an address with two owners"
    index = len(block.attributes)
    allocations = (*block.allocations[:ordinal], index, *block.allocations[ordinal + 1 :])
    taken = replace(
        block,
        allocations=allocations,
        unallocated=tuple(left),
        attributes=(*block.attributes, Attribute(handle_id=key.handle_id)),
        sequence_number=block.sequence_number + 1,
    )
    handle = Handle({CIDR: 1})
    store.commit([Update(BLOCK, taken, record.revision), Create(key, handle)])


def _give_back(store: SqliteDatastore, key: HandleKey) -> None:
    record, handle = store.get(BLOCK), store.get(key)
    block = record.value
    assert isinstance(block, Block)
    ids = [attribute.handle_id for attribute in block.attributes]
    index = ids.index(key.handle_id)
    (ordinal,) = (o for o, i in enumerate(block.allocations) if i == index)
    later = {i: i - 1 for i in range(index + 1, len(ids))} | {index: None}
    freed = replace(
        block,
        allocations=tuple(None if i is None else later.get(i, i) for i in block.allocations),
        unallocated=(*block.unallocated, ordinal),
        attributes=(*block.attributes[:index], *block.attributes[index + 1 :]),
        sequence_number=block.sequence_number + 1,
    )
    store.commit([Update(BLOCK, freed, record.revision), Delete(key, handle.revision)])


def _retried(work: Callable[[], None]) -> None:
    while True:
        try:
            return work()
        except Conflict:
            continue


def _found(store: SqliteDatastore, key: HandleKey) -> Record | None:
    try:
        return store.get(key)
    except NotFound:
        return None


def _count(record: Record) -> int:
    assert isinstance(record.value, Handle)
    return record.value.blocks[CIDR]


def _raised(was: Record) -> Handle:
    return Handle({CIDR: _count(was) + 1})


def herd(work: Callable[[Path, int, int], None], path: Path, processes: int, rounds: int) -> int:
    """Run `work` in many processes at once; the number of those that failed."""
    children = []
    gate, opener = os.pipe()
    for number in range(processes):
        child = os.fork()
        if child == 0:
            os.close(opener)
            os.read(gate, 1)  # end of file: everybody is there
            status = 1
            try:
                work(path, number, rounds)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    os.close(opener)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


def main(mode: str, path: Path, *numbers: str) -> int:
    herds = {"add-delete": add_and_delete, "create": create_at_once}
    if mode in herds:
        processes, rounds = numbers
        return herd(herds[mode], path, int(processes), int(rounds))
    single = {"churn": churn, "die": die_everywhere, "hold": hold, "put-each": put_each}
    single[mode](path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
