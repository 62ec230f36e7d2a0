"""Resources → who this node speaks BGP with, and the text of BIRD's configuration. Pure.

The filters never change with a migration; only kernel metrics move, and BIRD follows them:

* It learns workload host routes from the kernel and gives them a preference by metric; it gives
  routes from other nodes one by local preference. Order, best first: our raised route 250, another
  node's raised route 200, our normal route 150, anything else 100. BIRD compares preference
  before any BGP attribute, so this decides what is best here and hence what is announced.
* Local preference carries the metric, `2147483647 - metric`, as Calico's nodes do; MED carries it
  to eBGP neighbours, which never see local preference.
* It installs routes with one fixed kernel metric between raised and normal, never one per route:
  BIRD 2.0.12 would add the second route and leave the first behind.
* Blocks are announced whole, as blackholes; host routes inside an own block only while raised.

Recursive next hops (a peer behind a router) are resolved in BIRD's table, not the kernel's: so
uplink prefixes come from `direct`, and the node's own default route is learned too. Neither is
announced to anyone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface, ip_network

from felix_shim.routes import Priorities
from libtortie.errors import InvalidInput
from libtortie.linux.port import IPNetwork
from libtortie.model.ipam import IPAddress

LOCAL_PREF_ZERO = 2147483647
"""Local preference of metric 0."""
AS_MAX = 4294967295
DEFAULT_AS = 64512
_INTERFACE = re.compile(r"[A-Za-z0-9_.*-]{1,15}")


@dataclass(frozen=True, slots=True)
class Peer:
    """A BGP neighbour. `mesh`: another node of this cluster, whose MED we trust."""

    address: IPAddress
    as_number: int
    port: int = 179
    mesh: bool = False

    @property
    def protocol(self) -> str:
        """BIRD's name for the session: letters, digits and `_` only."""
        kind = "mesh" if self.mesh else "peer"
        port = "" if self.port == 179 else f"_port_{self.port}"
        return f"{kind}_{re.sub('[.:]', '_', str(self.address))}{port}"


@dataclass(frozen=True, slots=True)
class BirdInput:
    """Everything BIRD's configuration depends on.

    `address` is the node's own with its prefix length; sessions start from it, and a peer in its
    subnet is spoken to directly. `uplinks` are the links whose prefixes resolve next hops.
    `tunnelled` are pools of the overlay: announced, but into the kernel their routes are the
    agent's to put.
    """

    node: str
    router_id: IPv4Address
    address: IPv4Interface
    as_number: int = DEFAULT_AS
    address6: IPv6Interface | None = None
    peers: tuple[Peer, ...] = ()
    blocks: tuple[IPNetwork, ...] = ()
    priorities: Priorities = field(default_factory=Priorities)
    priorities6: Priorities = field(default_factory=Priorities)
    uplinks: tuple[str, ...] = ()
    tunnelled: tuple[IPNetwork, ...] = ()
    listen_port: int = 179
    log_file: str = ""


@dataclass(frozen=True, slots=True)
class _Family:
    """What differs between IPv4 and IPv6 in the text."""

    version: int
    hostlen: int
    default: str
    priorities: Priorities
    blocks: tuple[IPNetwork, ...]
    tunnelled: tuple[IPNetwork, ...] = ()


def render_bird(config: BirdInput) -> str:
    """The configuration, equal for equal input whatever its order.

    Raises `InvalidInput` for a value BIRD must not be given.
    """
    _check(config)
    parts = [_head(config)]
    for family in _families(config):
        parts += [_filters(family), _tables(family, config)]
    ordered = sorted(set(config.peers), key=lambda one: (one.address.version, one.protocol))
    parts += [_session(peer, config) for peer in ordered]
    return "\n".join(parts)


def _check(config: BirdInput) -> None:
    for number in (config.as_number, *(peer.as_number for peer in config.peers)):
        if not 1 <= number <= AS_MAX:
            raise InvalidInput(f"AS number {number} is outside 1..{AS_MAX}")
    for port in (config.listen_port, *(peer.port for peer in config.peers)):
        if not 1 <= port <= 65535:
            raise InvalidInput(f"BGP port {port} is outside 1..65535")
    for name in config.uplinks:
        if not _INTERFACE.fullmatch(name):
            raise InvalidInput(f"uplink {name!r} is no interface name")
    if not re.fullmatch(r'[^"\n\r]*', config.log_file):
        raise InvalidInput(f"log file {config.log_file!r} cannot be written into BIRD's syntax")
    addresses = [peer.address for peer in config.peers]
    for address in addresses:
        if address in (config.address.ip, config.address6 and config.address6.ip):
            raise InvalidInput(f"BGP peer {address} is this node itself")
        if address.version == 6 and config.address6 is None:
            raise InvalidInput(f"BGP peer {address} needs an IPv6 address of this node")


def _families(config: BirdInput) -> list[_Family]:
    found = []
    for version, hostlen, default, priorities in (
        (4, 32, "0.0.0.0/0", config.priorities),
        (6, 128, "::/0", config.priorities6),
    ):
        if version == 6 and config.address6 is None:
            continue
        blocks = {block for block in config.blocks if block.version == version}
        ordered = sorted(blocks, key=lambda one: (int(one.network_address), one.prefixlen))
        tunnelled = tuple(sorted({one for one in config.tunnelled if one.version == version}))
        found.append(_Family(version, hostlen, default, priorities, tuple(ordered), tunnelled))
    return found


