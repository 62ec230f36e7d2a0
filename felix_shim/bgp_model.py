"""What BIRD's configuration is made of: values alone. Nothing here is text of BIRD's yet.

Whoever makes one of these has resolved names, selectors and defaults; `bgp.py` checks and renders.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface

from felix_shim.bgp_filter import RouteFilter
from felix_shim.routes import Priorities
from libtortie.linux.port import IPNetwork
from libtortie.model.bgp_spec import BGP_PORT
from libtortie.model.ipam import IPAddress

AS_MAX = 4294967295
DEFAULT_AS = 64512


class NextHop(StrEnum):
    """What a neighbour is told of the way to a route.

    AUTO: ourselves for another AS, else as it is. SELF: ourselves. KEEP: as it is.
    """

    AUTO = "Auto"
    SELF = "Self"
    KEEP = "Keep"


class LogLevel(StrEnum):
    """The least that BIRD writes down."""

    TRACE = "Trace"
    DEBUG = "Debug"
    INFO = "Info"
    WARNING = "Warning"
    ERROR = "Error"
    FATAL = "Fatal"


@dataclass(frozen=True, slots=True)
class Peer:
    """A BGP neighbour.

    `mesh`: another node, of the full mesh. `member`: another node of this cluster by a BGPPeer.
    `passive`: it opens, we wait; in the mesh that follows from the addresses. `reflect`: it is
    told what others of the AS told us. `relay`: it is told the cluster's routes of other nodes,
    too. `closed`: one of its filters cannot be obeyed, so nothing passes. Zeros mean BIRD's or the
    agent's default; `ttl_hops` 0: no TTL security. `own_as_allowed` counts our AS in a path it
    sends. With an `interface` it is a workload of this node, which is behind that link and knows
    us as `source`.
    """

    address: IPAddress
    as_number: int
    port: int = BGP_PORT
    mesh: bool = False
    member: bool = False
    passive: bool = False
    local_as: int = 0
    password: str = field(default="", repr=False)
    from_node_address: bool = True
    next_hop: NextHop = NextHop.AUTO
    ttl_hops: int = 0
    restart_seconds: int | None = None
    keepalive_seconds: int = 0
    own_as_allowed: int = 0
    reachable_by: IPAddress | None = None
    filters: tuple[str, ...] = ()
    closed: bool = False
    reflect: bool = False
    relay: bool = False
    interface: str = ""
    source: IPAddress | None = None

    @property
    def of_cluster(self) -> bool:
        """Whether it is a node, whose MED we trust: it says what is raised there."""
        return self.mesh or self.member

    @property
    def protocol(self) -> str:
        """BIRD's name for the session: letters, digits and `_` only."""
        kind = "mesh" if self.mesh else "node" if self.member else "peer"
        kind = "workload" if self.interface else kind
        port = "" if self.port == BGP_PORT else f"_port_{self.port}"
        return f"{kind}_{re.sub('[.:]', '_', str(self.address))}{port}"


@dataclass(frozen=True, slots=True)
class Tagged:
    """Communities of every route within a network."""

    cidr: IPNetwork
    communities: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Bfd:
    """Bidirectional forwarding detection (RFC 5880): milliseconds, and how many may be missed."""

    interval_ms: int = 100
    multiplier: int = 5


HASH = "hash"
"""In place of a router id: one made of the node's name."""


def check_router_id(text: str) -> None:
    """Raises ValueError for what is no router id (RFC 6286: any 32 bits but 0), nor `hash`, nor
    empty."""
    if text in ("", HASH):
        return
    try:
        if int(IPv4Address(text)):
            return
    except ValueError:
        pass
    raise ValueError(f"router_id {text!r}: want four numbers, such as 192.0.2.1, or {HASH}")


@dataclass(frozen=True, slots=True)
class Canary:
    """A test route of this node, announced as if it were a workload's with this metric."""

    cidr: IPNetwork
    metric: int


@dataclass(frozen=True, slots=True)
class BirdInput:
    """Everything BIRD's configuration depends on.

    `address` is the node's own with its prefix length; sessions start from it, and a peer in its
    subnet is spoken to directly. `uplinks` are the links whose prefixes resolve next hops, less
    those that `ignored` names by pattern. `pools` are the cluster's, of which `hidden` are
    announced to nobody, and of `tunnelled`, the overlay's, the agent puts routes into the kernel
    itself. `services` are announced whole. `cluster_routes`: BIRD puts what it learns
    of pools into the kernel. `complete` is false while something is not known that a session needs:
    a BIRD that runs already then stays as it is.
    """

    node: str
    router_id: IPv4Address
    address: IPv4Interface | None
    as_number: int = DEFAULT_AS
    address6: IPv6Interface | None = None
    peers: tuple[Peer, ...] = ()
    filters: tuple[RouteFilter, ...] = ()
    blocks: tuple[IPNetwork, ...] = ()
    pools: tuple[IPNetwork, ...] = ()
    hidden: tuple[IPNetwork, ...] = ()
    tunnelled: tuple[IPNetwork, ...] = ()
    services: tuple[IPNetwork, ...] = ()
    tagged: tuple[Tagged, ...] = ()
    canaries: tuple[Canary, ...] = ()
    priorities: Priorities = field(default_factory=Priorities)
    priorities6: Priorities = field(default_factory=Priorities)
    uplinks: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    cluster_id: str = ""
    cluster_routes: bool = True
    listen_port: int = BGP_PORT
    bind_node_address: bool = False
    bfd: Bfd | None = None
    log_level: LogLevel = LogLevel.INFO
    log_file: str = ""
    complete: bool = True

    def own(self, version: int) -> IPv4Interface | IPv6Interface | None:
        """The node's address of a family."""
        return self.address if version == 4 else self.address6
