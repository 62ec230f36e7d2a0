"""Who may speak to nodes' ends of the overlay: the cluster's nodes, and nobody else. Pure.

VXLAN has no password: whoever reaches the port can put packets into the overlay, with any
address inside. Workloads may not send any, unless FelixConfiguration says so; what is for a node's
own end is dropped there all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from felix_shim.failsafe import NODES, UDP
from felix_shim.overlay_settings import DEFAULT_PORT, TunnelSettings
from felix_shim.rules import DROP, Chain, InSet, IsProtocol, OnPort, Plain, Rule, Side
from libtortie.model.policy import PortRange

ENCAPSULATION = "encapsulation"
"""The chain that whatever workloads send passes, before their policies."""
NO_TUNNEL = TunnelSettings()
_IPIP = 4


@dataclass(frozen=True, slots=True)
class OpenTunnel:
    """A tunnel's port, and the families in which this node has one."""

    port: int
    versions: tuple[int, ...]


def tunnel_in(tunnel: OpenTunnel) -> Chain:
    """What comes to the port: no policy of the node's own closes it to nodes, or opens it."""
    here = _to_port(tunnel)
    known = (InSet(Side.SOURCE, NODES[version]) for version in tunnel.versions)
    return (*(Rule((*here, one), Plain.ACCEPT) for one in known), Rule(here, DROP.verdict))


def tunnel_out(tunnel: OpenTunnel) -> Chain:
    """What goes to other nodes' ports passes; and goes as it is: a workload's packet to one must
    not get there with the address of its node, which is let in."""
    known = (InSet(Side.DESTINATION, NODES[version]) for version in tunnel.versions)
    return tuple(Rule((*_to_port(tunnel), one), Plain.ACCEPT) for one in known)


def no_encapsulation(settings: TunnelSettings = NO_TUNNEL) -> Chain:
    """Encapsulation is the nodes' to speak: a workload's could enter the overlay as a node's. The
    usual port is closed though the overlay has another: it may be the underlay's own."""
    ipip = Rule((IsProtocol(_IPIP),), DROP.verdict)
    vxlan = Rule(_to_ports(DEFAULT_PORT, settings.port), DROP.verdict)
    closed = ((ipip, settings.workloads_ipip), (vxlan, settings.workloads_vxlan))
    return tuple(rule for rule, allowed in closed if not allowed)


def _to_port(tunnel: OpenTunnel) -> tuple[IsProtocol, OnPort]:
    return _to_ports(tunnel.port)


def _to_ports(*ports: int) -> tuple[IsProtocol, OnPort]:
    ranges = tuple(PortRange(port, port) for port in sorted(set(ports)))
    return IsProtocol(UDP), OnPort(Side.DESTINATION, ranges)
