"""A router's configuration in its vendor's words. Pure.

Each text takes the pools' routes (blocks and host routes), prefers a raised host route by local
preference, and takes nothing else. What the router tells the nodes is not ours to say: nothing, by
these texts. A password is a placeholder that says where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from libtortie.model.bgp_spec import BGP_PORT
from tortiectl.tor_config import Neighbour, Tor

LOCAL_PREFERENCE = 200
"""More than the 100 that every vendor gives by default."""
KEEPALIVE, HOLD = 10, 30


def render(vendor: str, tors: tuple[Tor, ...]) -> str:
    """The text for one router's addresses."""
    return "\n".join(_VENDORS[vendor](tor) for tor in tors)


def _about(tor: Tor, sign: str) -> list[str]:
    return [
        f"{sign} Tortie, IPv{tor.version}: routes of the cluster's pools from its nodes.",
        f"{sign} A host route with {tor.raised} is where a VM is now: it must win.",
    ]


def _bird(tor: Tor) -> str:
    v = tor.version
    pools = ", ".join(f"{net}{{{net.prefixlen},{tor.hostlen}}}" for net in tor.pools)
    raised = f"defined(bgp_med) && bgp_med = {tor.elevated}"
    if tor.community:
        raised = f"({tor.community.replace(':', ', ')}) ~ {_bird_list(tor)}"
    lines = [
        *_about(tor, "#"),
        f"filter tortie_in{v} {{",
        f"  if net !~ [ {pools} ] then reject;",
        f"  if net.len = {tor.hostlen} && {raised} then bgp_local_pref = {LOCAL_PREFERENCE};",
        "  accept;",
        "}",
    ]
    for one in tor.neighbours:
        lines += [
            "",
            f"protocol bgp tortie{v}_{re.sub('[^a-zA-Z0-9]', '_', one.node)} {{",
            f"  local {tor.address} as {tor.as_number};",
            f"  neighbor {one.address} port {one.port} as {one.as_number};",
            *([f"  multihop {one.hops};", "  ttl security on;"] if one.hops else []),
            *([f'  password "<{one.secret}>";'] if one.secret else []),
            f"  hold time {HOLD};",
            f"  keepalive time {KEEPALIVE};",
            "  graceful restart on;",
            f"  ipv{v} {{ import filter tortie_in{v}; export none; }};",
            "}",
        ]
    return _text(lines)


def _bird_list(tor: Tor) -> str:
    return "bgp_community" if tor.community.count(":") == 1 else "bgp_large_community"


def _policy_lists(tor: Tor, *, dialect: str) -> Iterator[str]:
    """Prefix lists and route map as FRR, EOS and NX-OS have them, which differ little."""
    family, v = ("ip", 4) if tor.version == 4 else ("ipv6", 6)
    for number, net in enumerate(tor.pools, 1):
        seq = f"{family} prefix-list TORTIE{v}-POOLS seq {10 * number}"
        yield f"{seq} permit {net} le {tor.hostlen}"
    for number, net in enumerate(tor.pools, 1):
        seq = f"{family} prefix-list TORTIE{v}-HOSTS seq {10 * number}"
        yield f"{seq} permit {net} {'ge' if dialect != 'nxos' else 'eq'} {tor.hostlen}"
    community = ""
    if tor.community:
        large = "large-" if tor.community.count(":") == 2 else ""
        community = f"match {large}community TORTIE-RAISED"
        yield _community_list(tor, dialect, large)
    yield f"route-map TORTIE{v}-IN permit 10"
    yield f"  match {family} address prefix-list TORTIE{v}-HOSTS"
    yield f"  {community or f'match metric {tor.elevated}'}"
    yield f"  set local-preference {LOCAL_PREFERENCE}"
    yield f"route-map TORTIE{v}-IN permit 20"
    yield f"  match {family} address prefix-list TORTIE{v}-POOLS"
    yield f"route-map TORTIE{v}-OUT deny 10"


def _community_list(tor: Tor, dialect: str, large: str) -> str:
    if dialect == "frr":
        return f"bgp {large}community-list standard TORTIE-RAISED permit {tor.community}"
    if dialect == "eos":
        return f"ip {large}community-list TORTIE-RAISED permit {tor.community}"
    return f"ip {large}community-list standard TORTIE-RAISED permit {tor.community}"


def _router(
    tor: Tor, step: str, *, port: str, hops: str, password: str, unicast: str
) -> Iterator[str]:
    """`router bgp`'s neighbours as FRR and EOS have them, which differ in a few words."""
    v = tor.version
    for one in tor.neighbours:
        at = f"{step}neighbor {one.address}"
        yield f"{at} remote-as {one.as_number}"
        yield f"{at} description tortie {one.node}"
        yield f"{at} timers {KEEPALIVE} {HOLD}"
        if one.port != BGP_PORT:
            yield f"{at} {port} {one.port}"
        if one.hops:
            yield f"{at} {hops} {one.hops}"
        if one.secret:
            yield f"{at} {password} <{one.secret.replace(' ', '-')}>"
    yield f"{step}address-family ipv{v}{unicast}"
    for one in tor.neighbours:
        at = f"{2 * step}neighbor {one.address}"
        yield f"{at} activate"
        yield f"{at} route-map TORTIE{v}-IN in"
        yield f"{at} route-map TORTIE{v}-OUT out"


