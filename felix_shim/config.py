"""`/etc/tortie/node.yaml`: what the agent is told about its node. Unknown keys are errors."""

from __future__ import annotations

import socket
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from libtortie.errors import InvalidInput

AUTODETECT = "autodetect"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BirdConfig(_Strict):
    """How the agent deals with BIRD.

    supervised: it starts BIRD with its configuration and keeps it running, and leaves it running
    when it stops itself. external: it writes the configuration and tells the BIRD somebody else
    started. off: no BIRD; a /32 of another routing daemon in the kernel is taken at its word.
    """

    mode: Literal["supervised", "external", "off"] = "supervised"
    binary: str = "bird"
    control_socket: str = ""


def _bird(value: object) -> object:
    """YAML reads a bare `off` as false; `mode: off` must mean what it says."""
    if isinstance(value, dict) and value.get("mode") is False:
        return {**value, "mode": "off"}
    return value


class NodeConfig(_Strict):
    """The agent's configuration; every key has a default that suits a node.

    `ip` is the node's address with its prefix length, or `autodetect`. Empty `kubeconfig` and
    `k8s_api_root` mean no Kubernetes API: endpoints then have no migration roles.
    """

    nodename: str = ""
    nodename_file: str = "/var/lib/tortie/nodename"
    ip: str = AUTODETECT
    datastore_type: str = "sqlite"
    sqlite_path: str = "/var/lib/tortie/tortie.db"
    sqlite_shared: bool = False
    kubeconfig: str = ""
    k8s_api_root: str = ""
    k8s_token_file: str = ""
    run_dir: str = "/run/tortie"
    state_dir: str = "/var/lib/tortie"
    log_file: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    bird: Annotated[BirdConfig, BeforeValidator(_bird)] = BirdConfig()
    uplinks: tuple[str, ...] = Field(default=())

    @model_validator(mode="after")
    def _consistent(self) -> NodeConfig:
        if self.ip != AUTODETECT:
            IPv4Interface(self.ip)
            if "/" not in self.ip:
                raise ValueError("ip needs its prefix length, e.g. 172.31.1.2/24")
        if self.kubeconfig and self.k8s_api_root:
            raise ValueError("give kubeconfig or k8s_api_root, not both")
        return self

    @property
    def node(self) -> str:
        """The node's name: configured, else the OS hostname in lower case, as kubelet does it."""
        return self.nodename or socket.gethostname().strip().lower()

    @property
    def status_dir(self) -> Path:
        """Where endpoint-status files stand."""
        return Path(self.run_dir) / "endpoint-status"

    @property
    def cni_socket(self) -> Path:
        """Where the CNI executable finds the agent."""
        return Path(self.run_dir) / "cni.sock"

    @property
    def state_file(self) -> Path:
        """Where migration states survive a restart."""
        return Path(self.state_dir) / "migration-state.json"

    @property
    def bird_socket(self) -> Path:
        """BIRD's control socket."""
        return Path(self.bird.control_socket or Path(self.run_dir) / "bird.ctl")


def parse_config(text: str, where: str) -> NodeConfig:
    """The configuration in YAML text. Raises `InvalidInput` naming file and key."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{where}: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise InvalidInput(f"{where}: expected a mapping of keys, got {type(data).__name__}")
    try:
        return NodeConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "configuration"
        raise InvalidInput(f"{where}: {key}: {first['msg']}") from error


def load_config(path: str, *, required: bool) -> NodeConfig:
    """The configuration file; a missing one means the defaults unless `required`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if required:
            raise InvalidInput(f"{path}: no such file") from error
        return NodeConfig()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    return parse_config(text, path)
