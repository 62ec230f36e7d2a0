"""Datastore and API of one command, each opened when it is first used, closed with the command."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from libtortie.access import present
from libtortie.client_config import ETCD, KUBERNETES, SQLITE, ClientConfig
from libtortie.datastore.default_profile import WithDefaultProfile
from libtortie.datastore.open import DatastoreConfig, open_datastore
from libtortie.datastore.patient import PatientDatastore
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput
from libtortie.kube.client import HttpKubeClient


@dataclass
class Connection:
    """What a command works on. `api_seconds` bounds each call of the API, `call_seconds` each of
    the datastore (0: the backend's own bound).

    `patience` is for how many seconds the datastore may be silent in all (0: at every call anew).
    """

    config: ClientConfig
    api_seconds: float = field(default=5.0, kw_only=True)
    call_seconds: float = field(default=0.0, kw_only=True)
    patience: float = field(default=0.0, kw_only=True)
    _store: Datastore | None = None
    _kube: list[HttpKubeClient | None] = field(default_factory=list)

    @property
    def store(self) -> Datastore:
        """The datastore. A file that is not there is an error: only an agent makes one."""
        if self._store is None:
            wanted = self.config.datastore
            if wanted.type == SQLITE and not present(wanted.sqlite_path):
                raise InvalidInput(
                    f"{wanted.sqlite_path}: no such datastore ({self.config.source} names it); "
                    "has tortie-node run here?"
                )
            if wanted.type == KUBERNETES:
                wanted = replace(wanted, kube=wanted.kube or self.config.kube())
            opened = open_datastore(replace(wanted, call_seconds=self.call_seconds))
            patient = PatientDatastore(opened, self.patience) if self.patience else opened
            self._store = WithDefaultProfile(patient)
        return self._store

    @property
    def kube(self) -> HttpKubeClient | None:
        """The API's client; None where no API is configured."""
        if not self._kube:
            found = self.config.kube()
            self._kube.append(
                None if found is None else HttpKubeClient(found, timeout=self.api_seconds)
            )
        return self._kube[0]

    @property
    def name(self) -> str:
        """The datastore, for people."""
        if self.config.datastore.type == KUBERNETES and self.kube is not None:
            return f"{KUBERNETES} {self.kube.server}"
        return name_of(self.config.datastore)

    def close(self) -> None:
        """Close what was opened."""
        for opened in (self._store, *self._kube):
            if opened is not None:
                opened.close()


def name_of(config: DatastoreConfig) -> str:
    """`sqlite /var/lib/tortie/tortie.db`, `etcdv3 https://192.0.2.1:2379`."""
    where = {SQLITE: str(config.sqlite_path), ETCD: config.etcd_endpoints}.get(config.type, "")
    return f"{config.type} {where}".rstrip()
