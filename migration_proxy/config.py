"""`/etc/tortie/migration-proxy.yaml`: what the daemon is told. Unknown keys are errors."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from libtortie import go_yaml
from libtortie.control_client import DEFAULT_SOCKET
from libtortie.errors import InvalidInput
from libtortie.files import read_text
from libtortie.rotating import Limits
from libtortie.serving_config import MetricsKeys
from migration_proxy.model import MOST_RATE, IPAddress

IPNetwork = IPv4Network | IPv6Network
DEFAULT_CONFIG = "/etc/tortie/migration-proxy.yaml"
SERVER_CNS = ("kubevirt.io:system:node:virt-handler",)
CLIENT_CNS = ("kubevirt.io:system:client:migration", "kubevirt.io:system:client:virt-handler")
MOST_SECONDS = 86400.0
"""Of what is waited for; the kernel's and Python's clocks take no infinite ones."""
_RANGE = re.compile(r"(\d{1,5})-(\d{1,5})")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PairConfig(_Strict):
    """A certificate and its key, as PEM files."""

    cert: str = ""
    key: str = ""

    @model_validator(mode="after")
    def _both(self) -> PairConfig:
        if bool(self.cert) != bool(self.key):
            raise ValueError("give cert and key, or neither")
        return self

    def __bool__(self) -> bool:
        return bool(self.cert)


class TlsConfig(_Strict):
    """Three pairs apart, as KubeVirt has them.

    server: what target listeners present. migration: what the source presents to targets. client:
    the node's general client pair, presented where there is no `migration`.
    """

    ca: str = ""
    server: PairConfig = PairConfig()
    client: PairConfig = PairConfig()
    migration: PairConfig = PairConfig()
    server_cns: tuple[str, ...] = SERVER_CNS
    client_cns: tuple[str, ...] = CLIENT_CNS
    externally_managed: bool = False
    min_version: Literal["1.2", "1.3"] = "1.3"
    ciphers: str = ""

    @property
    def outgoing(self) -> PairConfig:
        """What the source presents."""
        return self.migration or self.client


def _networks(value: object) -> object:
    """Networks as text; a bare address is one of its own."""
    if isinstance(value, str | bytes) or not isinstance(value, list | tuple):
        raise ValueError("a list of CIDRs")
    return tuple(ipaddress.ip_network(str(each)) for each in value)


class ProxyConfig(_Strict, MetricsKeys):
    """Everything; durations are in seconds, sizes in bytes.

    `listen` is an interface (`migration0`), a CIDR of which this node has an address, or an
    address; empty: all addresses, as KubeVirt does.
    """

    listen: str = ""
    port_range: str = ""
    allowed_peers: Annotated[tuple[IPNetwork, ...], BeforeValidator(_networks)] = ()
    tls: TlsConfig = TlsConfig()
    disable_tls: bool = False
    socket_user: str = ""
    most_streams: int = Field(default=128, ge=64, le=4096)
    connect_seconds: float = Field(default=10.0, gt=0, le=MOST_SECONDS)
    handshake_seconds: float = Field(default=10.0, gt=0, le=MOST_SECONDS)
    stall_seconds: float = Field(default=120.0, ge=1, le=MOST_SECONDS)
    keepalive_seconds: int = Field(default=15, ge=1, le=3600)
    idle_seconds: float = Field(default=3600.0, ge=0, allow_inf_nan=False)
    drain_seconds: float = Field(default=315.0, ge=0, le=MOST_SECONDS)
    rate_limit: int = Field(default=0, ge=0, le=MOST_RATE)
    control_socket: str = DEFAULT_SOCKET
    node: str = ""
    log_file: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_file_max_size: int = Field(default=100, ge=1, le=1_000_000)
    log_file_max_age: int = Field(default=30, ge=1, le=1_000_000)
    log_file_max_count: int = Field(default=10, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _consistent(self) -> ProxyConfig:
        parse_ports(self.port_range)
        if self.disable_tls and not self.allowed_peers:
            raise ValueError(
                "disable_tls takes away who the peer is: name the other nodes in allowed_peers"
            )
        if not self.disable_tls:
            self._check_pairs()
        return self

    def _check_pairs(self) -> None:
        for name, there in (
            ("tls.ca", self.tls.ca),
            ("tls.server", self.tls.server),
            ("tls.migration or tls.client", self.tls.outgoing),
        ):
            if not there:
                raise ValueError(f"{name} is missing; without TLS: disable_tls: true")

    @property
    def ports(self) -> range:
        """The TCP ports of target listeners; empty: the kernel's choice."""
        return parse_ports(self.port_range)

    @property
    def log_limits(self) -> Limits:
        """When the log file is set aside: sizes in MB, ages in days."""
        return Limits(
            self.log_file_max_size << 20, self.log_file_max_age * 86400.0, self.log_file_max_count
        )


def parse_ports(text: str) -> range:
    """`49200-49299`, both ends included; empty for no range. Raises ValueError."""
    if not text:
        return range(0)
    match = _RANGE.fullmatch(text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < first <= last < 1 << 16:
        raise ValueError(f"port_range {text!r}: two ports such as 49200-49299")
    return range(first, last + 1)


def load_config(path: str, overrides: Mapping[str, Any]) -> ProxyConfig:
    """The file at `path`, with flags over it. Raises `InvalidInput`.

    Only the default file may be missing.
    """
    try:
        text = read_text(path or DEFAULT_CONFIG)
    except FileNotFoundError:
        if path:
            raise InvalidInput(f"{path}: no such file") from None
        text = ""
    except OSError as error:
        raise InvalidInput(f"{path or DEFAULT_CONFIG}: {error}") from error
    return parse_config(text, path or DEFAULT_CONFIG, overrides)


def parse_config(text: str, name: str, overrides: Mapping[str, Any]) -> ProxyConfig:
    """A configuration's text. Raises `InvalidInput` naming file and key."""
    try:
        given = go_yaml.load(text) or {}
    except yaml.YAMLError as error:
        raise InvalidInput(f"{name}: not YAML: {str(error).replace(chr(10), ' ')}") from error
    if not isinstance(given, dict):
        raise InvalidInput(f"{name}: not a mapping of keys")
    try:
        return ProxyConfig.model_validate({**given, **overrides})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise InvalidInput(f"{name}: {f'{where}: ' if where else ''}{said}") from error


def may_come(peer: IPAddress, allowed: tuple[IPNetwork, ...], expected: IPAddress | None) -> bool:
    """Whether an address may open a stream: the migration's peer if known, of the allowed ones."""
    if expected is not None and peer != expected:
        return False
    return not allowed or any(peer in network for network in allowed)
