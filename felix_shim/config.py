"""`/etc/tortie/node.yaml`: what the agent is told about its node. Unknown keys are errors, but for
those that a newer agent may know (`accepted_config`)."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from felix_shim.accepted_config import Place, digest_of, is_accepted, without
from felix_shim.addresses import AUTODETECT, parse_method
from felix_shim.bgp_model import Bfd, check_router_id
from felix_shim.environment import NODENAME, settings_in
from felix_shim.failsafe import MIGRATION_PORTS
from felix_shim.peer_credentials import Files
from felix_shim.peers import DEFAULT_PORT
from felix_shim.policy_compile import merged
from libtortie import go_yaml
from libtortie.access import IN_CLUSTER, Access
from libtortie.errors import InvalidInput
from libtortie.files import read_text
from libtortie.history_spool import HISTORY_SPOOL
from libtortie.model.fields import Encapsulation
from libtortie.model.names import LABEL, is_node_name
from libtortie.model.policy import PortRange
from libtortie.rotating import Limits
from libtortie.serving_config import MetricsKeys

NONE = "none"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BirdConfig(_Strict):
    """How the agent deals with BIRD.

    supervised: it starts BIRD with its configuration and keeps it running, and leaves it running
    when it stops itself. external: it writes the configuration and tells the BIRD somebody else
    started. off: no BIRD; a /32 of another routing daemon in the kernel is taken at its word.

    `bfd` watches every session by RFC 5880, with these timers. Sessions' passwords are in Secrets
    of `secret_namespace`.
    """

    mode: Literal["supervised", "external", "off"] = "supervised"
    binary: str = "bird"
    control_socket: str = ""
    bfd: bool = False
    bfd_interval_ms: int = Field(default=100, ge=10, le=60000)
    bfd_multiplier: int = Field(default=5, ge=2, le=255)
    secret_namespace: str = Field(default="kube-system", pattern=rf"^{LABEL}$")

    @model_validator(mode="after")
    def _timed(self) -> BirdConfig:
        if not self.bfd and self.model_fields_set & {"bfd_interval_ms", "bfd_multiplier"}:
            raise ValueError("bfd_interval_ms and bfd_multiplier need bfd: true")
        return self

    @property
    def detection(self) -> Bfd | None:
        """BFD's timers; None without it."""
        return Bfd(self.bfd_interval_ms, self.bfd_multiplier) if self.bfd else None


class PoolConfig(_Strict):
    """The pool a cluster gets that has none of the family.

    `cidr` empty means Calico's choice, `none` no pool. `block_size` 0 and `nat_outgoing` None
    mean the family's default: /26 with NAT, /122 without.
    """

    cidr: str = ""
    block_size: int = 0
    nat_outgoing: bool | None = None
    node_selector: str = "all()"
    disable_bgp_export: bool = False
    vxlan_mode: Encapsulation = "Never"

    def check(self, version: int) -> None:
        """Raises ValueError for what is no pool of the family."""
        bits = 32 if version == 4 else 128
        shortest = bits - 12
        if self.cidr not in ("", NONE):
            network = ip_network(self.cidr)
            if network.version != version:
                raise ValueError(f"{self.cidr} is not IPv{version}")
            shortest = max(shortest, network.prefixlen)
        if self.block_size and not shortest <= self.block_size <= bits:
            raise ValueError(f"block_size {self.block_size} is outside {shortest}..{bits}")


class DefaultPools(_Strict):
    """One for each family."""

    ipv4: PoolConfig = PoolConfig()
    ipv6: PoolConfig = PoolConfig()

    @model_validator(mode="after")
    def _consistent(self) -> DefaultPools:
        self.ipv4.check(4)
        self.ipv6.check(6)
        return self


