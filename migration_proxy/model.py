"""Which streams a migration has, how they are called, and what a Start call has to change; pure.

Names, texts and rules are KubeVirt's migration proxy's. A migration has a key (the VMI's UID); its
streams are told apart by logical ports: libvirt's RPC, guest memory, copied disks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePosixPath

from libtortie.errors import InvalidInput, Unavailable

IPAddress = IPv4Address | IPv6Address

LIBVIRT_PORT = 0
DIRECT_PORT = 49152
BLOCK_PORT = 49153
NAMES = {LIBVIRT_PORT: "libvirt", DIRECT_PORT: "direct", BLOCK_PORT: "block"}

SOCKET_DIRECTORY = "migrationproxy"
MOST_PATH_BYTES = 107
"""What `sockaddr_un` holds, less the zero at the end."""
MOST_KEY_BYTES = 200
"""So that the names made of it are names of files; a UID has 36."""
MOST_RATE = 1 << 50
"""Bytes a second; more than any network has."""
SHUTTING_DOWN = "unable to process new migration connections during virt-handler shutdown"


class ShuttingDown(Unavailable):
    """The proxy drains: it takes no new migration."""

    def __init__(self) -> None:
        super().__init__(SHUTTING_DOWN)


class Side(StrEnum):
    """Where a migration comes from, and where it goes."""

    SOURCE = "source"
    TARGET = "target"


class Verdict(StrEnum):
    """What a Start call comes to."""

    CREATE = "create"
    KEEP = "keep"
    REPLACE = "replace"


def proxy_key(key: str, port: int) -> str:
    """What a stream's socket is named after."""
    return f"{key}-{port}" if port else key


def source_path(base: str, key: str, port: int) -> str:
    """A stream's socket on the source, below a base directory. Raises `InvalidInput`."""
    if not base.strip("/"):
        raise InvalidInput(f"base directory {base!r}: name one")
    return f"{base.rstrip('/')}/{SOCKET_DIRECTORY}/{proxy_key(key, port)}-source.sock"


def logical_port(key: str, path: str) -> int:
    """Whose stream a target's socket is, by its path."""
    for port in (DIRECT_PORT, BLOCK_PORT):
        if proxy_key(key, port) in path:
            return port
    return LIBVIRT_PORT


@dataclass(frozen=True, slots=True)
class PortMap:
    """TCP port → logical port. Another `generation` means: publish it again.

    Generations of one key differ and grow while the clock does, also across restarts.
    """

    ports: Mapping[int, int] = field(default_factory=dict)
    generation: int = 0

    def wire(self) -> dict[str, int]:
        """As KubeVirt publishes it in `targetDirectMigrationNodePorts`."""
        return {str(port): logical for port, logical in self.ports.items()}


@dataclass(frozen=True, slots=True)
class Stream:
    """One listener of a migration and what it leads to.

    On the target `path` is where incoming streams go, on the source where they come from;
    `port` is the peer's TCP port there, and 0 on the target.
    """

    logical: int
    path: str
    port: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """All that a Start call asked for: two equal ones are one.

    `peer` is the other node's address, `peer_name` what its certificate's SAN has to hold; both
    may be unknown on the target. `tls` is the mode at the time of the call (M8).
    """

    side: Side
    key: str
    streams: tuple[Stream, ...]
    tls: bool
    peer: IPAddress | None = None
    peer_name: str = ""
    rate: int = 0
    """Bytes a second that the source sends at most; 0: no limit."""


def target_request(
    key: str,
    files: Sequence[str],
    *,
    tls: bool,
    peer: IPAddress | None = None,
    peer_name: str = "",
) -> Request:
    """M1's request. Raises `InvalidInput`."""
    _check_key(key)
    if peer is not None:
        peer = _node_address(key, peer, "source")
    if not files:
        raise InvalidInput(f"migration {key}: no target socket was named")
    for path in files:
        check_path(path)
    if len(set(files)) < len(files):
        raise InvalidInput(f"migration {key}: a target socket is named twice: {' '.join(files)}")
    streams = tuple(sorted(_by_port(key, files), key=lambda stream: stream.path))
    return Request(Side.TARGET, key, streams, tls, peer, peer_name)


