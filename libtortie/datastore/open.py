"""The one place where a configured datastore type becomes a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import InvalidInput

if TYPE_CHECKING:
    from libtortie.kube.config import KubeConfig

DatastoreType = Literal["sqlite", "etcdv3", "kubernetes", "memory"]
SQLITE_PATH = Path("/var/lib/tortie/tortie.db")


@dataclass(frozen=True, slots=True)
class DatastoreConfig:
    """Which backend, and where; `node` is "" for a tool that is no node.

    `create` and `known_id` are for SQLite: whether a file that is missing is made (the agent's and
    the lab's to say, never the plugin's or a tool's), and the id that the file must have.
    `kube` is the API server of type kubernetes, `calico_api_group` the group there ("": found out).
    `call_seconds` bounds each request to another machine (0: the backend's own bound).
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
    kube: KubeConfig | None = None
    calico_api_group: str = ""
    call_seconds: float = 0.0

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

    `InvalidInput` for an unknown type, and for settings of one type beside another.
    """
    if config.type != "kubernetes" and config.calico_api_group:
        raise InvalidInput(f"datastore type {config.type}: calico_api_group is for type kubernetes")
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
        case "kubernetes":
            return _open_kubernetes(config)
        case "memory":
            return MemoryDatastore()
        case unknown:
            known = ", ".join(get_args(DatastoreType))
            raise InvalidInput(f"unknown datastore type {unknown!r}: known are {known}")


def _open_etcd(config: DatastoreConfig) -> Datastore:
    from libtortie.datastore.etcd import EtcdDatastore  # gRPC and etcd3 take 0.2 s
    from libtortie.datastore.etcd_config import EtcdConfig, Timing

    etcd, seconds = EtcdConfig(*config.etcd_settings()), config.call_seconds
    if not seconds:
        return EtcdDatastore(etcd)
    return EtcdDatastore(etcd, timing=Timing(call=seconds, attempt=min(2.0, seconds)))


def _open_kubernetes(config: DatastoreConfig) -> Datastore:
    from libtortie.datastore.crd_names import group_named  # requests takes 0.1 s
    from libtortie.datastore.kubernetes import KubernetesDatastore
    from libtortie.kube.client import HttpKubeClient

    if config.kube is None:
        raise InvalidInput(
            "datastore type kubernetes: no API server is configured: set kubeconfig or k8s_api_root"
        )
    group = group_named(config.calico_api_group) if config.calico_api_group else None
    if config.call_seconds:
        client = HttpKubeClient(config.kube, timeout=config.call_seconds)
    else:
        client = HttpKubeClient(config.kube)
    return KubernetesDatastore(client, group=group, close=client.close)
