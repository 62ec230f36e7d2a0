"""The datastore as a change of the IPAM configuration sees it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ipam.configure import Change
from libtortie.datastore.open import DatastoreConfig
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.model.ipam import Handle, IPAMConfig
from libtortie.model.keys import HandleKey, IPAMConfigKey, path_of
from tortiectl.mended import MendedStore


def test_a_snapshot_mends_what_the_change_sets_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "tortie.db"
    good, bad, setting = HandleKey("good"), HandleKey("bad"), IPAMConfigKey()
    with closing(SqliteDatastore(path)) as inner:
        store = MendedStore(inner, DatastoreConfig(sqlite_path=path), Change(strict_affinity=True))
        record = inner.create(good, Handle({}))
        for key, text in ((bad, b"["), (setting, b'{"strict_affinity":"x"}')):
            put_raw(path, path_of(key), text)
        found = store.snapshot([good, bad, setting, HandleKey("absent")])
        assert store.atomic
        assert store.names(IPAMConfigKey()) == (setting,)
    assert found.records[good] == record
    assert found.records[setting].value == IPAMConfig(auto_allocate_blocks=False)
    assert set(found.records) == {good, setting}
    assert list(found.broken) == [bad]


def put_raw(path: Path, where: str, data: bytes) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        row = raw.execute("INSERT INTO log (path, data) VALUES (?, ?)", (where, data))
        raw.execute("INSERT INTO kv VALUES (?, ?, ?)", (where, row.lastrowid, data))