def source_request(
    key: str,
    peer: IPAddress,
    ports: Mapping[int, int],
    base: str,
    *,
    tls: bool,
    peer_name: str = "",
    rate: int = 0,
) -> Request:
    """M4's request: `ports` as the target published them, TCP → logical. Raises `InvalidInput`."""
    _check_key(key)
    peer = _node_address(key, peer, "target")
    if not ports:
        raise InvalidInput(f"migration {key}: the target has published no ports")
    if len(set(ports.values())) < len(ports):
        raise InvalidInput(f"migration {key}: two ports for one stream: {dict(ports)}")
    for port, logical in ports.items():
        if not 0 < port < 1 << 16:
            raise InvalidInput(f"migration {key}: {port} is no TCP port")
        if logical not in NAMES:
            raise InvalidInput(f"migration {key}: {logical} is no logical port: 0, 49152, 49153")
    streams = tuple(
        Stream(logical, check_path(source_path(base, key, logical)), port)
        for port, logical in sorted(ports.items(), key=lambda each: each[1])
    )
    if not 0 <= rate <= MOST_RATE:
        raise InvalidInput(f"migration {key}: a rate of {rate} bytes a second")
    return Request(Side.SOURCE, key, streams, tls, peer, peer_name, rate)


def plan(current: Request, alive: bool, wanted: Request) -> Verdict:
    """M1 and M4: the same again is nothing to do, as long as all listeners are alive.

    More exact than KubeVirt's, which compares paths, or address and port, alone.
    """
    return Verdict.KEEP if alive and current == wanted else Verdict.REPLACE


def next_generation(last: int, now: float) -> int:
    """A generation after `last`; `now` is the wall clock's, in seconds."""
    return max(last + 1, int(now * 1e6))  # exact in JSON until the year 2255


def check_path(path: str) -> str:
    """A socket's path that programs in its pod can use. Raises `InvalidInput`."""
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise InvalidInput(f"socket {path!r}: not an absolute path without `..`")
    inside = path_in_pod(path)
    size = len(inside.encode(errors="surrogateescape"))
    if size > MOST_PATH_BYTES:
        raise InvalidInput(
            f"socket {inside}: {size} bytes, a unix socket's path has at most {MOST_PATH_BYTES}"
        )
    return path


def split_root(path: str) -> tuple[str, str]:
    """A path as (root directory, path within it); the root of a process is `/proc/<pid>/root`."""
    parts = PurePosixPath(path).parts
    if len(parts) > 4 and parts[1] == "proc" and parts[2].isdecimal() and parts[3] == "root":
        return str(PurePosixPath(*parts[:4])), str(PurePosixPath("/", *parts[4:]))
    return "/", path


def path_in_pod(path: str) -> str:
    """A socket's path as a process in the pod knows it."""
    return split_root(path)[1]


def _by_port(key: str, files: Sequence[str]) -> list[Stream]:
    streams = [Stream(logical_port(key, path), path) for path in files]
    if len({stream.logical for stream in streams}) < len(streams):
        raise InvalidInput(
            f"migration {key}: several target sockets for one stream: {' '.join(files)}"
        )
    return streams


def _node_address(key: str, peer: IPAddress, other: str) -> IPAddress:
    """A node's address that means the same everywhere, in the form connections tell it in."""
    if isinstance(peer, IPv6Address) and peer.ipv4_mapped:
        peer = peer.ipv4_mapped
    if peer.version == 6 and peer.is_link_local:
        raise InvalidInput(
            f"migration {key}: {peer} is a link-local address: it does not say on which link the "
            f"{other} is; give the migration network global addresses"
        )
    if peer.is_unspecified or peer.is_multicast:
        raise InvalidInput(f"migration {key}: {peer} is no node's address")
    if isinstance(peer, IPv6Address) and peer.scope_id:
        raise InvalidInput(
            f"migration {key}: {peer} is of one link: leave out the `%` and the rest"
        )
    return peer


def _check_key(key: str) -> None:
    """A key is part of a file's name."""
    plain = key.isascii() and key.isprintable() and "/" not in key and key[:1] != "."
    if not key or len(key) > MOST_KEY_BYTES or not plain:
        raise InvalidInput(f"migration key {key!r}: not usable as a file's name; a VMI's UID is")
