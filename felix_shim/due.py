"""What the agent has to do, by kind. No I/O, no decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from felix_shim.model import EndpointId
from libtortie.linux.port import IPNetwork

LISTEN, OWNERS, RAISES, NUDGE, FLOWS = "listen", "owners", "raises", "nudge", "flows"
"""Chores beside those of the lanes (`outlets.py`)."""


@dataclass(slots=True)
class Due:
    """Work to do: endpoints to settle or to begin, addresses whose routes to compare, chores.

    `strangers` are addresses whose route appeared although no endpoint has them: a CNI ADD
    writes the route just before the endpoint, so they are to be looked at again later.
    """

    newcomers: set[EndpointId] = field(default_factory=set)
    strangers: set[IPNetwork] = field(default_factory=set)
    endpoints: set[EndpointId] = field(default_factory=set)
    destinations: set[IPNetwork] = field(default_factory=set)
    chores: set[str] = field(default_factory=set)