def _port_range(text: str) -> PortRange:
    """`49200-49299`, as the migration proxy's `port_range`. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < first <= last < 1 << 16:
        raise ValueError(f"migration_proxy_ports {text!r}: two ports such as 49200-49299")
    return PortRange(first, last)


def _bird(value: object) -> object:
    """YAML reads a bare `off` as false; `mode: off` must mean what it says."""
    if isinstance(value, dict) and value.get("mode") is False:
        return {**value, "mode": "off"}
    return value


def _pools(value: object) -> object:
    """`none` for both families."""
    return {"ipv4": {"cidr": NONE}, "ipv6": {"cidr": NONE}} if value == NONE else value


class NodeConfig(Access, MetricsKeys):
    """The agent's configuration; every key has a default that suits a node.

    What other programs of the node read from the same file is in `Access`.

    `ip` and `ip6` are methods of `addresses.py`, or `none`: then nodes don't speak that family with
    each other. `router_id` is BGP's; empty: the IPv4 address, or `hash`, which is made of the name.
    Empty `kubeconfig` and `k8s_api_root` mean no Kubernetes API: endpoints then have no migration
    roles.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodename: str = ""
    ip: str = AUTODETECT
    ip6: str = NONE
    ip_check: bool = True
    router_id: str = ""
    as_number: int | None = Field(default=None, ge=1, lt=1 << 32)
    cluster_type: str = "k8s,bgp"
    calico_version: str = Field(default="v3.34.0", pattern=r"^(v\d+\.\d+\.\d+.*)?$")
    default_pools: Annotated[DefaultPools, BeforeValidator(_pools)] = DefaultPools()
    k8s_node: str = ""
    k8s_node_condition: bool = True
    use_pod_cidr: bool = False
    vm_gone_grace_seconds: float = Field(default=60.0, ge=1.0)
    cni_workers: int | None = Field(default=None, ge=0, le=16)
    drain_seconds: float = Field(default=60.0, ge=0, le=3600)
    state_dir: str = "/var/lib/tortie"
    log_file: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_file_max_size: int = Field(default=100, ge=1)
    log_file_max_age: int = Field(default=30, ge=1)
    log_file_max_count: int = Field(default=10, ge=1)
    peer_ca_file: str = ""
    peer_cert_file: str = ""
    peer_key_file: str = ""
    peer_port: int = Field(default=DEFAULT_PORT, ge=1, le=65535)
    open_migration_ports: bool = False
    migration_proxy_ports: str = ""
    bird: Annotated[BirdConfig, BeforeValidator(_bird)] = BirdConfig()
    uplinks: tuple[str, ...] = Field(default=())
    migration_proxy: str = ""
    _unknown: tuple[str, ...] = PrivateAttr(())
    _digest: str = PrivateAttr("")

    @model_validator(mode="after")
    def _consistent(self) -> NodeConfig:
        if self.ip == self.ip6 == NONE:
            raise ValueError("ip and ip6 are both none: a node needs an address")
        if self.ip != NONE:
            parse_method(self.ip)
        check_router_id(self.router_id)
        if self.ip6 != NONE:
            parse_method(self.ip6, version=6)
        if self.nodename and not is_node_name(self.nodename):
            raise ValueError(f"nodename {self.nodename!r} is no lower-case DNS name")
        if self.kubeconfig and self.k8s_api_root:
            raise ValueError("give kubeconfig or k8s_api_root, not both")
        if self.datastore_type == "kubernetes":
            self._check_kubernetes()
        self._check_credentials()
        if self.migration_proxy and not Path(self.migration_proxy).is_absolute():
            raise ValueError(f"migration_proxy {self.migration_proxy!r} is not an absolute path")
        if self.migration_proxy_ports:
            _port_range(self.migration_proxy_ports)
            if not self.open_migration_ports:
                raise ValueError("migration_proxy_ports needs open_migration_ports: true")
        return self

    def _check_kubernetes(self) -> None:
        """Raises ValueError for what the Kubernetes datastore cannot work with."""
        if not self.has_api:
            raise ValueError("datastore_type kubernetes needs kubeconfig or k8s_api_root")
        if self.k8s_node not in ("", self.nodename):
            raise ValueError(
                f"k8s_node {self.k8s_node!r}: with datastore_type kubernetes the node's resource "
                f"is its core Node: nodename has to be that, not {self.nodename!r}"
            )

    def _check_credentials(self) -> None:
        """Raises ValueError for a key that could only be ignored."""
        for key in ("k8s_token_file", "k8s_ca_file"):
            if getattr(self, key) and self.k8s_api_root in ("", IN_CLUSTER):
                raise ValueError(f"{key} needs k8s_api_root, a URL")
        if self.cni_kubeconfig and not self.has_api:
            raise ValueError("cni_kubeconfig needs kubeconfig or k8s_api_root")
        if self.cni_kubeconfig and not Path(self.cni_kubeconfig).is_absolute():
            raise ValueError(f"cni_kubeconfig {self.cni_kubeconfig!r} is not an absolute path")
        if self.cni_kubeconfig and self.cni_kubeconfig == self.kubeconfig:
            raise ValueError("cni_kubeconfig would overwrite kubeconfig: name another file")
        peers = (self.peer_ca_file, self.peer_cert_file, self.peer_key_file)
        if any(peers) and not all(peers):
            raise ValueError("peer_ca_file, peer_cert_file and peer_key_file go together")

    @property
    def node(self) -> str:
        """The node's name; after `load_config` there is one."""
        return self.nodename

    @property
    def peer_files(self) -> Files | None:
        """Who this node is to other agents; None where it does not talk to them."""
        if not self.peer_cert_file:
            return None
        return Files(Path(self.peer_ca_file), Path(self.peer_cert_file), Path(self.peer_key_file))

    @property
    def ports_between_nodes(self) -> tuple[PortRange, ...]:
        """TCP ports that no host policy closes between the cluster's nodes."""
        found = [PortRange(self.peer_port, self.peer_port)] if self.peer_files else []
        if self.open_migration_ports:
            found.append(MIGRATION_PORTS)
        if self.migration_proxy_ports:
            found.append(_port_range(self.migration_proxy_ports))
        return tuple(merged(sorted(found)))

    @property
    def has_api(self) -> bool:
        """Whether there is a Kubernetes API to talk to."""
        return bool(self.kubeconfig or self.k8s_api_root)

    @property
    def kube_node(self) -> str:
        """The node's name in Kubernetes; empty without an API."""
        return (self.k8s_node or self.nodename) if self.has_api else ""

    @property
    def log_limits(self) -> Limits:
        """When the log file is set aside: `log_file_max_size` is in MB, `_max_age` in days."""
        return Limits(
            self.log_file_max_size << 20, self.log_file_max_age * 86400.0, self.log_file_max_count
        )

    @property
    def mtu_file(self) -> Path:
        """Where the CNI plugin finds the MTU."""
        return Path(self.state_dir) / "mtu"

    @property
    def history_file(self) -> Path:
        """What waits to be stored in the history; the plugin's fallback appends to it too."""
        return Path(self.state_dir) / HISTORY_SPOOL

    @property
    def policy_cache_dir(self) -> Path:
        """Where it is remembered what the Kubernetes API said of policy."""
        return Path(self.state_dir) / "kube-policy"

    @property
    def state_file(self) -> Path:
        """Where migration states survive a restart."""
        return Path(self.state_dir) / "migration-state.json"

    @property
    def datastore_id_file(self) -> Path:
        """Where the node remembers which SQLite file is its datastore."""
        return Path(self.state_dir) / "datastore-id"

    @property
    def unknown_keys(self) -> tuple[str, ...]:
        """Keys of the file that this agent does not know, and goes without."""
        return self._unknown

    @property
    def digest(self) -> str:
        """Of a file that was understood whole; empty of another."""
        return self._digest

    @property
    def bird_socket(self) -> Path:
        """BIRD's control socket."""
        return Path(self.bird.control_socket or Path(self.run_dir) / "bird.ctl")


