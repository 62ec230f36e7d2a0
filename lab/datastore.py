"""The datastore that the lab's nodes share, as nodes are told of it and as the lab itself opens it.

SQLite is one file that all nodes see. Kubernetes is the lab's own API server, in the group in which
`kubectl patch ipamconfigurations` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from lab import names
from lab.state import StateDir
from libtortie.datastore.open import DatastoreConfig, open_datastore
from libtortie.datastore.port import Datastore
from libtortie.kube.config import direct
from libtortie.linux.netns import Netns

T = TypeVar("T")

SQLITE, KUBERNETES = "sqlite", "kubernetes"
TYPES = (SQLITE, KUBERNETES)
GROUP = "projectcalico.org/v3"
WORK_S = 180.0
"""How long work on the datastore may take in the API's namespace."""


def settings(state: StateDir, kind: str) -> dict[str, Any]:
    """What an agent's and a plugin's configuration say of the datastore, beside the API."""
    if kind == KUBERNETES:
        return {"datastore_type": KUBERNETES, "calico_api_group": GROUP}
    return {"datastore_type": SQLITE, "sqlite_path": str(state.database), "sqlite_shared": True}


def with_store(
    state: StateDir, kind: str, work: Callable[[Datastore], T], *, create: bool = False
) -> T:
    """Do something with the datastore, from where it can be reached; `create` makes the file."""
    if kind == SQLITE:
        config = DatastoreConfig(sqlite_path=state.database, shared=True, create=create)
        return _opened(config, work)
    config = DatastoreConfig(type=KUBERNETES, kube=direct(names.api_url()), calico_api_group=GROUP)
    path = str(names.netns_path(names.netns(names.API)))
    return Netns(deadline=WORK_S).call(path, lambda: _opened(config, work))


def _opened(config: DatastoreConfig, work: Callable[[Datastore], T]) -> T:
    with closing(open_datastore(config)) as store:
        return work(store)
