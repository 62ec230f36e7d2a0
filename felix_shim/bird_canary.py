"""A test route that somebody asked this node to announce, by an annotation of its Node. Pure.

`tortie.io/bgp-canary` holds `{"cidr": "198.51.100.7/32", "metric": 512, "until": <RFC 3339>}`. It
ends by itself: who asked may be gone. Only one address, of a pool or of those set aside for
documentation, can be asked for, and none for longer than `LONGEST`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from ipaddress import ip_network

from felix_shim.bgp_model import Canary
from libtortie.linux.port import IPNetwork
from libtortie.model.plain_ip import plain_network
from libtortie.model.times import parse_rfc3339

ANNOTATION = "tortie.io/bgp-canary"
LONGEST = timedelta(minutes=10)
DOCUMENTATION = tuple(
    map(ip_network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"))
)


def canaries_of(
    annotations: Mapping[str, str],
    pools: Iterable[IPNetwork],
    now: datetime,
    problems: list[str],
) -> tuple[Canary, ...]:
    """What is asked for now; what is asked for and cannot be is a problem."""
    text = annotations.get(ANNOTATION)
    if not text:
        return ()
    try:
        canary, until = _parsed(text)
        if not any(_within(canary.cidr, net) for net in (*DOCUMENTATION, *pools)):
            raise ValueError(f"{canary.cidr} is of no pool, and not set aside for documentation")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problems.append(f"annotation {ANNOTATION} is not obeyed: {error}")
        return ()
    return (canary,) if now < until <= now + LONGEST else ()


def _parsed(text: str) -> tuple[Canary, datetime]:
    found = json.loads(text)
    cidr = plain_network(str(found["cidr"]), strict=True)
    metric = found["metric"]
    if cidr.prefixlen != cidr.max_prefixlen:
        raise ValueError(f"{cidr} is not one address")
    if not isinstance(metric, int) or not 1 <= metric < 1 << 31:
        raise ValueError(f"metric {metric!r} is no metric")
    return Canary(cidr, metric), parse_rfc3339(str(found["until"]))


def _within(cidr: IPNetwork, net: IPNetwork) -> bool:
    return cidr.version == net.version and cidr.subnet_of(net)  # type: ignore[arg-type]  # one version
