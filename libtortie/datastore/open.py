"""The one place where a configured datastore type becomes a backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import InvalidInput

DatastoreType = Literal["sqlite", "memory"]
SQLITE_PATH = Path("/var/lib/tortie/tortie.db")


@dataclass(frozen=True, slots=True)
class DatastoreConfig:
    """Which backend, and where; `node` is "" for a tool that is no node."""

    type: str = "sqlite"
    sqlite_path: Path = SQLITE_PATH
    node: str = ""
    shared: bool = False


def open_datastore(config: DatastoreConfig) -> Datastore:
    """Open the backend. `InvalidInput` for an unknown type; errors of the backend pass through."""
    match config.type:
        case "sqlite":
            return SqliteDatastore(config.sqlite_path, node=config.node, shared=config.shared)
        case "memory":
            return MemoryDatastore()
        case unknown:
            known = ", ".join(get_args(DatastoreType))
            raise InvalidInput(f"unknown datastore type {unknown!r}: known are {known}")
