"""Everything the reconciler can do to the world, as values and functions it is given.

Functions that may take longer than a moment return a lane's result and are called on a lane;
the others only pass a desired state on to a thread of their own and return at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from felix_shim.bgp_model import BirdInput
from felix_shim.drivers.announcements import Watched
from felix_shim.drivers.routetable import RouteTable
from felix_shim.drivers.sysctls import Wires
from felix_shim.exchange import Exchange
from felix_shim.herald import Addressee, Tidings
from felix_shim.lanes import Job, Lane
from felix_shim.model import Endpoint, EndpointId
from felix_shim.overlay import Overlay
from felix_shim.owners import Ownership
from felix_shim.policy import PolicySet
from felix_shim.policy_desk import Check
from felix_shim.state import Memory
from libtortie.linux.port import IPInterface
from libtortie.model.ipam import IPAddress

POLICY, STATUS, BIRD, MEMORY, SURVEY, NODE = "policy", "status", "bird", "memory", "survey", "node"
OVERLAY = "overlay"
LANES = (OVERLAY, POLICY, STATUS, BIRD, MEMORY, SURVEY, NODE)
POLITE = (POLICY, STATUS, MEMORY)
"""Lanes that are busy whenever requests are, and let these pass."""


@dataclass(frozen=True, slots=True)
class Outlets:
    """The reconciler's hands.

    On their lanes: `apply_policy(rules, wires)` returns interfaces whose sysctls could not be
    set; `write_status(bodies, resyncs)` makes the directory hold exactly these files, all of which
    it looks at when `resyncs` is another number than before; `run_bird`
    (None: there is no BIRD) has BIRD run with this input; `save(memory)`; `survey()` posts a
    `Surveyed`; `register(addresses)` sees to this node's Node resource.

    At once: `listen`, `nudge`, `own`, `warn(endpoint, text)` about its pod, and
    `ask_raises(addresses, urgent)`, whose answers come as `RaisesSeen` now if urgent, and again
    and again while there are addresses. `exchange` says whose connections go where (None: agents
    don't talk to each other).

    `welcome(endpoints)`, on the policy lane before the rules, sees that none of them begins with
    the connections of who had its address before.
    """

    routes: RouteTable
    lanes: Mapping[str, Lane]
    apply_policy: Callable[[PolicySet, Wires], frozenset[str]]
    write_status: Callable[[Mapping[str, str], int], None]
    run_bird: Callable[[BirdInput], None] | None
    save: Callable[[Memory], None]
    survey: Job
    register: Callable[[tuple[IPInterface, ...]], None]
    listen: Callable[[Mapping[EndpointId, Watched]], None]
    nudge: Callable[[], None]
    own: Callable[[Mapping[EndpointId, Ownership]], None]
    warn: Callable[[Endpoint, str], None]
    ask_raises: Callable[[frozenset[IPAddress], bool], None]
    exchange: Callable[[Exchange], None] | None = None
    tell: Callable[[Mapping[Addressee, Tidings]], None] | None = None
    """At once: which nodes are to know first that a VM has come."""
    welcome: Callable[[tuple[Endpoint, ...]], None] | None = None
    closed: Callable[[Endpoint, str], None] | None = None
    """At once: a policy that cannot be obeyed has closed an endpoint."""
    lay_overlay: Callable[[tuple[Overlay, ...], object], None] | None = None
    """On its lane: both families' overlays are these; all is read again when the second argument
    is another one than before."""
    want_passwords: Callable[[frozenset[tuple[str, str]]], None] | None = None
    """At once: which keys of which Secrets BGP's passwords are in."""
    want_services: Callable[[], None] | None = None
    """At once: services' addresses matter to BGP."""
    press: Callable[[], None] | None = None
    """At once: the route of a VM that has come waits for the policy lane."""
    check_rules: Check | None = None
    """On the policy lane: why the kernel would refuse these; empty if it would not."""
