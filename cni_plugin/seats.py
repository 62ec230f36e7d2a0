"""A sandbox's seats: where it is owner of a VM's addresses, and how it gives that up.

Whose a sandbox was is read in IPAM's records, which ADD wrote when it had proved it, and never
asked of the API: a pod may be gone, and an API that refuses, stammers or hangs must not keep a
sandbox that owns nothing in the runtime's list for ever.

Only whether the VM is being deleted, so that its addresses are free, is for the API to say. What
it does not say keeps them: the VM stays their owner, stopped, and IPAM's garbage collection frees
them when the VM is proved to be gone. An API that is away (`Unavailable`) is worth one more call,
since the VM may be deleted this very moment: the seat is given up, and the error raised once. The
repeat finds no seat, and succeeds whatever the API does.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni_plugin import interfaces
from cni_plugin.calls import note
from cni_plugin.identity import VMIdentity
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from ipam.ownership import pod_owner, same_sandbox
from libtortie.errors import TortieError, Unavailable
from libtortie.model.ipam import Owner

Seat = tuple[str, Owner]


def of_sandbox(ports: Ports, args: CmdArgs, network: str) -> list[Seat]:
    """(handle, owner) of each VM of this network whose owner is this sandbox's interface."""
    me = interfaces.marks(args.ifname) | pod_owner(
        namespace=args.namespace,
        pod=args.pod,
        node=ports.node,
        timestamp=ports.now(),
        container_id=args.container_id,
        pod_uid=args.pod_uid,
    )
    return [seat for seat in _seats(ports, args, network) if same_sandbox(seat[1], me)]


def of_container(ports: Ports, args: CmdArgs, network: str) -> list[Owner]:
    """Owners of VMs' addresses in this network that have this container's id, whatever its pod."""
    return [owner for _, owner in _seats(ports, args, network)]


def _seats(ports: Ports, args: CmdArgs, network: str) -> Iterator[Seat]:
    for handle, owner in ports.ipam.seats_of(args.container_id):
        where = network, owner.get("namespace", ""), owner.get("vmi-name", ""), args.ifname
        if owner.get("vmi-name") and handle in interfaces.of_vm(*where):
            yield handle, owner


def leave(ports: Ports, seat: Seat) -> None:
    """Give a seat up, and the VM's addresses with it if the VM is being deleted or is gone.

    A seat that was given up already is success. Raises `Unavailable` as described above, and what
    IPAM raises.
    """
    handle, leaver = seat
    namespace, name = leaver.get("namespace", ""), leaver.get("vmi-name", "")
    vm = VMIdentity(name, leaver.get("vmi-uid", ""), leaver.get("vm-uid", ""))
    try:
        deleting = ports.identify.vm_deleting(namespace, vm)
    except TortieError as error:
        sits = any(
            same_sandbox(owner, leaver)
            for held in ports.ipam.by_handle(handle)
            for owner in (held.active, held.alternate)
        )
        ports.ipam.disown_vm(handle, leaver, vm_deleting=False)
        ports.log("vm_state_unknown", namespace=namespace, vm=name, error=str(error))
        if sits and isinstance(error, Unavailable):
            raise
        return
    freed = ports.ipam.disown_vm(handle, leaver, vm_deleting=deleting)
    note(vmi=name, vmi_uid=vm.vmi_uid, freed=freed)