def _frr(tor: Tor) -> str:
    lines = [*_about(tor, "!"), *_policy_lists(tor, dialect="frr"), f"router bgp {tor.as_number}"]
    lines.append("  no bgp default ipv4-unicast")
    hops = "ttl-security hops"
    lines += _router(tor, "  ", port="port", hops=hops, password="password", unicast=" unicast")
    return _text([*lines, "  exit-address-family", "exit"])


def _arista(tor: Tor) -> str:
    lines = [*_about(tor, "!"), *_policy_lists(tor, dialect="eos"), f"router bgp {tor.as_number}"]
    port, hops = "transport remote-port", "ttl maximum-hops"
    lines += _router(tor, "   ", port=port, hops=hops, password="password 0", unicast="")
    return _text([*lines, "!"])


def _nxos(tor: Tor) -> str:
    v = tor.version
    lines = [*_about(tor, "!"), "feature bgp", *_policy_lists(tor, dialect="nxos")]
    lines.append(f"router bgp {tor.as_number}")
    for one in tor.neighbours:
        lines += [
            f"  neighbor {one.address}",
            f"    remote-as {one.as_number}",
            f"    description tortie {one.node}",
            f"    timers {KEEPALIVE} {HOLD}",
            *_opener(one, "    ! "),
            *([f"    ttl-security hops {one.hops}"] if one.hops else []),
            *([f"    password 0 <{one.secret.replace(' ', '-')}>"] if one.secret else []),
            f"    address-family ipv{v} unicast",
            f"      route-map TORTIE{v}-IN in",
            f"      route-map TORTIE{v}-OUT out",
        ]
    return _text(lines)


def _juniper(tor: Tor) -> str:
    v, family = tor.version, "inet" if tor.version == 4 else "inet6"
    hosts = [f"route-filter {net} prefix-length-range /{tor.hostlen}-/{tor.hostlen};"
             for net in tor.pools]  # fmt: skip
    pools = [f"route-filter {net} orlonger;" for net in tor.pools]
    raised = "community tortie-raised;" if tor.community else f"metric {tor.elevated};"
    large = "large:" if tor.community.count(":") == 2 else ""
    lines = [*_about(tor, "#"), f"routing-options {{ autonomous-system {tor.as_number}; }}"]
    lines.append("policy-options {")
    if tor.community:
        lines.append(f"    community tortie-raised members {large}{tor.community};")
    lines += [
        f"    policy-statement tortie{v}-in {{",
        "        term raised {",
        f"            from {{ family {family}; {raised}",
        *(f"                {one}" for one in hosts),
        "            }",
        f"            then {{ local-preference {LOCAL_PREFERENCE}; accept; }}",
        "        }",
        "        term pools {",
        f"            from {{ family {family};",
        *(f"                {one}" for one in pools),
        "            }",
        "            then accept;",
        "        }",
        "        then reject;",
        "    }",
        f"    policy-statement tortie{v}-out {{ then reject; }}",
        "}",
        "protocols {",
        "    bgp {",
    ]
    for one in tor.neighbours:
        lines += _juniper_group(tor, one)
    return _text([*lines, "    }", "}"])


def _opener(one: Neighbour, sign: str) -> list[str]:
    """For routers that cannot be told another port: then only the node can open the session."""
    return [f"{sign}listens on port {one.port}: let it open the session"] * (one.port != BGP_PORT)


def _juniper_group(tor: Tor, one: Neighbour) -> list[str]:
    v, family = tor.version, "inet" if tor.version == 4 else "inet6"
    kind = "internal" if one.as_number == tor.as_number else "external"
    return [
        f"        group tortie{v}-{one.node} {{",
        f"            type {kind};",
        f"            local-address {tor.address};",
        f"            family {family} {{ unicast; }}",
        f"            import tortie{v}-in;",
        f"            export tortie{v}-out;",
        f"            hold-time {HOLD};",
        *([f'            authentication-key "<{one.secret}>";'] if one.secret else []),
        *([f"            multihop {{ ttl {one.hops}; }}"] if one.hops > 1 else []),
        *_opener(one, "            # "),
        f"            neighbor {one.address} {{ peer-as {one.as_number}; }}",
        "        }",
    ]


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


_VENDORS: dict[str, Callable[[Tor], str]] = {
    "bird": _bird,
    "frr": _frr,
    "arista": _arista,
    "cisco-nxos": _nxos,
    "juniper": _juniper,
}
VENDORS = tuple(_VENDORS)
