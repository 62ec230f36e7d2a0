"""Taking an attachment down, for DEL and GC. What is missing is success.

Device, then ownership, then the endpoint: the record goes last, so that a DEL that failed
half-way finds it again. Only what is proved to be this sandbox's is touched. A link's alias is the
best proof, because it is as old as the link; a record may be of the sandbox before or after.
"""

from __future__ import annotations

from cni_plugin import endpoint, interfaces, seats
from cni_plugin.calls import ENDPOINT, IPAM, WIRING, phase
from cni_plugin.endpoint import Place
from cni_plugin.identity import VMIdentity, Workload
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from libtortie.errors import NotFound
from libtortie.kube.objects import LAUNCHER_PREFIX
from libtortie.linux.port import Link
from libtortie.model import names
from libtortie.model.resources import WorkloadEndpoint


def tear_down(
    ports: Ports, args: CmdArgs, network: str, place: Place, hint: VMIdentity | None = None
) -> None:
    """Remove everything of one sandbox; `hint` is a VM that IPAM's records name as its owner."""
    record = endpoint.read(ports.store, place.key)
    stored = endpoint.endpoint_of(record) if record else None
    ours = stored is not None and endpoint.is_of(stored, args.container_id, args.pod_uid)
    if stored and not ours and stored.spec.container_id == args.container_id:
        return  # this container is another pod's by now: all there is, is that one's
    host = ports.kernel.link(
        endpoint.host_name_of(stored, place) if ours and stored else place.host_name
    )
    namesake = None if stored or host is None else _namesake(ports, place)
    if namesake is not None and namesake.spec.container_id == args.container_id:
        return  # this sandbox is attached under another CNI_IFNAME: all there is, is that one's
    if host is not None and _is_ours(ports, args, network, host, stored or namesake):
        with phase(WIRING):
            remove_link(ports, host)
    if ours and stored is not None:
        with phase(IPAM):
            _disown(ports, args, network, endpoint.vm_of(stored))
        with phase(ENDPOINT):
            endpoint.remove(ports.store, place.key, args.container_id)
        return
    newer_sandbox = stored is not None
    with phase(IPAM):
        _disown(ports, args, network, hint)
        if hint is None and not newer_sandbox and args.pod.startswith(LAUNCHER_PREFIX):
            for seat in seats.of_sandbox(ports, args, network):
                seats.leave(ports, seat)


def _namesake(ports: Ports, place: Place) -> WorkloadEndpoint | None:
    """An endpoint of this node with our host interface under another name than ours."""
    found = endpoint.of_node(ports.store, ports.node)
    same = (e for e in found if e.spec.interface_name == place.host_name)
    return next((e for e in same if e.key != place.key), None)


def _is_ours(
    ports: Ports, args: CmdArgs, network: str, host: Link, record: WorkloadEndpoint | None
) -> bool:
    """Whether a veth is proved to be this sandbox's: by its alias, else by record or peer.

    A record of the same container for a pod with another UID speaks against all of them.
    """
    ours = record is not None and endpoint.is_of(record, args.container_id, args.pod_uid)
    sandbox = names.sandbox_of_alias(host.alias)
    if sandbox is None:
        return ours or (record is None and _leads_into(ports, host, args.netns))
    if sandbox != (network, args.container_id):
        return False
    return ours or record is None or record.spec.container_id != args.container_id


def remove_link(ports: Ports, link: Link) -> None:
    """Delete a link, in bounded time."""
    ports.kernel.delete_link(link.name)


def _leads_into(ports: Ports, host: Link, netns: str) -> bool:
    """Whether the other end of our veth is in a namespace that is not our own.

    The path may have been recycled for another pod's namespace, so both ends must name each
    other. KubeVirt renames the pod's end: it is found by index.
    """
    inode = ports.namespaces.inode(netns) if netns else None
    if inode is None or inode == ports.namespaces.inode(""):
        return False
    try:
        inside = ports.namespaces.open(netns)
    except NotFound:
        return False
    try:
        return any(
            link.ifindex == host.peer_ifindex and link.peer_ifindex == host.ifindex
            for link in inside.links()
        )
    finally:
        inside.close()


def _disown(ports: Ports, args: CmdArgs, network: str, vm: VMIdentity | None) -> None:
    """Give up this sandbox's claim; an ordinary pod's addresses are free then.

    A VM's sandbox may have addresses of its own, too, from before `kubeVirtVMAddressPersistence`
    was enabled; and what an ADD recorded that was undone names no VM.
    """
    handle = names.container_handle(network, args.container_id, args.ifname)
    release_container(ports, handle, args)
    if ports.delegate is not None:
        ports.delegate.delete(args)
    if vm is None:
        return
    leaver = Workload(args.namespace, args.pod, args.container_id, "", args.pod_uid, vm=vm)
    owner = leaver.owner(ports.node, ports.now()) | interfaces.marks(args.ifname)
    for seat in interfaces.of_vm(network, args.namespace, vm.name, args.ifname):
        seats.leave(ports, (seat, owner))


def release_container(ports: Ports, handle: str, args: CmdArgs) -> None:
    """Free a container's addresses, unless what its handle holds is a VM's or another sandbox's."""
    for held in ports.ipam.by_handle(handle):
        vms = any(owner.get("vmi-name") for owner in (held.active, held.alternate))
        if vms or interfaces.another(held.active, ports.node, args):
            ports.log("handle_of_another", container_id=args.container_id, handle_id=handle)
            return
    ports.ipam.release(handle)
