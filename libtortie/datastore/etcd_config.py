"""How an etcd cluster is reached: the settings people write, checked, and the deadlines.

The settings have Calico's meaning. What would be passed over in silence is refused instead:
certificates beside `http`, half a pair, a user without a password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from libtortie.errors import InvalidInput
from libtortie.files import read_bytes


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """As configured: `endpoints` is a comma-separated list of URLs, the files are PEM."""

    endpoints: str
    ca_cert_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines, in seconds.

    `call` bounds each request as a whole; with several endpoints no read waits longer than
    `attempt` for one of them. An idle watch asks for progress after `progress`; a server that is
    not heard for another `silence` is given up. A watch that cannot be resumed for `patience`
    ends as `Unavailable`. `keepalive` and `keepalive_answer` are HTTP/2 pings while requests are
    open (etcd closes connections that ping more often than every 5 s).
    """

    call: float = 5.0
    attempt: float = 2.0
    progress: float = 15.0
    silence: float = 5.0
    patience: float = 15.0
    keepalive: float = 10.0
    keepalive_answer: float = 5.0


@dataclass(frozen=True, slots=True)
class Tls:
    """Contents of the PEM files; equal when nothing was rotated."""

    ca: bytes
    cert: bytes | None
    key: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Targets:
    """`host:port` of each endpoint, and whether they speak TLS."""

    addresses: tuple[str, ...]
    tls: bool


def targets_of(config: EtcdConfig) -> Targets:
    """The endpoints. Raises `InvalidInput` naming the setting for anything unusable."""
    found = [_endpoint(url.strip()) for url in config.endpoints.split(",") if url.strip()]
    if not found:
        raise InvalidInput("etcd_endpoints: want one or more URLs, e.g. https://192.0.2.1:2379")
    tls = found[0][1]
    if any(one[1] != tls for one in found):
        raise InvalidInput("etcd_endpoints: http and https cannot be mixed")
    _check_files(config, tls)
    if bool(config.username) != bool(config.password):
        raise InvalidInput("etcd_username and etcd_password belong together")
    return Targets(tuple(dict.fromkeys(address for address, _ in found)), tls)


def read_tls(config: EtcdConfig) -> Tls:
    """The certificates as they are on disk now. Raises `InvalidInput` for an unreadable file."""
    ca = _read("etcd_ca_cert_file", config.ca_cert_file)
    if not config.cert_file:
        return Tls(ca, None, None)
    return Tls(
        ca, _read("etcd_cert_file", config.cert_file), _read("etcd_key_file", config.key_file)
    )


def _endpoint(url: str) -> tuple[str, bool]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(f"etcd_endpoints: {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not host or not port:
        raise InvalidInput(f"etcd_endpoints: {url!r} is not http(s)://host:port")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise InvalidInput(f"etcd_endpoints: more than http(s)://host:port in {url!r}")
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), parts.scheme == "https"


def _check_files(config: EtcdConfig, tls: bool) -> None:
    files = {
        "etcd_ca_cert_file": config.ca_cert_file,
        "etcd_cert_file": config.cert_file,
        "etcd_key_file": config.key_file,
    }
    if not tls:
        for name, value in files.items():
            if value:
                raise InvalidInput(f"{name}: the endpoints are http, which uses no certificate")
        return
    if not config.ca_cert_file:
        raise InvalidInput("etcd_ca_cert_file: https needs the authority that signed etcd's own")
    if bool(config.cert_file) != bool(config.key_file):
        raise InvalidInput("etcd_cert_file and etcd_key_file belong together")


def _read(name: str, path: str) -> bytes:
    try:
        data = read_bytes(path)
    except OSError as error:
        raise InvalidInput(f"{name}: {error}") from error
    if b"-----BEGIN " not in data:
        raise InvalidInput(f"{name}: {path} holds no PEM block")
    return data
