"""The one place where a configured datastore type becomes a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import InvalidInput

DatastoreType = Literal["sqlite", "etcdv3", "memory"]
SQLITE_PATH = Path("/var/lib/tortie/tortie.db")


@dataclass(frozen=True, slots=True)
class DatastoreConfig:
    """Which backend, and where; `node` is "" for a tool that is no node.

    `create` and `known_id` are for SQLite: whether a file that is missing is made (the agent's and
    the lab's to say, never the plugin's or a tool's), and the id that the file must have.
    """

    type: str = "sqlite"
    sqlite_path: Path = SQLITE_PATH
    node: str = ""
    shared: bool = False
    create: bool = False
    known_id: str = ""
    etcd_endpoints: str = ""
    etcd_ca_cert_file: str = ""
    etcd_cert_file: str = ""
    etcd_key_file: str = ""
    etcd_username: str = ""
    etcd_password: str = field(default="", repr=False)

    def etcd_settings(self) -> tuple[str, ...]:
        """How etcd is reached: what `EtcdConfig` wants, in its order."""
        return (
            self.etcd_endpoints,
            self.etcd_ca_cert_file,
            self.etcd_cert_file,
            self.etcd_key_file,
            self.etcd_username,
            self.etcd_password,
        )


def open_datastore(config: DatastoreConfig) -> Datastore:
    """Open the backend; its errors pass through.

    `InvalidInput` for an unknown type, and for settings of etcd's beside another.
    """
    if config.type != "etcdv3" and any(config.etcd_settings()):
        raise InvalidInput(f"datastore type {config.type}: etcd's settings are for type etcdv3")
    match config.type:
        case "sqlite":
            return SqliteDatastore(
                config.sqlite_path,
                node=config.node,
                shared=config.shared,
                create=config.create,
                known_id=config.known_id,
            )
        case "etcdv3":
            return _open_etcd(config)
        case "memory":
            return MemoryDatastore()
        case unknown:
            known = ", ".join(get_args(DatastoreType))
            raise InvalidInput(f"unknown datastore type {unknown!r}: known are {known}")


def _open_etcd(config: DatastoreConfig) -> Datastore:
    from libtortie.datastore.etcd import EtcdDatastore  # gRPC and etcd3 take 0.2 s
    from libtortie.datastore.etcd_config import EtcdConfig

    return EtcdDatastore(EtcdConfig(*config.etcd_settings()))
