"""Who is this sandbox: an ordinary pod, a VM, or a VM's migration target. Proved, not believed.

A pod that looks like a VM's launcher (by name, label or owner reference) either proves it
against the API or is refused: pod → VirtualMachineInstance by a `controller: true` owner
reference whose UID matches, in the pod's own namespace → VirtualMachine by the VMI's controller
reference, again with its UID. Labels alone never give a pod anything. An API that does not
answer is `Unavailable` (the runtime tries again), never "an ordinary pod".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from cni_plugin.annotations import wanted_mac
from cni_plugin.errors import IdentityRefused
from cni_plugin.opt_out import OPT_OUT, opted_out
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf
from ipam.ownership import pod_owner
from libtortie.errors import InvalidInput, MigrationRefused, NotFound, TortieError, Unavailable
from libtortie.kube.objects import (
    ANNOTATION_MIGRATION_NAME,
    LABEL_LAUNCHER,
    LABEL_MIGRATION_JOB,
    LAUNCHER,
    LAUNCHER_PREFIX,
    VMI_API_VERSION,
    KubeObject,
    Namespace,
    OwnerRef,
    Pod,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from libtortie.kube.port import KubeReader
from libtortie.kube.targets import Standing, chosen_targets, runs_in, standing
from libtortie.model import names
from libtortie.model.ipam import Owner, Persistence
from libtortie.model.resources import EndpointPort

T = TypeVar("T", bound=KubeObject)

VMI_KIND = "VirtualMachineInstance"
VM_KIND = "VirtualMachine"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""Marks the API's copy of a static pod, whose UID is not the one the kubelet uses."""

RUNNING = "Running"
"""A VirtualMachineInstance's phase while its guest runs, as far as its node says."""

DISABLED_TARGET = (
    "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled"
)


@dataclass(frozen=True, slots=True)
class VMIdentity:
    """A VM that was proved. `vm_uid` is empty for a VMI without a VM; `migration_uid` is set
    only for the target pod of a live migration, `named` once the API names it as that. `runs_in`
    is the pod of the last hand-off that has the VM, as far as the API says."""

    name: str
    vmi_uid: str
    vm_uid: str = ""
    migration_uid: str = ""
    named: bool = False
    runs_in: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """What an attachment belongs to. `pod` is empty for a caller that names no pod; `mac` empty
    lets the kernel choose. Annotations are about the first interface: another has none.
    `static_uid` is the kubelet's UID of a static pod, of which the API has but a copy."""

    namespace: str
    pod: str
    container_id: str
    handle_id: str
    pod_uid: str = ""
    static_uid: str = ""
    mac: str = ""
    vm: VMIdentity | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    namespace_annotations: Mapping[str, str] = field(default_factory=dict)
    service_account: str = ""
    ports: tuple[EndpointPort, ...] = ()

    @property
    def is_target(self) -> bool:
        """Whether this is the target pod of a live migration."""
        return self.vm is not None and bool(self.vm.migration_uid)

    def owner(self, node: str, now: datetime) -> dict[str, str]:
        """The IPAM owner attributes of this sandbox."""
        vm = self.vm or VMIdentity("", "")
        return pod_owner(
            namespace=self.namespace,
            pod=self.pod,
            node=node,
            timestamp=now,
            container_id=self.container_id,
            pod_uid=self.pod_uid,
            vmi_name=vm.name,
            vmi_uid=vm.vmi_uid,
            vm_uid=vm.vm_uid,
            vmim_uid=vm.migration_uid,
        )


