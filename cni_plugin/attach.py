"""The steps of ADD. Each is idempotent and pushes its own undo before it acts.

An undo takes back only what this call made: when a repeat of a successful ADD fails, the first
one's attachment stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from cni_plugin import dataplane, endpoint
from cni_plugin.annotations import wanted_addresses
from cni_plugin.endpoint import Place
from cni_plugin.errors import AttachmentConflict
from cni_plugin.identity import Workload
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf
from cni_plugin.undo import Undo
from ipam.client import AddressRequest, Allocation
from ipam.ownership import same_sandbox
from libtortie.linux.port import Link
from libtortie.model import names
from libtortie.model.ipam import Owner
from libtortie.model.keys import Kind, Resources
from libtortie.model.resources import WorkloadEndpoint

FALLBACK_MTU = 1500

Allocations = tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class Attaching:
    """One ADD under way: what is attached, and how to take it back."""

    ports: Ports
    args: CmdArgs
    conf: NetConf
    workload: Workload
    place: Place
    undo: Undo

    def require_free_name(self) -> None:
        """Refuse a host interface name that another pod has, or a second interface of this pod."""
        p, place = self.ports, self.place
        if p.kernel.link(place.host_name) is None:
            return
        for record in p.store.list(Resources(Kind.WORKLOAD_ENDPOINT)).records:
            other = record.value
            if not isinstance(other, WorkloadEndpoint) or record.key == place.key:
                continue
            if (other.spec.node, other.spec.interface_name) != (p.node, place.host_name):
                continue
            theirs = other.spec.workload or f"{other.metadata.namespace}/{other.spec.pod}"
            if other.spec.container_id == place.container_id or theirs != place.workload:
                raise AttachmentConflict(
                    f"interface {place.host_name} belongs to WorkloadEndpoint "
                    f"{other.metadata.namespace}/{other.metadata.name}; "
                    "a pod has one interface of this network"
                )

    def assign_addresses(self) -> Allocations:
        """The addresses of the sandbox: its own, or its VM's."""
        p, workload = self.ports, self.workload
        handle, owner = workload.handle_id, workload.owner(p.node, p.now())
        before = p.ipam.by_handle(handle)
        if workload.vm is None:
            if not before:
                self.undo.push("release addresses", lambda: p.ipam.release(handle))
            return p.ipam.assign(
                handle, owner, self._wanted(), previous_owner_gone=self._sandbox_gone
            )
        lives = p.identify.pod_lives
        if not any(same_sandbox(o, owner) for a in before for o in (a.active, a.alternate)):
            self.undo.push("disown address", lambda: self._disown(owner, fresh=not before))
        if workload.is_target:
            return p.ipam.claim_vm_target(handle, owner, rival_lives=lives, named=workload.vm.named)
        return p.ipam.claim_vm(
            handle,
            owner,
            self._wanted(),
            previous_owner_gone=p.identify.owner_gone,
            rival_lives=lives,
        )

    def wire_veth(self, allocations: Allocations) -> tuple[Link, Link]:
        """The veth with all that is on it; (host, pod) ends."""
        p, workload = self.ports, self.workload
        plan = dataplane.Attachment(
            host_name=self.place.host_name,
            ifname=self.args.ifname,
            netns=self.args.netns,
            mtu=self._mtu(),
            mac=workload.mac,
            addresses=tuple(allocation.address for allocation in allocations),
            host_routes=not workload.is_target,
            takes_over=workload.vm is not None,
            alias=names.link_alias(self.conf.name, self.args.container_id),
        )
        return dataplane.wire(p.kernel, p.namespaces, plan, self.undo, p.log)

    def write_endpoint(self, allocations: Allocations, ends: tuple[Link, Link]) -> None:
        """The WorkloadEndpoint, which makes the agent set up policy."""
        p, place, workload = self.ports, self.place, self.workload
        wanted = endpoint.build(
            place,
            workload,
            endpoint.Wired(
                node=p.node,
                network=self.conf.name,
                addresses=tuple(allocation.address for allocation in allocations),
                host=ends[0],
                pod=ends[1],
                at=p.now(),
            ),
        )
        before = endpoint.read(p.store, place.key)
        mine = before is not None and endpoint.is_of(
            endpoint.endpoint_of(before), place.container_id, workload.pod_uid
        )
        if not mine:
            self.undo.push(
                "delete endpoint",
                lambda: endpoint.remove(p.store, place.key, place.container_id),
            )
        endpoint.write(p.store, place.key, wanted, p.log)

    def await_policy(self) -> float:
        """Seconds waited for policy. When time is over the pod starts anyway: the agent's table
        drops what it has no policy for."""
        timeout = self.conf.policy_setup_timeout_seconds
        if not timeout:
            return 0.0
        p, place = self.ports, self.place
        begun = p.monotonic()
        if not p.policy.wait(place.status_file, place.container_id, timeout):
            p.log("policy_timeout", container_id=place.container_id, timeout_seconds=timeout)
        return p.monotonic() - begun

    def _wanted(self) -> AddressRequest:
        return wanted_addresses(
            self.workload.annotations,
            self.workload.namespace_annotations,
            self.conf,
            namespace_labels=self.workload.namespace_labels,
            asked=self.args.args.get("IP", ""),
        )

    def _sandbox_gone(self, owner: Owner) -> bool:
        """Whether an earlier sandbox of our pod's name has ended: a pod has one at a time."""
        uid = self.workload.pod_uid
        if uid and owner.get("pod-uid") == uid:
            return True
        return bool(uid) and not self.ports.identify.pod_lives(owner)

    def _disown(self, owner: Owner, *, fresh: bool) -> None:
        """Give up the claim. What the VM did not have before is freed, unless another pod of the
        VM got it meanwhile: then it is the VM's for good."""
        ipam, handle = self.ports.ipam, self.workload.handle_id
        ours = fresh and all(same_sandbox(a.active, owner) for a in ipam.by_handle(handle))
        ipam.disown_vm(handle, owner, vm_deleting=ours)

    def _mtu(self) -> int:
        """The configuration's, else the agent's file, else the default route's link, else 1500."""
        if self.conf.mtu:
            return self.conf.mtu
        try:
            text = self.ports.mtu_file.read_text().strip()
        except OSError:
            text = ""
        if text.isascii() and text.isdigit() and 0 < int(text) <= 65535:
            return int(text)
        return dataplane.default_route_mtu(self.ports.kernel) or FALLBACK_MTU
