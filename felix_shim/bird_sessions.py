"""BIRD's protocols: what it knows of itself, the kernel, and each of its neighbours. Pure.

Routes go into the kernel with one fixed metric between raised and normal, never one per route:
BIRD 2.0.12 would add the second route and leave the first behind.

Recursive next hops (a peer behind a router) are resolved in BIRD's table, not the kernel's: so
uplink prefixes come from `direct`, and the node's own default route is learned too.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from ipaddress import ip_network

from felix_shim.bgp_filter import Direction
from felix_shim.bgp_model import Bfd, BirdInput, LogLevel, NextHop, Peer
from felix_shim.bird_filters import CANARY, REACH, SERVICES, Family, calls

RESTART_SECONDS = 60
"""How long a neighbour whose connection broke keeps its routes."""
HOLD_SECONDS, KEEPALIVE_SECONDS = 30, 10
_ALL = ("debug", "trace", "info", "remote", "warning", "error", "auth", "fatal", "bug")
_FROM = {
    LogLevel.TRACE: 0,
    LogLevel.DEBUG: 0,
    LogLevel.INFO: 2,
    LogLevel.WARNING: 4,
    LogLevel.ERROR: 5,
    LogLevel.FATAL: 7,
}
_DEBUG = {
    LogLevel.TRACE: "debug protocols all;\n",
    LogLevel.DEBUG: "debug protocols { states, events };\n",
}


def render_head(config: BirdInput) -> str:
    """Log, router id, and what is of neither family."""
    levels = ", ".join(_ALL[_FROM[config.log_level] :])
    target = f'"{config.log_file}" 10000000 "{config.log_file}.1"' if config.log_file else "syslog"
    return f"""\
# BIRD 2 on a Tortie node. Written by tortie-node; edits are lost.
log {target} {{ {levels} }};
{_DEBUG.get(config.log_level, "")}router id {config.router_id};
graceful restart wait 10;

protocol device {{
  scan time 2;
}}
{_bfd(config.bfd)}"""


def _bfd(bfd: Bfd | None) -> str:
    """Sessions of the subnet and sessions through routers have their timers from two places."""
    if bfd is None:
        return ""
    timers = f"interval {bfd.interval_ms} ms; multiplier {bfd.multiplier};"
    return f"""
protocol bfd {{
  interface "*" {{ {timers} }};
  multihop {{ {timers} }};
}}
"""


def render_tables(family: Family) -> str:
    """The protocols between BIRD's table, the kernel and what is configured."""
    v, config = family.version, family.config
    services = [one for one in family.of(config.services) if one not in family.blocks]
    parts = [
        f"""\
protocol direct uplinks{v} {{
  ipv{v};
  interface {_uplinks(config)};
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
""",
        _static(f"blocks{v}", v, [f"{one} blackhole" for one in family.blocks]),
    ]
    optional = {
        f"{SERVICES}{v}": [f"{one} blackhole" for one in services],
        f"{REACH}{v}": _reached(family),
        f"{CANARY}{v}": [
            f"{one.cidr} blackhole {{ krt_metric = {one.metric}; }}"
            for one in sorted(config.canaries, key=lambda one: str(one.cidr))
            if one.cidr.version == v
        ],
    }
    parts += [_static(name, v, routes) for name, routes in optional.items() if routes]
    return "\n".join(parts)


def _static(name: str, version: int, routes: list[str]) -> str:
    lines = "".join(f"  route {route};\n" for route in routes)
    return f"protocol static {name} {{\n  ipv{version};\n{lines}}}\n"