class Identifier:
    """Proves identities against the API server.

    `persistence` reads `kubeVirtVMAddressPersistence`; it is asked for VMs only, and when it
    cannot answer, nobody gets an address. `kube` None means that no API is configured.
    """

    def __init__(self, kube: KubeReader | None, persistence: Callable[[], Persistence]) -> None:
        self._kube = kube
        self._persistence = persistence

    def workload(self, args: CmdArgs, conf: NetConf) -> Workload:
        """The proved identity of an attachment.

        Raises `IdentityRefused`, `MigrationRefused` (persistence Disabled), `Unavailable`,
        `Unauthorized` naming verb and resource.
        """
        handle = names.container_handle(conf.name, args.container_id, args.ifname)
        asked_mac = args.args.get("MAC", "")
        if not args.pod or self._kube is None:
            self._require_api(args, conf)
            mac = wanted_mac({}, conf, asked_mac)
            return Workload(
                args.namespace, args.pod, args.container_id, handle, args.pod_uid, mac=mac
            )
        pod = self._pod(args)
        space = self._namespace(args.namespace)
        vm, vmi = self._vm_of(pod, space)
        if vm is not None:
            handle = names.vm_handle(conf.name, pod.metadata.namespace, vm.name)
        first = args.ifname == names.FIRST_INTERFACE
        wishes = pod.metadata.annotations if first else {}
        mac = wanted_mac(wishes, conf, asked_mac)
        if vmi is not None and first:
            mac = vmi.pod_network_mac() or mac
        if vm is not None and not mac:
            mac = names.derived_mac(handle if first else f"{handle}/{args.ifname}")
        return Workload(
            namespace=args.namespace,
            pod=args.pod,
            container_id=args.container_id,
            handle_id=handle,
            pod_uid=pod.metadata.uid,
            static_uid=args.pod_uid if _is_static(pod) else "",
            mac=mac,
            vm=vm,
            labels=pod.metadata.labels,
            annotations=wishes,
            namespace_labels=space.metadata.labels,
            namespace_annotations=space.metadata.annotations if first else {},
            service_account=pod.spec.service_account_name,
            ports=_ports(pod),
        )

    def require_answers(self) -> None:
        """Ask the API, where there is one, for a pod, as ADD does. Raises as `workload`."""
        if self._kube is not None:
            self._find(Pod, "is-the-api-there", "default")

    def vm_deleting(self, namespace: str, vm: VMIdentity) -> bool:
        """Whether a VM is being deleted, is gone or replaced, and its VMI, too.

        Each alone proves nothing: a VM that is deleted with `--cascade=orphan` leaves its VMI
        running, and a VMI that ends is made again by its VM.
        """
        return all(
            found is None or found.metadata.deleting or (uid and found.metadata.uid != uid)
            for found, uid in self._named(namespace, vm)
        )

    def _named(
        self, namespace: str, vm: VMIdentity
    ) -> Iterator[tuple[VirtualMachine | VirtualMachineInstance | None, str]]:
        """VM and VMI as far as their UIDs are known; where none is, whatever has the name."""
        known = vm.vm_uid or vm.vmi_uid
        if vm.vm_uid or not known:
            yield self._find(VirtualMachine, vm.name, namespace), vm.vm_uid
        if vm.vmi_uid or not known:
            yield self._find(VirtualMachineInstance, vm.name, namespace), vm.vmi_uid

    def owner_gone(self, owner: Owner) -> bool:
        """Whether the VM that an IPAM owner names exists no more: absent, or another UID.

        Its VMI too, where the owner names one: a VM that was deleted with `--cascade=orphan`
        leaves it running.
        """
        name, namespace = owner.get("vmi-name", ""), owner.get("namespace", "")
        kinds: tuple[tuple[type[KubeObject], str], ...] = (
            (VirtualMachine, owner.get("vm-uid", "")),
            (VirtualMachineInstance, owner.get("vmi-uid", "")),
        )
        named = [(kind, uid) for kind, uid in kinds if uid]
        if not (named and name and namespace):
            return False
        found = ((self._find(kind, name, namespace), uid) for kind, uid in named)
        return all(one is None or one.metadata.uid != uid for one, uid in found)

    def pod_lives(self, owner: Owner) -> bool:
        """Whether the pod that an IPAM owner names exists and has not finished."""
        found = self._pod_of(owner)
        return found is not None and not found.finished

    def _pod_of(self, owner: Owner) -> Pod | None:
        """The pod that an IPAM owner names; None where there is none of that UID any more."""
        if not owner.get("pod"):
            return None
        found = self._find(Pod, owner["pod"], owner.get("namespace", ""))
        if found is None or owner.get("pod-uid", found.metadata.uid) != found.metadata.uid:
            return None
        return found

    def keeps_seat(self, owner: Owner, claimant_uid: str) -> bool:
        """Whether a VM's active owner keeps its seat from another of the VM's ordinary pods.

        It does while it lives, unless the instance's status denies it: names active pods, the
        claimant but not this one, and a node that is not this one's. A status that is still silent
        or lags behind denies nobody. Nor is its deletion a proof of death: one that was
        force-deleted runs on where its node is cut off, and keeps its seat for as long as the
        instance is said to run there. (The VM's next pod is another instance's.)
        """
        pod = self._pod_of(owner)
        if not owner.get("pod") or (pod is not None and pod.finished):
            return False
        vmi = self._find(
            VirtualMachineInstance, owner.get("vmi-name", ""), owner.get("namespace", "")
        )
        if vmi is None or vmi.metadata.uid != owner.get("vmi-uid"):
            return pod is not None
        pods, node = vmi.status.active_pods, vmi.status.node_name
        if pod is None:
            return vmi.status.phase == RUNNING and node != "" and node == owner.get("node")
        denied = claimant_uid in pods and owner.get("pod-uid", claimant_uid) not in pods
        return not (denied and node and owner.get("node") != node)

    def _find(self, kind: type[T], name: str, namespace: str) -> T | None:
        if self._kube is None:
            raise Unavailable("no Kubernetes API is configured: add a `kubernetes` section")
        try:
            return self._kube.get(kind, name, namespace)
        except NotFound:
            return None

    def _require_api(self, args: CmdArgs, conf: NetConf) -> None:
        """Without an API nothing can be proved: a VM's launcher is refused, others are served."""
        if self._kube is not None or not args.pod:
            return
        if conf.policy is not None or args.pod.startswith(LAUNCHER_PREFIX):
            raise InvalidInput(
                f"kubernetes: pod {args.namespace}/{args.pod} must be looked up in the API; "
                "add a `kubernetes` section with kubeconfig or k8s_api_root"
            )

    def _pod(self, args: CmdArgs) -> Pod:
        where = f"{args.namespace}/{args.pod}"
        pod = self._find(Pod, args.pod, args.namespace)
        if pod is None:
            raise IdentityRefused(f"pod {where} does not exist")
        known = pod.metadata.uid
        if args.pod_uid and not _is_static(pod) and args.pod_uid != known:
            raise IdentityRefused(
                f"pod {where} now has UID {known}; this sandbox is of UID {args.pod_uid}"
            )
        return pod

    def _namespace(self, name: str) -> Namespace:
        return self._find(Namespace, name, "") or Namespace()

    def _disabled(self) -> bool:
        try:
            return self._persistence() is Persistence.DISABLED
        except TortieError as error:
            raise Unavailable(f"the IPAM configuration cannot be read: {error}") from error

    def _vm_of(
        self, pod: Pod, space: Namespace
    ) -> tuple[VMIdentity | None, VirtualMachineInstance | None]:
        """The VM whose addresses the pod gets, if they persist; and its instance, if it has one."""
        reference = vmi_reference(pod)
        if reference is None:
            return None, None
        vmi = self._proved(VirtualMachineInstance, reference, pod, _name_of(pod))
        vm = self._controlling(vmi)
        migration, named = self._live_migration(pod, vmi)
        off = DISABLED_TARGET if self._disabled() else ""
        if not off and (who := opted_out((pod, vmi, *([vm] if vm else ())), space)):
            off = f"{DISABLED_TARGET}, by annotation {OPT_OUT} of {who}"
        if off and migration:
            raise MigrationRefused(off)
        if off:
            return None, vmi
        name, uid, vm_uid = vmi.metadata.name, vmi.metadata.uid, vm.metadata.uid if vm else ""
        return VMIdentity(name, uid, vm_uid, migration, named, runs_in(vmi)), vmi

    def _controlling(self, vmi: VirtualMachineInstance) -> VirtualMachine | None:
        """The VM that controls a VMI; None when none does."""
        who = f"VirtualMachineInstance {vmi.metadata.namespace}/{vmi.metadata.name}"
        references = [ref for ref in vmi.metadata.owner_references if ref.kind == VM_KIND]
        if not references:
            return None
        reference = _checked(references, who)
        if reference.name != vmi.metadata.name:
            raise IdentityRefused(
                f"{who}: its owner reference names VirtualMachine {reference.name!r}; "
                "a VirtualMachineInstance has the name of its VirtualMachine"
            )
        return self._proved(VirtualMachine, reference, vmi, who)

    def _proved(self, kind: type[T], reference: OwnerRef, child: KubeObject, who: str) -> T:
        namespace = child.metadata.namespace
        found = self._find(kind, reference.name, namespace)
        named = f"{reference.kind} {reference.name!r}"
        if found is None:
            raise IdentityRefused(
                f"{who}: its owner reference names {named}, which does not exist in "
                f"namespace {namespace}"
            )
        if found.metadata.uid != reference.uid:
            raise IdentityRefused(
                f"{who}: its owner reference names {named} with UID {reference.uid}; "
                f"the one that exists has UID {found.metadata.uid}"
            )
        return found

    def _live_migration(self, pod: Pod, vmi: VirtualMachineInstance) -> tuple[str, bool]:
        """UID of the live migration this pod is the target of, empty for any other pod; and
        whether the API names the pod as that target.

        The label outlives the migration, so it counts only with a migration that is not final;
        a pod beside which the API chose another is refused for good.
        """
        uid = pod.metadata.labels.get(LABEL_MIGRATION_JOB, "")
        if not uid or pod.metadata.labels.get(LABEL_LAUNCHER) != LAUNCHER:
            return "", False
        migration = self._migration(pod, uid)
        if migration is None:
            return "", False
        who, name = _name_of(pod), migration.metadata.name
        if migration.spec.vmi_name != vmi.metadata.name:
            if migration.final:
                return "", False
            raise IdentityRefused(
                f"{who}: migration {name} is of VirtualMachineInstance "
                f"{migration.spec.vmi_name!r}, not of {vmi.metadata.name!r}"
            )
        found = standing(pod.metadata.name, pod.metadata.labels, migration, vmi)
        if found is Standing.ANOTHER:
            chosen = ", ".join(sorted(chosen_targets(migration, vmi) - {pod.metadata.name}))
            raise IdentityRefused(f"{who}: the target pod of migration {name} is {chosen}")
        return (uid if found.target else ""), found is Standing.NAMED

    def _migration(self, pod: Pod, uid: str) -> VirtualMachineInstanceMigration | None:
        """By the name in the pod's annotation, else by UID among the namespace's migrations."""
        namespace = pod.metadata.namespace
        name = pod.metadata.annotations.get(ANNOTATION_MIGRATION_NAME, "")
        if name:
            found = self._find(VirtualMachineInstanceMigration, name, namespace)
            if found is not None and found.metadata.uid == uid:
                return found
        assert self._kube is not None  # _pod() has used it
        everything, _ = self._kube.list(VirtualMachineInstanceMigration, namespace)
        return next((item for item in everything if item.metadata.uid == uid), None)


