"""A datastore in which an IPAM setting that cannot be read does not stop what sets it anew.

A value that cannot be read is an error everywhere, also for the command that would overwrite it.
Here the fields that a change sets are given a readable value first: any but the wanted one, so
that the change is seen as one and written. What else is wrong with a value stays an error.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

from ipam.configure import Change
from ipam.settings import CONFIGURATION
from libtortie.client_config import ETCD, SQLITE
from libtortie.datastore import gojson
from libtortie.datastore.codec import decode
from libtortie.datastore.default_profile import WithDefaultProfile
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.open import DatastoreConfig
from libtortie.datastore.patient import PatientDatastore
from libtortie.datastore.port import Datastore, Listing, Op, Record, Snapshot, Value, Watch
from libtortie.datastore.records import Stored
from libtortie.errors import Malformed, NotFound
from libtortie.model.ipam import Persistence
from libtortie.model.keys import IPAMConfigKey, Key, Scope, path_of

_SETTINGS = (IPAMConfigKey(), CONFIGURATION)


class MendedStore:
    """A store of `config`'s as a change of the IPAM configuration sees it."""

    def __init__(self, store: Datastore, config: DatastoreConfig, change: Change) -> None:
        self._store = store
        self._config = config
        self._change = change

    @property
    def atomic(self) -> bool:
        """As the store."""
        return self._store.atomic

    @property
    def rewinds(self) -> int:
        """As the store."""
        return self._store.rewinds

    def get(self, key: Key) -> Record:
        """One value, mended where the change allows it. Raises `NotFound`, `Malformed`."""
        try:
            return self._store.get(key)
        except Malformed:
            plain = self._store
            while isinstance(plain, WithDefaultProfile | PatientDatastore):
                plain = plain.inner
            if isinstance(plain, KubernetesDatastore) and key in _SETTINGS:
                return plain.get_mended(key, lambda spec: {**spec, **_others(self._change)})
            stored = self._stored(key)
            data = None if stored is None else mended(key, stored.data, self._change)
            if stored is None or data is None:
                raise
            return Record(key, decode(key, data), str(stored.revision))

    def list(self, scope: Scope) -> Listing:
        """As the store."""
        return self._store.list(scope)

    def parts(self, scope: Scope) -> Iterator[Listing]:
        """As the store."""
        return self._store.parts(scope)

    def names(self, scope: Scope) -> tuple[Key, ...]:
        """As the store."""
        return self._store.names(scope)

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """Several values, each mended where the change allows it."""
        found = self._store.snapshot(keys, scopes)
        records, broken = dict(found.records), dict(found.broken)
        for key in found.broken:
            with contextlib.suppress(Malformed, NotFound):
                records[key] = self.get(key)
                del broken[key]
        return Snapshot(records, found.listings, broken)

    def create(self, key: Key, value: Value) -> Record:
        """As the store."""
        return self._store.create(key, value)

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """As the store."""
        return self._store.update(key, value, revision)

    def delete(self, key: Key, revision: str | None = None) -> None:
        """As the store."""
        self._store.delete(key, revision)

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """As the store."""
        return self._store.commit(ops)

    def watch(self, scope: Scope, revision: str) -> Watch:
        """As the store."""
        return self._store.watch(scope, revision)

    def close(self) -> None:
        """As the store."""
        self._store.close()

    def _stored(self, key: Key) -> Stored | None:
        """Bytes and revision of a value; the port has only what can be read."""
        if self._config.type == SQLITE:
            return _in_sqlite(self._config, path_of(key))
        return _in_etcd(self._config, path_of(key)) if self._config.type == ETCD else None


def mended(key: Key, data: bytes, change: Change) -> bytes | None:
    """A value's bytes with another than the wanted value for what a change sets; pure.

    None for a value that is not of the IPAM configuration, or no JSON object.
    """
    if key not in _SETTINGS:
        return None
    try:
        wire = gojson.loads(data)
    except ValueError:
        return None
    fields = wire if key == IPAMConfigKey() or not isinstance(wire, dict) else wire.get("spec")
    if not isinstance(fields, dict):
        return None
    strict = "strict_affinity" if key == IPAMConfigKey() else "strictAffinity"
    fields |= {
        strict if name == "strictAffinity" else name: v for name, v in _others(change).items()
    }
    return gojson.dumps(wire)


def _others(change: Change) -> dict[str, Any]:
    """Other values than the wanted ones, for what a change sets, by the names of the resource."""
    others: dict[str, Any] = {
        "strictAffinity": _other(change.strict_affinity),
        "maxBlocksPerHost": _other(change.max_blocks_per_host),
        "kubeVirtVMAddressPersistence": _other(change.persistence),
        "ipCooldownSeconds": _other(change.cooldown_seconds),
    }
    return {name: value for name, value in others.items() if value is not None}


def _other(wanted: bool | int | Persistence | None) -> bool | int | str | None:
    """A valid value that is not the wanted one; None where nothing is wanted."""
    if wanted is None:
        return None
    if isinstance(wanted, Persistence):
        return next(value.value for value in Persistence if value is not wanted)
    return not wanted if isinstance(wanted, bool) else wanted + 1


def _in_sqlite(config: DatastoreConfig, path: str) -> Stored | None:
    from libtortie.datastore.sqlite_file import SqliteFile

    file = SqliteFile(config.sqlite_path, 5.0, create=False)
    try:
        with file.translated(), file.connection() as connection:
            row = connection.execute(
                "SELECT revision, data FROM kv WHERE path = ?", (path,)
            ).fetchone()
    finally:
        file.close()
    return None if row is None else Stored(path, row[0], row[1])


def _in_etcd(config: DatastoreConfig, path: str) -> Stored | None:
    from libtortie.datastore.etcd_cluster import EtcdCluster
    from libtortie.datastore.etcd_config import EtcdConfig, Timing
    from libtortie.datastore.etcd_reader import Span, read

    etcd = EtcdConfig(*config.etcd_settings())
    cluster = EtcdCluster(etcd, Timing(), choose=random.randrange)
    try:
        (rows,) = read(cluster, [Span(path.encode())]).rows
        return next(iter(rows), None)
    finally:
        cluster.close()
