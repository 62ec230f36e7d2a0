"""Ports of the node that no policy can close, and the rules that keep them open. Pure.

What FelixConfiguration says (`failsafeInboundHostPorts`, `failsafeOutboundHostPorts`), and ports
that only the cluster's own nodes may use with each other. A refused policy, a mistake in one, or
one that denies everything leaves a node that can still be reached, by its administrator, by the
datastore and by the routing protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from felix_shim.policy_compile import halves, in_nets, on_port
from felix_shim.rules import (
    Chain,
    ConnState,
    HasState,
    InSet,
    IsIcmp,
    IsProtocol,
    Match,
    Plain,
    Rule,
    SetKey,
    SetKind,
    Side,
)
from libtortie.model.felix_values import HostPort
from libtortie.model.policy import ICMPV6, PROTOCOLS, PortRange

TCP, UDP = PROTOCOLS["TCP"], PROTOCOLS["UDP"]
NODES = {version: SetKey(SetKind.NODES, version, "nodes") for version in (4, 6)}
"""The sets of the cluster's nodes' addresses."""
MIGRATION_PORTS = PortRange(49152, 49153)
"""KubeVirt's migration ports (TCP): the stream of the guest's state, and that of its disks."""
_IPV6_NEEDS = (130, 131, 132, 133, 134, 135, 136, 143)
"""ICMPv6: multicast listener query, report, done and version 2 report; router and neighbour
solicitation and advertisement. Without them not even a failsafe port can be reached."""


def _ports(protocol: int, *numbers: int) -> tuple[HostPort, ...]:
    return tuple(HostPort(protocol, PortRange(number, number)) for number in numbers)


INBOUND = (*_ports(TCP, 22, 179, 2379, 2380, 5473, 6443, 6666, 6667), *_ports(UDP, 68))
OUTBOUND = (*_ports(TCP, 179, 2379, 2380, 5473, 6443, 6666, 6667), *_ports(UDP, 53, 67))
"""Calico's defaults: ssh, BGP, etcd, Typha, the API, etcd of kubeadm's self-hosting; DHCP, DNS."""


@dataclass(frozen=True, slots=True)
class Failsafe:
    """All of it. `between_nodes` are TCP ports, open in both directions."""

    inbound: tuple[HostPort, ...] = INBOUND
    outbound: tuple[HostPort, ...] = OUTBOUND
    between_nodes: tuple[PortRange, ...] = ()

    @property
    def sets(self) -> frozenset[SetKey]:
        """The sets that the rules look into."""
        return frozenset(NODES.values()) if self.between_nodes else frozenset()


def failsafe_chains(failsafe: Failsafe) -> dict[str, Chain]:
    """The rules, for before and for behind conntrack, which knows answers for what they are.

    But not of connections that are older than it: a BGP session from before the node's first rules,
    where `nf_conntrack_tcp_loose` is 0. Their packets are invalid, and begin no connection.
    """
    needs = tuple(Rule((IsProtocol(ICMPV6), IsIcmp(kind)), Plain.ACCEPT) for kind in _IPV6_NEEDS)
    peers = failsafe.between_nodes
    asked_in = _to(failsafe.inbound, peers, far=Side.SOURCE, port=Side.DESTINATION)
    asked_out = _to(failsafe.outbound, peers, far=Side.DESTINATION, port=Side.DESTINATION)
    answers_in = _to(failsafe.outbound, peers, far=Side.SOURCE, port=Side.SOURCE)
    answers_out = _to(failsafe.inbound, peers, far=Side.DESTINATION, port=Side.SOURCE)
    return {
        "failsafe-in": asked_in + _of_older(answers_in) + needs,
        "failsafe-out": asked_out + _of_older(answers_out) + needs,
        "failsafe-in-raw": asked_in + answers_in + needs,
        "failsafe-out-raw": asked_out + answers_out + needs,
    }


def _of_older(answers: Chain) -> Chain:
    invalid = HasState((ConnState.INVALID,))
    return tuple(Rule((invalid, *rule.matches), rule.verdict) for rule in answers)


def _to(ports: Iterable[HostPort], peers: tuple[PortRange, ...], *, far: Side, port: Side) -> Chain:
    """Rules that let packets with these ports pass, from or to the `far` end they are open to."""
    rules = []
    for one in ports:
        matches: tuple[Match, ...] = (IsProtocol(one.protocol), on_port(port, (one.ports,)))
        if one.net is not None:
            matches += (in_nets(far, one.net.version, halves(one.net)),)
        rules.append(Rule(matches, Plain.ACCEPT))
    for version in NODES if peers else ():
        matches = (InSet(far, NODES[version]), IsProtocol(TCP), on_port(port, peers))
        rules.append(Rule(matches, Plain.ACCEPT))
    return tuple(rules)
