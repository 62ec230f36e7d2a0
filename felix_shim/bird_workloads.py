"""Workloads of this node as its BGP neighbours: which, and how they know the node. Pure.

A BGPPeer with `localWorkloadSelector` has each node peer with the workloads behind its own veths.
A workload knows its node by one address that is the same everywhere (`localWorkloadPeeringIPV4`,
`-IPV6` of the BGPConfiguration), so that it need not know where it runs; the node has it on the
workload's veth for as long as there is the session (`bird_links.py`).

A workload is none of the cluster's routers. It is heard only as far as the filters of its BGPPeer
accept, and what it says of preference counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from felix_shim.bgp_model import Peer
from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.bgp_spec import BGPPeerWire
from libtortie.model.ipam import IPAddress
from libtortie.model.policy import NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX


@dataclass(frozen=True, slots=True)
class Workload:
    """One that traffic is led to here: a migration's target is none before its VM has come."""

    interface: str
    addresses: tuple[IPAddress, ...]
    labels: Mapping[str, str]

    def first(self, version: int) -> IPAddress | None:
        """Its address in a family: of several the first counts, as for Calico."""
        return next((one for one in self.addresses if one.version == version), None)


def sessions(
    wire: BGPPeerWire, workloads: Iterable[Workload], sources: Mapping[int, IPAddress]
) -> Iterator[Peer]:
    """A BGPPeer's sessions with workloads, in each family that there is an address of ours for.

    Raises `InvalidInput` for a selector of labels that a workload itself never has.
    """
    for prefix in (NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX):
        if prefix in wire.local_workload_selector:
            raise InvalidInput(
                f"not obeyed: localWorkloadSelector knows workloads' own labels, none of {prefix}*"
            )
    selector = selectors.parse(wire.local_workload_selector)
    for workload in workloads:
        if not selector.matches(workload.labels):
            continue
        for version, source in sorted(sources.items()):
            if (address := workload.first(version)) is not None:
                yield Peer(address, wire.as_number, interface=workload.interface, source=source)
