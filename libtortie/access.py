"""The part of `/etc/tortie/node.yaml` for others: where datastore, API and the agent are.

The agent alone reads the whole file and judges it; whoever else works on the node reads these keys
and passes over the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from libtortie import wording
from libtortie.datastore.crd_names import group_named
from libtortie.datastore.open import SQLITE_PATH, DatastoreConfig
from libtortie.errors import InvalidInput
from libtortie.files import MOST_BYTES, read_text
from libtortie.go_yaml import GoLoader, load_all
from libtortie.kube.config import KubeConfig, Material, direct, in_cluster, load_kubeconfig

NODE_FILE = Path(wording.NODE_FILE)
IN_CLUSTER = "in-cluster"
"""A `k8s_api_root`: the API as this pod's service account has it."""


class Access(BaseModel):
    """Where a node's agent finds datastore and API; the defaults are the agent's.

    `cni_kubeconfig` is the kubeconfig that the agent keeps for the plugin's fallback, if any.
    """

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
    k8s_ca_file: str = ""
    cni_kubeconfig: str = ""
    nodename_file: str = "/var/lib/tortie/nodename"
    run_dir: str = "/run/tortie"
    calico_api_group: str = ""

    @field_validator("calico_api_group")
    @classmethod
    def _is_group(cls, value: str) -> str:
        try:
            return group_named(value).value if value else ""
        except InvalidInput as error:
            raise ValueError(str(error)) from error

    @property
    def cni_socket(self) -> Path:
        """Where the CNI executable finds the agent."""
        return Path(self.run_dir) / "cni.sock"

    @property
    def status_dir(self) -> Path:
        """Where endpoint-status files stand."""
        return Path(self.run_dir) / "endpoint-status"

    def datastore(self, node: str = "") -> DatastoreConfig:
        """The datastore, for a node or (empty) for a tool that is none. Raises `InvalidInput`."""
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
            kube=self.kube() if self.datastore_type == "kubernetes" else None,
            calico_api_group=self.calico_api_group,
        )

    def kube(self) -> KubeConfig | None:
        """The API server; None where none is configured. Raises `InvalidInput`."""
        if self.kubeconfig:
            return kubeconfig_in(self.kubeconfig)
        if not self.k8s_api_root:
            return None
        if self.k8s_api_root == IN_CLUSTER:
            return in_cluster()
        return KubeConfig(
            server=direct(self.k8s_api_root).server,
            token_file=Path(self.k8s_token_file) if self.k8s_token_file else None,
            ca=Material(path=Path(self.k8s_ca_file)) if self.k8s_ca_file else None,
        )


def read_access(path: Path = NODE_FILE) -> Access | None:
    """What a node's file says; None where there is none. Raises `InvalidInput` naming the key."""
    if not present(path):
        return None
    data = parse_yaml(text_of(path, MOST_BYTES), str(path))
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


def kubeconfig_in(path: str | Path, context: str = "") -> KubeConfig:
    """A kubeconfig's choice, or that of several with `:` between them, merged as kubectl does.

    Raises `InvalidInput`.
    """
    first, *more = [Path(one) for one in str(path).split(os.pathsep) if one] or [Path(path)]
    return load_kubeconfig(first, context, more)


def present(path: Path) -> bool:
    """Whether there is something at a path. Raises `InvalidInput` where that cannot be told."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InvalidInput(
            f"{path}: {error.strerror}: check the name, and that this user may look there"
        ) from error
    except ValueError as error:
        raise InvalidInput(f"{str(path)!r} cannot be a file's name: check it") from error
    return True


def text_of(path: Path, most: int | None = None) -> str:
    """A regular file's text, which somebody has named: of any size, unless `most` says how many
    bytes. Raises `InvalidInput` naming it."""
    try:
        return read_text(path, most)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}: name a file this user may read") from error


def parse_yaml(text: str, where: str) -> Any:
    """What a YAML (or JSON) text holds; a key may be given once.

    Raises `InvalidInput` with line and problem, without the text, in which there may be a secret.
    """
    documents = parse_documents(text, where)
    if len(documents) > 1:
        raise InvalidInput(f"{where}: expected a single document")
    return documents[0] if documents else None


def parse_documents(text: str, where: str) -> list[Any]:
    """The same of a text that may hold several documents."""
    try:
        return load_all(text, _StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "not YAML"
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise InvalidInput(f"{where}: {place}{problem}") from error


class _StrictLoader(GoLoader):
    """YAML in which a key may be given once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """As the base class; raises `ConstructorError` for a doubled key."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key.value}", key.start_mark
                )
            seen.add(key.value)
        return node
