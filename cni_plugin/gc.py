"""GC: which attachments of this network and node does the runtime no longer know?

They are found by what they left in the datastore: endpoints, and allocations of an ADD that was
killed before it wrote one; and by veths whose alias names a sandbox of which nothing else is
left. Only what is provably of this network (by its handle or alias), of this node and of a sandbox
(by its container id) is ever named: tunnels, other networks, other nodes and stopped VMs are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cni_plugin import endpoint, interfaces
from cni_plugin.endpoint import Place
from cni_plugin.identity import VMIdentity
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf
from ipam.ownership import ifname_of
from libtortie.datastore.port import Datastore
from libtortie.errors import TortieError
from libtortie.linux.port import Link
from libtortie.model import names
from libtortie.model.ipam import Attribute, Block, Owner
from libtortie.model.keys import Blocks
from libtortie.model.resources import WorkloadEndpoint


@dataclass(frozen=True, slots=True)
class Stale:
    """An attachment to take down, in the words of the call that made it."""

    args: CmdArgs
    has_endpoint: bool
    vm: VMIdentity | None = None


def find_stale(store: Datastore, node: str, conf: NetConf) -> list[Stale]:
    """Attachments of this network and node that are not in `conf.valid_attachments`."""
    valid = set(conf.valid_attachments or ())
    known = set(valid)
    out: list[Stale] = []
    for stored in endpoint.of_node(store, node):
        container_id = stored.spec.container_id
        if not container_id or not is_of_network(stored, conf.name):
            continue
        known.add((container_id, stored.spec.endpoint))
        if (container_id, stored.spec.endpoint) in valid:
            continue
        out.append(Stale(args_of_endpoint(stored), True, endpoint.vm_of(stored)))
    for owner, attribute in owners_on(store, node):
        container_id = owner.get("container-id", "")
        sandbox = container_id, ifname_of(owner)
        if container_id and sandbox not in known and _belongs(owner, attribute, conf.name):
            known.add(sandbox)
            out.append(_half_made(owner))
    return out


def still_stale(store: Datastore, place: Place, item: Stale) -> bool:
    """Whether nothing happened to an attachment between listing and locking it."""
    record = endpoint.read(store, place.key)
    ours = record is not None and endpoint.is_of(
        endpoint.endpoint_of(record), item.args.container_id, ""
    )
    return ours == item.has_endpoint


def find_orphans(links: Iterable[Link], store: Datastore, node: str, conf: NetConf) -> list[Link]:
    """Veths of this network whose sandbox is not listed as valid and has no endpoint.

    `links` must have been read before: an ADD that completed since then has its endpoint. One
    under way holds the lock of the link's name.
    """
    spared = {container_id for container_id, _ in conf.valid_attachments or ()}
    spared |= {stored.spec.container_id for stored in endpoint.of_node(store, node)}
    return [link for link in links if _sandbox_of(link, conf.name) not in (None, *spared)]


def _sandbox_of(link: Link, network: str) -> str | None:
    """The container id of a veth of this network; None for another link."""
    if link.kind != "veth" or not link.name.startswith(names.INTERFACE_PREFIX):
        return None
    sandbox = names.sandbox_of_alias(link.alias)
    return sandbox[1] if sandbox and sandbox[0] == network else None


def owners_on(store: Datastore, node: str) -> Iterator[tuple[Owner, Attribute]]:
    """Owners of this node in the blocks, each with the attribute that it is in."""
    for version in (4, 6):
        for record in store.list(Blocks(version)).records:
            if not isinstance(record.value, Block):
                continue
            for attribute in record.value.attributes:
                for owner in (attribute.active, attribute.alternate):
                    if owner.get("node") == node and attribute.handle_id:
                        yield owner, attribute


def raise_all(errors: Sequence[TortieError]) -> None:
    """Raise the first of a collection's errors, which notes the others; none is success."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and: {other}")
        raise errors[0]


def is_of_network(stored: WorkloadEndpoint, network: str) -> bool:
    """Whether an endpoint is of a network, by the handle that it notes."""
    handle = stored.metadata.annotations.get(names.ANNOTATION_HANDLE, "")
    vm = endpoint.vm_of(stored)
    if vm is not None:
        place = stored.metadata.namespace, vm.name, stored.spec.endpoint
        return handle in interfaces.of_vm(network, *place)
    return handle == names.container_handle(network, stored.spec.container_id, stored.spec.endpoint)


def _belongs(owner: Owner, attribute: Attribute, network: str) -> bool:
    vmi, namespace = owner.get("vmi-name", ""), owner.get("namespace", "")
    if vmi:
        return attribute.handle_id in interfaces.of_vm(network, namespace, vmi, ifname_of(owner))
    handle = names.container_handle(network, owner["container-id"], ifname_of(owner))
    return attribute.handle_id == handle


def args_of_endpoint(stored: WorkloadEndpoint) -> CmdArgs:
    """The call that made an endpoint, without the namespace's path."""
    spec, meta = stored.spec, stored.metadata
    pod = _pod_args(meta.namespace, spec.pod, meta.annotations.get(names.ANNOTATION_POD_UID, ""))
    return CmdArgs(spec.container_id, "", spec.endpoint, pod)


def args_of(owner: Owner, ifname: str) -> CmdArgs:
    """The call that made an owner, without the namespace's path."""
    pod = _pod_args(owner.get("namespace", ""), owner.get("pod", ""), owner.get("pod-uid", ""))
    return CmdArgs(owner.get("container-id", ""), "", ifname, pod)


def _half_made(owner: Owner) -> Stale:
    vm = None
    if owner.get("vmi-name"):
        vm = VMIdentity(owner["vmi-name"], owner.get("vmi-uid", ""), owner.get("vm-uid", ""))
    return Stale(args_of(owner, ifname_of(owner)), False, vm)


def _pod_args(namespace: str, pod: str, uid: str) -> dict[str, str]:
    if not (namespace and pod):
        return {}
    return {"K8S_POD_NAMESPACE": namespace, "K8S_POD_NAME": pod, "K8S_POD_UID": uid}
