"""A datastore in which an IPAM setting that cannot be read does not stop what sets it anew.

A value that cannot be read is an error everywhere, also for the command that would overwrite it.
Here the fields that a change sets are given a readable value first: any but the wanted one, so
that the change is seen as one and written. What else is wrong with a value stays an error.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipam.configure import Change
from ipam.settings import CONFIGURATION
from libtortie.client_config import ETCD, SQLITE
from libtortie.datastore import gojson
from libtortie.datastore.codec import decode
from libtortie.datastore.forwarding import ForwardingDatastore
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.open import DatastoreConfig
from libtortie.datastore.port import Datastore, Record, Snapshot
from libtortie.datastore.records import Stored
from libtortie.errors import Malformed, NotFound
from libtortie.model.ipam import Persistence
from libtortie.model.keys import IPAMConfigKey, Key, Scope, path_of

_SETTINGS = (IPAMConfigKey(), CONFIGURATION)


@dataclass(slots=True)
class MendedStore(ForwardingDatastore):
    """A store of `config`'s as a change of the IPAM configuration sees it."""

    config: DatastoreConfig
    change: Change

    def get(self, key: Key) -> Record:
        """One value, mended where the change allows it. Raises `NotFound`, `Malformed`."""
        try:
            return self.inner.get(key)
        except Malformed:
            plain: Datastore = self.inner
            while isinstance(plain, ForwardingDatastore):
                plain = plain.inner
            if isinstance(plain, KubernetesDatastore) and key in _SETTINGS:
                return plain.get_mended(key, lambda spec: {**spec, **_others(self.change)})
            stored = self._stored(key)
            data = None if stored is None else mended(key, stored.data, self.change)
            if stored is None or data is None:
                raise
            return Record(key, decode(key, data), str(stored.revision))

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """Several values, each mended where the change allows it."""
        found = self.inner.snapshot(keys, scopes)
        records, broken = dict(found.records), dict(found.broken)
        for key in found.broken:
            with contextlib.suppress(Malformed, NotFound):
                records[key] = self.get(key)
                del broken[key]
        return Snapshot(records, found.listings, broken)

    def _stored(self, key: Key) -> Stored | None:
        """Bytes and revision of a value; the port has only what can be read."""
        if self.config.type == SQLITE:
            return _in_sqlite(self.config, path_of(key))
        return _in_etcd(self.config, path_of(key)) if self.config.type == ETCD else None


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