def parse_config(
    text: str, where: str, environ: Mapping[str, str] | None = None, hostname: str = ""
) -> NodeConfig:
    """The configuration in YAML text. Raises `InvalidInput` naming file and key.

    The environment fills in keys the text does not have; only NODENAME beats it. `hostname` is
    the OS's, the last resort for a name.
    """
    return _parsed(_data(text, where, environ or {}), where, environ or {}, hostname)


class UnknownKeys(InvalidInput):
    """Nothing else is wrong; `places` are the keys."""

    def __init__(self, text: str, places: tuple[Place, ...]) -> None:
        super().__init__(text)
        self.places = places


def _data(text: str, where: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The keys of file and environment. Raises `InvalidInput`."""
    try:
        data = go_yaml.load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{where}: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise InvalidInput(f"{where}: expected a mapping of keys, got {type(data).__name__}")
    return _merged(settings_in(environ), data)


def _parsed(
    data: dict[str, Any], where: str, environ: Mapping[str, str], hostname: str = ""
) -> NodeConfig:
    config = _validated(data, where)
    name, source = _node_name(config, environ, hostname)
    if config.nodename != name:
        config = _validated(data | {"nodename": name}, source)
    config._digest = digest_of(data)
    return config


def _validated(data: dict[str, Any], where: str) -> NodeConfig:
    try:
        return NodeConfig.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        key = ".".join(str(part) for part in found[0]["loc"]) or "configuration"
        text = f"{where}: {key}: {found[0]['msg']}"
        if all(one["type"] == "extra_forbidden" for one in found):
            places = tuple(tuple(str(part) for part in one["loc"]) for one in found)
            raise UnknownKeys(text, places) from error
        raise InvalidInput(text) from error


def _merged(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(weaker)
    for key, value in stronger.items():
        below = out.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        out[key] = _merged(below, value) if both else value  # type: ignore[arg-type]  # see both
    return out


def _node_name(config: NodeConfig, environ: Mapping[str, str], hostname: str) -> tuple[str, str]:
    """The node's name and where it is from.

    NODENAME, the configuration, what this node was called before, HOSTNAME, the OS's name.
    Raises `InvalidInput` for a nodename file that is there and cannot be read.
    """
    if name := environ.get(NODENAME, "").strip():
        return name, NODENAME
    if config.nodename:
        return config.nodename, "nodename"
    try:
        before = read_text(config.nodename_file).strip()
    except FileNotFoundError:
        before = ""
    except OSError as error:
        raise InvalidInput(f"nodename_file {config.nodename_file}: {error}") from error
    if before:
        return before, config.nodename_file
    own = environ.get("HOSTNAME", "").strip() or hostname or socket.gethostname()
    return own.strip().lower(), "the hostname"


def load_config(
    path: str, *, required: bool, environ: Mapping[str, str] | None = None
) -> NodeConfig:
    """The configuration file; a missing one means the defaults unless `required`.

    One with keys that are not known is taken without them where that is what this node had.
    """
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        if required:
            raise InvalidInput(f"{path}: no such file") from error
        text = ""
    except OSError as error:
        raise InvalidInput(f"{path}: {error}") from error
    data = _data(text, path, environ or {})
    try:
        return _parsed(data, path, environ or {})
    except UnknownKeys as error:
        known = _parsed(without(data, error.places), path, environ or {})
        if not is_accepted(known.state_dir, known.digest):
            raise
        known._digest, known._unknown = "", tuple(".".join(one) for one in error.places)
        return known
