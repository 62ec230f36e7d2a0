"""The annotation of a Node that asks its agent to announce a test route. Pure.

`tortie.io/bgp-canary` holds `{"cidr": "198.51.100.7/32", "metric": 512, "until": <RFC 3339>}`: it
ends by itself, for who asked may be gone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Network, IPv6Network

from libtortie.model.plain_ip import plain_network
from libtortie.model.times import parse_rfc3339, rfc3339

ANNOTATION = "tortie.io/bgp-canary"
LONGEST = timedelta(minutes=10)
"""No agent obeys one that would last longer."""


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """One address as a network, the metric it is announced with, and when that ends."""

    cidr: IPv4Network | IPv6Network
    metric: int
    until: datetime

    def to_text(self) -> str:
        """The annotation's value."""
        body = {"cidr": str(self.cidr), "metric": self.metric, "until": rfc3339(self.until)}
        return json.dumps(body)


def parse_canary(text: str) -> CanaryRequest:
    """What an annotation asks for. Raises ValueError."""
    try:
        found = json.loads(text)
        cidr, metric = plain_network(str(found["cidr"]), strict=True), found["metric"]
        until = parse_rfc3339(str(found["until"]))
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"want cidr, metric and until: {type(error).__name__} {error}") from error
    if cidr.prefixlen != cidr.max_prefixlen:
        raise ValueError(f"{cidr} is not one address")
    if type(metric) is not int or not 1 <= metric < 1 << 31:
        raise ValueError(f"metric {metric!r} is no metric")
    return CanaryRequest(cidr, metric, until)
