"""BIRD's functions and filters for one address family. Pure.

They never change with a migration; only kernel metrics move, and BIRD follows them:

* It learns workload host routes from the kernel and gives them a preference by metric; it gives
  routes from other nodes one by local preference. Order, best first: our raised route 250, another
  node's raised route 200, our normal route 150, anything else 100. BIRD compares preference
  before any BGP attribute, so this decides what is best here and hence what is announced.
* Local preference carries the metric, `2147483647 - metric`, as Calico's nodes do; MED carries it
  to eBGP neighbours, which never see local preference.
* Blocks are announced whole, as blackholes; host routes inside an own block only while raised.
* Pools of the overlay are announced like others, but never put into the kernel: there BIRD's metric
  would beat the overlay's, whose routes the agent puts in.
* Services are announced and never in the kernel: a blackhole there would refuse the node's own
  programs, whose route is looked up before the address is translated.

What leaves this node passes `ours`, which no BGPFilter can bypass: the uplinks' prefixes, the
node's own default route and pools with `disableBGPExport` are announced to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from felix_shim.bgp_filter import LOCAL_PREF_ZERO, Direction, function_name, render_function
from felix_shim.bgp_model import BirdInput, Peer
from felix_shim.routes import Priorities
from libtortie.linux.port import IPNetwork

CANARY, REACH, SERVICES = "canary", "reach", "services"


@dataclass(frozen=True)
class Family:
    """What differs between IPv4 and IPv6 in the text."""

    version: int
    config: BirdInput

    @property
    def hostlen(self) -> int:
        """The prefix length of one address."""
        return 32 if self.version == 4 else 128

    @property
    def default(self) -> str:
        """Everywhere."""
        return "0.0.0.0/0" if self.version == 4 else "::/0"

    @property
    def priorities(self) -> Priorities:
        """The metrics."""
        return self.config.priorities if self.version == 4 else self.config.priorities6

    @property
    def raised(self) -> int:
        """Only the local preference of a raised route is above this."""
        return LOCAL_PREF_ZERO - self.priorities.bird

    @cached_property
    def blocks(self) -> tuple[IPNetwork, ...]:
        """Own blocks that are an aggregate of something: a host route is not."""
        return tuple(one for one in self.of(self.config.blocks) if one.prefixlen < self.hostlen)

    def of(self, networks: Iterable[IPNetwork]) -> tuple[IPNetwork, ...]:
        """Those of the family, each once, in order."""
        found = {one for one in networks if one.version == self.version}
        return tuple(sorted(found, key=lambda one: (int(one.network_address), one.prefixlen)))


def families(config: BirdInput) -> list[Family]:
    """Those in which the node has an address."""
    return [Family(version, config) for version in (4, 6) if config.own(version) is not None]


def render_filters(family: Family) -> str:
    """All functions and filters of a family, before whatever uses them."""
    return "\n".join(
        [_kernel(family), _imports(family), _ours(family), _to_peer(family), *_bgp_filters(family)]
    )


def _kernel(family: Family) -> str:
    v, metrics = family.version, family.priorities
    foreign, tunnelled = family.of(family.config.pools), family.of(family.config.tunnelled)
    spared = ""
    if tunnelled:
        spared = f"\n  if net ~ {_below(tunnelled)} then reject;"
    if not family.config.cluster_routes and foreign:
        spared += f"\n  if source = RTS_BGP && net ~ {_below(foreign)} then reject;"
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
  if proto = "{CANARY}{v}" || proto = "{SERVICES}{v}" then reject;{spared}
  if source = RTS_BGP || source = RTS_STATIC then accept;
  reject;
}}
"""


def _imports(family: Family) -> str:
    v, metrics = family.version, family.priorities
    return f"""\
function from_med{v}()
{{
  if net.len = {family.hostlen} && defined(bgp_med) then {{
    if bgp_med > 0 && bgp_med < {metrics.bird} then
      bgp_local_pref = {LOCAL_PREF_ZERO} - bgp_med;
  }}
}}

function settle{v}()
{{
  preference = 100;
  if net.len = {family.hostlen} && bgp_local_pref > {family.raised} then preference = 200;
}}
"""


def _ours(family: Family) -> str:
    v, metrics = family.version, family.priorities
    hidden = family.of(family.config.hidden)
    never = f"  if net ~ {_below(hidden)} then reject;\n" if hidden else ""
    return f"""\
function ours{v}(bool relayed)
int our_metric;
{{
  if source = RTS_DEVICE || proto = "{REACH}{v}" then reject;
{never}  if source = RTS_BGP then {{
    if !relayed then reject;
    if bgp_local_pref >= {LOCAL_PREF_ZERO - metrics.normal} then
      bgp_med = {LOCAL_PREF_ZERO} - bgp_local_pref;
  }} else {{
    if net = {family.default} then reject;
    our_metric = {metrics.normal};
    if defined(krt_metric) then {{
      if krt_metric > 0 then our_metric = krt_metric;
    }}
    bgp_local_pref = {LOCAL_PREF_ZERO} - our_metric;
    bgp_med = our_metric;
  }}
{_tags(family)}}}
"""


def _tags(family: Family) -> str:
    found = [one for one in family.config.tagged if one.cidr.version == family.version]
    lines = []
    for tagged in sorted(found, key=lambda one: (int(one.cidr.network_address), one.cidr)):
        adds = " ".join(
            f"bgp_{'' if len(one) == 2 else 'large_'}community.add(({', '.join(map(str, one))}));"
            for one in tagged.communities
        )
        if adds:
            lines.append(f"  if net ~ {tagged.cidr} then {{ {adds} }}\n")
    return "".join(lines)


def _to_peer(family: Family) -> str:
    v = family.version
    pools = family.of(family.config.pools)
    ours = f"bgp_path.len = 0 || net ~ {_below(pools)}" if pools else "bgp_path.len = 0"
    inside = [f"{one}{{{one.prefixlen + 1},{family.hostlen}}}" for one in family.blocks]
    aggregated = f"  if net ~ [ {', '.join(inside)} ] then reject;\n" if inside else ""
    return f"""\
function to_peer{v}()
{{
  if source = RTS_STATIC then accept;
  if source = RTS_BGP then {{
    if {ours} then accept;
    reject;
  }}
  if source != RTS_INHERIT || net.len != {family.hostlen} then reject;
  if bgp_local_pref > {family.raised} then accept;
{aggregated}  accept;
}}
"""


def _bgp_filters(family: Family) -> list[str]:
    used = {name for peer in family.config.peers if not peer.closed for name in peer.filters}
    return [
        render_function(one, direction, family.version)
        for one in sorted(family.config.filters, key=lambda one: one.name)
        for direction in Direction
        if one.name in used and one.of(direction, family.version)
    ]


def calls(peer: Peer, family: Family, direction: Direction, same_as: bool) -> str:
    """The calls of a peer's own filters, in its order; a filter without rules is not called."""
    known = {one.name: one for one in family.config.filters}
    argument = "true" if same_as else "false"
    return "".join(
        f"      {function_name(name, direction, family.version)}({argument});\n"
        for name in peer.filters
        if name in known and known[name].of(direction, family.version)
    )


def _below(networks: Iterable[IPNetwork]) -> str:
    """A set of networks and all that is within them."""
    return f"[ {', '.join(f'{one}+' for one in networks)} ]"