def _uplinks(config: BirdInput) -> str:
    """Patterns of links; the first that matches decides."""
    ignored = sorted(set(config.ignored))
    if not config.uplinks:
        return ", ".join(f'-"{one}"' for one in ("cali*", "kube-ipvs*", "lo", *ignored)) + ', "*"'
    named = [
        name
        for name in sorted(set(config.uplinks))
        if not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    return ", ".join(f'"{name}"' for name in named) or '-"*"'


def _reached(family: Family) -> list[str]:
    """Host routes to neighbours that are behind a gateway; of two the first by name counts."""
    found = {
        peer.address: peer.reachable_by
        for peer in sorted(family.config.peers, key=lambda one: one.protocol, reverse=True)
        if peer.reachable_by is not None and peer.address.version == family.version
    }
    return [f"{one}/{family.hostlen} via {found[one]}" for one in sorted(found, key=int)]


def render_session(peer: Peer, family: Family) -> str:
    """One neighbour."""
    v, config = family.version, family.config
    own_as = peer.local_as or config.as_number
    same_as = peer.as_number == own_as
    lines = [
        f"local {_local(peer, family)}port {config.listen_port} as {own_as}",
        f"neighbor {peer.address} port {peer.port} as {peer.as_number}",
        *_transport(peer, family),
        *_timers(peer),
    ]
    if peer.own_as_allowed:
        lines.append(f"allow local as {peer.own_as_allowed}")
    if peer.reflect:
        lines += ["rr client", f"rr cluster id {config.cluster_id}"]
    if config.bfd is not None and (_local(peer, family) or _is_near(peer, family)):
        lines.append("bfd on")  # BIRD refuses it for a distant peer without an own address
    options = "".join(f"  {line};\n" for line in lines)
    return f"""\
protocol bgp {peer.protocol} {{
{options}  ipv{v} {{
{_channel(peer, family, same_as)}  }};
}}
"""


def _local(peer: Peer, family: Family) -> str:
    if peer.source is not None:
        return f"{peer.source} "
    own = family.config.own(family.version)
    assert own is not None, "the family is rendered because there is one"
    return f"{own.ip} " if peer.from_node_address or family.config.bind_node_address else ""


def _is_near(peer: Peer, family: Family) -> bool:
    """Whether it is on a link of ours, so that its address needs no way to it. A workload is not:
    no prefix of its link's has it, but the host route that BIRD learns."""
    if peer.interface:
        return False
    own = family.config.own(family.version)
    near = own is not None and ip_network(peer.address).subnet_of(own.network)  # type: ignore[arg-type]  # same version by construction
    return near and peer.reachable_by is None and peer.ttl_hops <= 1


def _transport(peer: Peer, family: Family) -> list[str]:
    """How the two get at each other.

    Of a mesh pair, the one whose address sorts higher *as text* opens (Calico's rule, so that a
    pair with a Calico node agrees): two connections that cross would abort a graceful restart.
    """
    own = family.config.own(family.version)
    far = f"multihop {peer.ttl_hops}" if peer.ttl_hops else "multihop"
    found = ["direct" if _is_near(peer, family) else far]
    if peer.ttl_hops:
        found.append("ttl security on")
    if family.config.bind_node_address:
        found.append("strict bind on")
        if peer.source is not None:
            found.append("free bind on")  # its link may come later than the session
    if peer.password:
        found.append(f'password "{peer.password}"')
    if own is not None and (peer.passive or (peer.mesh and str(peer.address) > str(own.ip))):
        found.append("passive on")
    return found


def _timers(peer: Peer) -> list[str]:
    restart = RESTART_SECONDS if peer.restart_seconds is None else peer.restart_seconds
    keepalive = peer.keepalive_seconds or KEEPALIVE_SECONDS
    return [
        "graceful restart on",
        f"graceful restart time {restart}",
        f"hold time {max(HOLD_SECONDS, 3 * keepalive)}",
        f"keepalive time {keepalive}",
        "connect delay time 1",
        "connect retry time 5",
        "error wait time 1, 10",
    ]


def _channel(peer: Peer, family: Family, same_as: bool) -> str:
    v = family.version
    if peer.closed:
        return "    import none;\n    export none;\n"
    taken = "reject" if peer.interface else f"settle{v}();\n      accept"
    heard = f"      from_med{v}();\n" if peer.of_cluster and not same_as else ""
    if peer.interface:
        heard = "      bgp_local_pref = 100;\n"  # a workload cannot say what is raised
    relayed = "true" if peer.relay else "false"
    return f"""\
    import filter {{
{heard}{calls(peer, family, Direction.IMPORT, same_as)}      {taken};
    }};
    export filter {{
      ours{v}({relayed});
{calls(peer, family, Direction.EXPORT, same_as)}      to_peer{v}();
    }};
{_next_hop(peer, same_as)}"""


def _next_hop(peer: Peer, same_as: bool) -> str:
    if peer.next_hop is NextHop.KEEP:
        return "    next hop keep;\n"
    if peer.next_hop is NextHop.SELF or not same_as:
        return "    next hop self;\n"
    return ""