def _head(config: BirdInput) -> str:
    levels = "{ info, remote, warning, error, auth, fatal, bug }"
    target = f'"{config.log_file}" 10000000 "{config.log_file}.1"' if config.log_file else "syslog"
    return f"""\
# BIRD 2 on a Tortie node. Written by tortie-node; edits are lost.
log {target} {levels};
router id {config.router_id};
graceful restart wait 10;

protocol device {{
  scan time 2;
}}
"""


def _filters(family: _Family) -> str:
    v, metrics = family.version, family.priorities
    middle = LOCAL_PREF_ZERO - metrics.bird
    inside = ", ".join(f"{one}+" for one in family.tunnelled)
    not_ours = f"  if net ~ [ {inside} ] then reject;\n" if inside else ""
    return f"""\
filter from_kernel{v} {{
  if dest != RTD_UNICAST then reject;
  if net = {family.default} && ifname !~ "cali*" then {{
    preference = 240;
    accept;
  }}
  if net.len != {family.hostlen} || ifname !~ "cali*" then reject;
  preference = 150;
  if defined(krt_metric) then {{
    if krt_metric < {metrics.bird} then preference = 250;
  }}
  accept;
}}

filter to_kernel{v} {{
{not_ours}  if source = RTS_BGP || source = RTS_STATIC then accept;
  reject;
}}

filter from_peer{v} {{
  preference = 100;
  if net.len = {family.hostlen} && bgp_local_pref > {middle} then preference = 200;
  accept;
}}

filter from_other_as{v} {{
  preference = 100;
  if net.len = {family.hostlen} && defined(bgp_med) then {{
    if bgp_med > 0 && bgp_med < {metrics.bird} then {{
      bgp_local_pref = {LOCAL_PREF_ZERO} - bgp_med;
      preference = 200;
    }}
  }}
  accept;
}}

{_export_filter(family)}"""


def _export_filter(family: _Family) -> str:
    v, metrics = family.version, family.priorities
    inside = ", ".join(f"{one}{{{one.prefixlen + 1},{family.hostlen}}}" for one in _wide(family))
    aggregated = f"\n  if net ~ [ {inside} ] then reject;" if inside else ""
    return f"""\
filter to_peer{v}
int our_metric;
{{
  our_metric = {metrics.normal};
  if source = RTS_STATIC then {{
    bgp_local_pref = {LOCAL_PREF_ZERO} - our_metric;
    bgp_med = our_metric;
    accept;
  }}
  if source != RTS_INHERIT || net.len != {family.hostlen} then reject;
  if defined(krt_metric) then {{
    if krt_metric > 0 then our_metric = krt_metric;
  }}
  bgp_local_pref = {LOCAL_PREF_ZERO} - our_metric;
  bgp_med = our_metric;
  if our_metric < {metrics.bird} then accept;{aggregated}
  accept;
}}
"""


def _wide(family: _Family) -> list[IPNetwork]:
    """Blocks that are an aggregate of something: a host route is not."""
    return [block for block in family.blocks if block.prefixlen < family.hostlen]


def _tables(family: _Family, config: BirdInput) -> str:
    v = family.version
    uplinks = ", ".join(f'"{name}"' for name in sorted(set(config.uplinks)))
    routes = "".join(f"  route {block} blackhole;\n" for block in _wide(family))
    return f"""\
protocol direct uplinks{v} {{
  ipv{v};
  interface {uplinks or '-"cali*", -"lo", "*"'};
}}

protocol kernel fib{v} {{
  learn;
  persist;
  scan time 2;
  merge paths off;
  metric {family.priorities.bird};
  graceful restart;
  ipv{v} {{
    import filter from_kernel{v};
    export filter to_kernel{v};
  }};
}}

protocol static blocks{v} {{
  ipv{v};
{routes}}}
"""


def _session(peer: Peer, config: BirdInput) -> str:
    """One neighbour.

    Of a mesh pair, the one whose address sorts higher *as text* opens (Calico's rule, so that a
    pair with a Calico node agrees): two connections that cross would abort a graceful restart.
    """
    v = peer.address.version
    own: IPv4Interface | IPv6Interface = config.address
    if v == 6 and config.address6 is not None:
        own = config.address6
    foreign = peer.as_number != config.as_number
    reach = "direct" if ip_network(peer.address).subnet_of(own.network) else "multihop"  # type: ignore[arg-type]  # same version by construction
    passive = "  passive on;\n" if peer.mesh and str(peer.address) > str(own.ip) else ""
    imported = "from_other_as" if peer.mesh and foreign else "from_peer"
    next_hop = "    next hop self;\n" if foreign else ""
    return f"""\
protocol bgp {peer.protocol} {{
  local {own.ip} port {config.listen_port} as {config.as_number};
  neighbor {peer.address} port {peer.port} as {peer.as_number};
  {reach};
{passive}  graceful restart on;
  graceful restart time 60;
  hold time 30;
  keepalive time 10;
  connect delay time 1;
  connect retry time 5;
  error wait time 1, 10;
  ipv{v} {{
    import filter {imported}{v};
    export filter to_peer{v};
{next_hop}  }};
}}
"""
