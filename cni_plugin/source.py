"""What a migration target takes over from its source, so that the guest notices nothing.

KubeVirt's bridge binding gives the guest the MAC of the pod's interface, and the guest keeps the
MTU it booted with: with another MAC DHCP does not answer it, with a smaller MTU its large packets
vanish. So the target goes by what the source has, not by what configuration or VM say by now.
Nobody is believed who is not the VM's owner in IPAM: the source's endpoint must name its sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cni_plugin import endpoint
from cni_plugin.endpoint import Place
from cni_plugin.identity import Workload
from cni_plugin.ports import Ports
from cni_plugin.sections import is_unicast_mac
from ipam.ownership import same_pod
from libtortie.model import names
from libtortie.model.ipam import Owner
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import WorkloadEndpoint

MTU_MAX = 65535


@dataclass(frozen=True, slots=True)
class GuestSide:
    """What a guest sees of its pod's interface; `mac` empty and `mtu` 0 are not known."""

    mac: str = ""
    mtu: int = 0


def guest_side(ports: Ports, workload: Workload, place: Place) -> GuestSide:
    """What the guest of a migration target is used to; nothing for any other workload.

    From the target's own endpoint when its ADD is repeated, else from the source's. Raises what
    the store raises; a record that is not there or cannot be read says nothing.
    """
    if not workload.is_target:
        return GuestSide()
    known = endpoint.read(ports.store, place.key)
    if known is not None:
        own = endpoint.endpoint_of(known)
        if endpoint.is_of(own, place.container_id, workload.pod_uid):
            return _of(own)
    me = workload.owner(ports.node, ports.now())
    for owner in _owners(ports, workload.handle_id):
        if same_pod(owner, me):
            continue
        name = names.wep_name(
            owner.get("node", ""), names.ORCHESTRATOR_K8S, owner.get("pod", ""), place.ifname
        )
        key = ResourceKey(Kind.WORKLOAD_ENDPOINT, name, owner.get("namespace", ""))
        record = endpoint.read(ports.store, key)
        if record is not None and _names(endpoint.endpoint_of(record), owner):
            return _of(endpoint.endpoint_of(record))
    return GuestSide()


def _owners(ports: Ports, handle_id: str) -> Iterator[Owner]:
    """The VM's pods, active ones first."""
    held = ports.ipam.by_handle(handle_id)
    for owner in (*(one.active for one in held), *(one.alternate for one in held)):
        if owner.get("pod"):
            yield owner


def _names(found: WorkloadEndpoint, owner: Owner) -> bool:
    return endpoint.is_of(found, owner.get("container-id", ""), owner.get("pod-uid", ""))


def _of(found: WorkloadEndpoint) -> GuestSide:
    mac, mtu = found.spec.mac.lower(), found.metadata.annotations.get(names.ANNOTATION_MTU, "")
    readable = mtu.isascii() and mtu.isdigit() and len(mtu) <= 5 and int(mtu) <= MTU_MAX
    return GuestSide(mac if is_unicast_mac(mac) else "", int(mtu) if readable else 0)
