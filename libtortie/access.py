"""The part of `/etc/tortie/node.yaml` that says where datastore and API are, for other programs.

The agent alone reads the whole file and judges it; whoever else works on the node reads these keys
and passes over the rest.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libtortie.datastore.open import SQLITE_PATH, DatastoreConfig
from libtortie.errors import InvalidInput
from libtortie.kube.config import KubeConfig, direct, load_kubeconfig

NODE_FILE = Path("/etc/tortie/node.yaml")


class Access(BaseModel):
    """Where a node's agent finds datastore and API; the defaults are the agent's."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    datastore_type: str = "sqlite"
    sqlite_path: str = str(SQLITE_PATH)
    sqlite_shared: bool = False
    etcd_endpoints: str = ""
    etcd_ca_cert_file: str = ""
    etcd_cert_file: str = ""
    etcd_key_file: str = ""
    etcd_username: str = ""
    etcd_password: str = Field(default="", repr=False)
    kubeconfig: str = ""
    k8s_api_root: str = ""
    k8s_token_file: str = ""

    def datastore(self, node: str = "") -> DatastoreConfig:
        """The datastore, for a node or (empty) for a tool that is none."""
        return DatastoreConfig(
            type=self.datastore_type,
            sqlite_path=Path(self.sqlite_path),
            node=node,
            shared=self.sqlite_shared,
            etcd_endpoints=self.etcd_endpoints,
            etcd_ca_cert_file=self.etcd_ca_cert_file,
            etcd_cert_file=self.etcd_cert_file,
            etcd_key_file=self.etcd_key_file,
            etcd_username=self.etcd_username,
            etcd_password=self.etcd_password,
        )

    def kube(self) -> KubeConfig | None:
        """The API server; None where none is configured. Raises `InvalidInput`."""
        if self.kubeconfig:
            return load_kubeconfig(self.kubeconfig)
        if not self.k8s_api_root:
            return None
        api = direct(self.k8s_api_root)
        if self.k8s_token_file:
            api = KubeConfig(server=api.server, token_file=Path(self.k8s_token_file))
        return api


def read_access(path: Path = NODE_FILE) -> Access | None:
    """What a node's file says; None where there is none. Raises `InvalidInput` naming the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path}: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise InvalidInput(f"{path}: expected a mapping of keys, got {type(data).__name__}")
    try:
        return Access.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"{path}: {key}: {first['msg']}") from error