def vmi_reference(pod: Pod) -> OwnerRef | None:
    """The owner reference by which a pod claims to be a VM's launcher; None for ordinary pods.

    Raises `IdentityRefused` when the pod claims it by name or label without a reference, or by a
    reference that KubeVirt's controller would not make.
    """
    meta = pod.metadata
    references = [ref for ref in meta.owner_references if ref.kind == VMI_KIND]
    if references:
        return _checked(references, _name_of(pod))
    if meta.name.startswith(LAUNCHER_PREFIX) or meta.labels.get(LABEL_LAUNCHER) == LAUNCHER:
        raise IdentityRefused(
            f"{_name_of(pod)} has a virt-launcher's name or label but no owner reference to a "
            f"{VMI_KIND}"
        )
    return None


def _checked(references: list[OwnerRef], who: str) -> OwnerRef:
    """The one reference of its kind, if it has the form KubeVirt gives it."""
    reference = references[0]
    named = f"owner reference to {reference.kind} {reference.name!r}"
    if len(references) > 1:
        raise IdentityRefused(
            f"{who}: more than one {named.partition(' ')[0]} reference to a {reference.kind}"
        )
    if not reference.controller:
        raise IdentityRefused(f"{who}: its {named} is not controller: true")
    if reference.api_version != VMI_API_VERSION:
        raise IdentityRefused(
            f"{who}: its {named} has apiVersion {reference.api_version!r}, not {VMI_API_VERSION}"
        )
    if not reference.name or not reference.uid:
        raise IdentityRefused(f"{who}: its {named} has no name or no UID")
    return reference


def _is_static(pod: Pod) -> bool:
    return MIRROR_ANNOTATION in pod.metadata.annotations


def _name_of(pod: Pod) -> str:
    return f"pod {pod.metadata.namespace}/{pod.metadata.name}"


def _ports(pod: Pod) -> tuple[EndpointPort, ...]:
    return tuple(
        EndpointPort(
            name=port.name,
            protocol=port.protocol,
            port=port.container_port,
            host_port=port.host_port,
            hostIP=port.host_ip,
        )
        for container in pod.spec.containers
        for port in container.ports
        if port.name or port.host_port
    )
