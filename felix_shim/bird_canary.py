"""Whether this node announces the test route that an annotation of its Node asks for. Pure.

Only one address, of a pool or of those set aside for documentation, can be asked for, and none for
longer than `LONGEST`: whoever may write a Node gets no other route announced by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from ipaddress import ip_network

from felix_shim.bgp_model import Canary
from libtortie.linux.port import IPNetwork
from libtortie.model.bgp_canary import ANNOTATION, LONGEST, parse_canary

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
        asked = parse_canary(text)
        if not any(_within(asked.cidr, net) for net in (*DOCUMENTATION, *pools)):
            raise ValueError(f"{asked.cidr} is of no pool, and not set aside for documentation")
    except ValueError as error:
        problems.append(f"annotation {ANNOTATION} is not obeyed: {error}")
        return ()
    return (Canary(asked.cidr, asked.metric),) if now < asked.until <= now + LONGEST else ()


def _within(cidr: IPNetwork, net: IPNetwork) -> bool:
    return cidr.version == net.version and cidr.subnet_of(net)  # type: ignore[arg-type]  # one version
