"""Proxies of both sides in this process, over loopback, with certificates of the tests' own."""

from __future__ import annotations

import hashlib
import ipaddress
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libtortie.jsonlog import Log, NullLog
from migration_proxy.config import CLIENT_CNS, SERVER_CNS, PairConfig, ProxyConfig, TlsConfig
from migration_proxy.manager import ProxyManager
from migration_proxy.model import PortMap, source_path
from migration_proxy.session import Session
from migration_proxy.tcp_sockets import Network
from tests.fakes.certificates import Authority, Pair

LOOPBACK = ipaddress.ip_address("127.0.0.1")
KEY = "6fe9e5f2-7a4b-4d0c-9e0a-7c1f0d9b2a11"
PATIENCE = 120.0
"""Seconds until a wait of a test's is given up."""
NETWORK = Network(
    lambda: ["lo"],
    lambda _: [ipaddress.ip_interface("127.0.0.1/8")],
)


def until(what: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@dataclass(slots=True)
class Pki:
    """Certificates of a cluster, on disk; a node's pairs may be replaced in place."""

    directory: Path
    authority: Authority
    name: str = "ca"

    @classmethod
    def make(cls, directory: Path, name: str = "ca") -> Pki:
        """A CA and the pairs of its nodes."""
        directory.mkdir(parents=True, exist_ok=True)
        return cls(directory, Authority(directory, name), name)

    def tls(self, *, hosts: tuple[str, ...] = ("node1",), **more: Any) -> TlsConfig:
        """A node's TLS section."""
        server = self.authority.server(SERVER_CNS[0], hosts=hosts)
        client = self.authority.client(CLIENT_CNS[0])
        return TlsConfig(
            ca=str(self.authority.cert), server=pair(server), migration=pair(client), **more
        )


def pair(files: Pair) -> PairConfig:
    """A pair's files as configuration."""
    return PairConfig(cert=str(files.cert), key=str(files.key))


def config(tls: TlsConfig | None, **more: Any) -> ProxyConfig:
    """A node's configuration: loopback, and long patience where a test does not care."""
    said: dict[str, Any] = {
        "listen": "127.0.0.1",
        "connect_seconds": PATIENCE,
        "handshake_seconds": PATIENCE,
        "stall_seconds": PATIENCE,
        **more,
    }
    if tls is None:
        said |= {"disable_tls": True, "allowed_peers": said.get("allowed_peers", ["127.0.0.0/8"])}
    else:
        said["tls"] = tls
    return ProxyConfig.model_validate(said)


@contextmanager
def manager(settings: ProxyConfig, log: Log | None = None) -> Iterator[ProxyManager]:
    """A node's proxy; at the end nothing of it is left."""
    made = ProxyManager(settings, NETWORK, log or NullLog())
    try:
        yield made
    finally:
        made.shutdown(0.0)


class Program:
    """A local program of the target (QEMU, libvirt): it listens, and keeps whom it accepted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(256)
        self._listener.settimeout(PATIENCE)

    def accept(self) -> socket.socket:
        """The next connection."""
        accepted, _ = self._listener.accept()
        accepted.settimeout(PATIENCE)
        return accepted

    @property
    def called(self) -> bool:
        """Whether somebody waits to be accepted."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def close(self) -> None:
        """End, as a killed program does: its file stays."""
        self._listener.close()


def connect(path: str) -> socket.socket:
    """A local program of the source's, at a proxy's socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PATIENCE)
    sock.connect(path)
    return sock


@dataclass(slots=True)
class Nodes:
    """A source and a target, and the target's programs by logical port."""

    source: ProxyManager
    target: ProxyManager
    directory: Path
    programs: dict[int, Program]
    ports: PortMap

    def call(self, logical: int = 49152) -> socket.socket:
        """A connection of the source's program."""
        return connect(source_path(str(self.directory / "base"), KEY, logical))

    def pair(self, logical: int = 49152) -> tuple[socket.socket, socket.socket]:
        """A stream: the source's end, the target's end."""
        caller = self.call(logical)
        return caller, self.programs[logical].accept()

    def start_source(self, **more: Any) -> tuple[str, ...]:
        """The source's listeners, for the target's ports."""
        return self.source.start_source_listener(
            KEY, LOOPBACK, self.ports.ports, str(self.directory / "base"), **more
        )


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose sockets' paths are short enough, with `base` and `target` in it."""
    with tempfile.TemporaryDirectory(prefix="mp-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / "base").mkdir()
        (directory / "target").mkdir()
        yield directory


@contextmanager
def nodes(
    source: ProxyConfig,
    target: ProxyConfig,
    *,
    logical: Sequence[int] = (0, 49152),
    logs: tuple[Log, Log] | None = None,
) -> Iterator[Nodes]:
    """Both sides of a migration, listening."""
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory())
        log_a, log_b = logs or (NullLog(), NullLog())
        one = stack.enter_context(manager(source, log_a))
        other = stack.enter_context(manager(target, log_b))
        programs = {}
        for port in logical:
            name = f"{KEY}-{port}-source.sock" if port else "virtqemud-sock"
            programs[port] = Program(directory / "target" / name)
            stack.callback(programs[port].close)
        ports = other.start_target_listener(KEY, [str(each.path) for each in programs.values()])
        both = Nodes(one, other, directory, programs, ports)
        both.start_source()
        yield both


def receive(sock: socket.socket) -> bytes:
    """All until the end."""
    parts = []
    while part := sock.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def digest(data: bytes) -> str:
    """A hash that a failed test can show."""
    return hashlib.sha256(data).hexdigest()


def sending(sock: socket.socket, data: bytes, *, end: bool = True) -> threading.Thread:
    """Send from a thread, then end that direction."""

    def body() -> None:
        sock.sendall(data)
        if end:
            sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


def sessions(side: ProxyManager) -> list[Session]:
    """The streams of a node's proxy."""
    return [each for one in side.migrations() for part in one.listeners for each in part.sessions()]


def ended(sock: socket.socket) -> bool:
    """Whether a socket comes to its end next, by whatever means."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def listens(port: int) -> bool:
    """Whether somebody takes connections there; a reset before this end is through was one, too."""
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        return True
    return True


def turned_away(port: int) -> bool:
    """Whether a connection is taken and ended; the listener may be quicker than this end."""
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as caller:
            return ended(caller)
    except ConnectionResetError:
        return True


def descriptors() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))
