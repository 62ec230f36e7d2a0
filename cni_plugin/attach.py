"""The steps of ADD. Each is idempotent and pushes its own undo before it acts.

An undo takes back only what this call made: when a repeat of a successful ADD fails, the first
one's attachment stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cni_plugin import annotations as wishes
from cni_plugin import dataplane, endpoint, interfaces, mtu, profile
from cni_plugin.addresses import NOBODY, Addresses, Giver, of_program, recorded
from cni_plugin.annotations import wanted_addresses
from cni_plugin.delegate import Delegate
from cni_plugin.endpoint import Place
from cni_plugin.errors import AttachmentConflict, PolicyLate
from cni_plugin.identity import Workload
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from cni_plugin.source import guest_side
from cni_plugin.types import Interface, NetConf, Result
from cni_plugin.undo import Undo
from ipam.client import AddressRequest, Allocation
from ipam.ownership import same_sandbox
from ipam.pools import Lan
from libtortie.errors import MigrationRefused, OwnerMismatch
from libtortie.linux.port import Link
from libtortie.model import names
from libtortie.model.ipam import Owner
from libtortie.model.keys import Kind, Resources
from libtortie.model.resources import WorkloadEndpoint

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
        """Refuse a host interface name that another endpoint has, which is still there: names are
        digests, and an earlier version gave all interfaces of a pod the same one."""
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
                    f"{other.metadata.namespace}/{other.metadata.name}: end that sandbox first"
                )

    def require_readable_wishes(self) -> None:
        """Refuse annotations that cannot be met, before anything is taken for the pod."""
        notes = self.workload.annotations
        for held in self.ports.ipam.owners_of(wishes.floating_addresses(notes, self.conf)):
            if held.handle_id != self.workload.handle_id:
                raise OwnerMismatch(
                    f"annotation {wishes.FLOATING}: {held.address} is already given to handle "
                    f"{held.handle_id}: use addresses of no pool"
                )
        wishes.source_prefixes(notes)

    def assign_addresses(self) -> Addresses:
        """The addresses of the sandbox: from our IPAM, from another program's, or the pod's own."""
        notes = self.workload.annotations
        brought = wishes.static_addresses(notes, self.conf)
        if brought:
            return Addresses(brought, Giver(NOBODY))
        if self.ports.delegate is not None:
            wishes.require_no_pool_wishes(notes, self.conf)
            return self._delegated(self.ports.delegate)
        return Addresses(tuple(allocation.address for allocation in self.allocate()))

    def _delegated(self, program: Delegate) -> Addresses:
        """From another program's IPAM, which a repeat does not ask again."""
        if self.workload.is_target:
            raise MigrationRefused(
                f"ipam.type {program.kind} cannot give a migration target the addresses of its VM"
            )
        p, place = self.ports, self.place
        stored = endpoint.read(p.store, place.key)
        if stored is not None:
            before = endpoint.endpoint_of(stored)
            ours = endpoint.is_of(before, place.container_id, self.workload.pod_uid)
            known = recorded(before, program.kind) if ours else None
            if known is not None:
                return known
        program.require()
        self.undo.push("release addresses", lambda: program.delete(self.args))
        return of_program(program.kind, program.add(self.args))

    def allocate(
        self, lan: Lan | None = None, marks: Mapping[str, str] | None = None
    ) -> Allocations:
        """Addresses of our IPAM: the sandbox's own, or its VM's; `marks` are noted of the owner."""
        p, workload = self.ports, self.workload
        handle = workload.handle_id
        noted = {**interfaces.marks(self.args.ifname), **(marks or {})}
        owner = workload.owner(p.node, p.now()) | noted
        want = replace(self._wanted(), lan=lan)
        before = p.ipam.by_handle(handle)
        if workload.vm is None:
            self._require_own(handle, before)
            if not before:
                self.undo.push("release addresses", lambda: p.ipam.release(handle))
            return p.ipam.assign(handle, owner, want, previous_owner_gone=self._sandbox_gone)
        if not any(same_sandbox(o, owner) for a in before for o in (a.active, a.alternate)):
            self.undo.push("disown address", lambda: self._disown(owner, fresh=not before))
        if workload.is_target:
            return p.ipam.claim_vm_target(
                handle,
                owner,
                rival_lives=p.identify.pod_lives,
                named=workload.vm.named,
                runs_in=workload.vm.runs_in,
            )
        return p.ipam.claim_vm(
            handle,
            owner,
            want,
            previous_owner_gone=p.identify.owner_gone,
            rival_lives=lambda sitting: p.identify.keeps_seat(sitting, workload.pod_uid),
        )

    def _require_own(self, handle: str, held: Allocations) -> None:
        """Refuse a handle that reads like ours and is another sandbox's."""
        for item in held:
            if other := interfaces.another(item.active, self.ports.node, self.args):
                raise AttachmentConflict(
                    f"handle {handle} is that of {other}: another container id, or another name of "
                    "one of the networks, would tell them apart"
                )

    def wire_veth(self, got: Addresses) -> tuple[Link, Link]:
        """The veth with all that is on it; (host, pod) ends."""
        p, workload = self.ports, self.workload
        used_to = guest_side(p, workload, self.place)
        way_out = interfaces.leads_out(p.namespaces, self.args)
        plan = dataplane.Attachment(
            host_name=self.place.host_name,
            ifname=self.args.ifname,
            netns=self.args.netns,
            mtu=used_to.mtu or mtu.wanted(self.conf, p),
            mac=used_to.mac or workload.mac,
            addresses=got.own,
            host_routes=not workload.is_target,
            takes_over=workload.vm is not None,
            alias=names.link_alias(self.conf.name, self.args.container_id),
            destinations=interfaces.destinations(p.store, self.conf, got.giver, way_out=way_out),
            way_out=way_out,
            forwarding=self.conf.container_settings.allow_ip_forwarding,
            queues=self.conf.num_queues,
        )
        if self.conf.device_type == "netkit":
            p.log("device_type_unavailable", device_type="netkit", made="veth")
        return dataplane.wire(p.kernel, p.namespaces, plan, self.undo, p.log)

    def write_endpoint(self, got: Addresses, ends: tuple[Link, Link]) -> None:
        """The WorkloadEndpoint, which makes the agent set up policy."""
        p, place, workload = self.ports, self.place, self.workload
        floating = wishes.floating_addresses(workload.annotations, self.conf)
        wanted = endpoint.build(
            place,
            workload,
            endpoint.Wired(
                node=p.node,
                network=self.conf.name,
                addresses=got.own,
                host=ends[0],
                pod=ends[1],
                at=p.now(),
                translations=wishes.translations(floating, got.own),
                giver=got.giver.note(),
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
        if not place.pod:
            profile.ensure(p.store, self.conf.name)
        endpoint.write(p.store, place.key, wanted, p.log, before)

    def await_policy(self) -> None:
        """Wait for policy as long as the configuration says.

        When time is over the pod starts anyway, since the agent's table drops what it has no
        policy for; or, where the configuration wants that, raises `PolicyLate`.
        """
        timeout = self.conf.policy_setup_timeout_seconds
        p, place = self.ports, self.place
        if not timeout or p.policy.wait(place.status_file, place.container_id, timeout):
            return
        if self.conf.policy_setup_on_timeout == "fail":
            raise PolicyLate(
                f"policy of {place.workload} was not in force within {timeout:g} s, and "
                "policy_setup_on_timeout is fail: is tortie-node running?"
            )
        p.log("policy_timeout", container_id=place.container_id, timeout_seconds=timeout)

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

    def result(self, got: Addresses, ends: tuple[Link, Link]) -> Result:
        """What ADD answers."""
        host, pod = ends
        return Result(
            interfaces=(
                Interface(host.name, host.mac, host.mtu),
                Interface(self.args.ifname, pod.mac, pod.mtu, self.args.netns),
            ),
            addresses=tuple(dataplane.as_interface(address) for address in got.own),
            routes=got.giver.routes,
            dns=self.conf.dns.to_wire() or got.giver.dns,
        )
