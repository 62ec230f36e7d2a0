"""What the blocks say of each VM's handle: its addresses, their owners, whose it is. Read only.

The blocks are read, not the handles: an allocation whose handle's record was lost counts too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from libtortie.datastore.port import Datastore
from libtortie.kube.objects import KubeObject, VirtualMachine, VirtualMachineInstance
from libtortie.model.ipam import Block, IPAddress, Owner
from libtortie.model.keys import Blocks, IPNetwork
from libtortie.model.names import VM_MARK, vm_of_handle

from .ownership import Owners, is_pod


@dataclass(frozen=True, slots=True)
class Piece:
    """One address of a handle. `number` is the sequence number of its allocation: the same
    address given to the same handle again has another."""

    address: IPAddress
    cidr: IPNetwork
    number: int | None
    owners: Owners


@dataclass(frozen=True, slots=True)
class VMHandle:
    """Everything a VM's handle holds, in address order. Equal values are the same allocations
    with the same owners."""

    handle_id: str
    pieces: tuple[Piece, ...]

    @property
    def key(self) -> str:
        """Unique among all that is judged."""
        return f"vm {self.handle_id}"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.handle_id} [{', '.join(str(one) for one in self.addresses)}]"

    @property
    def action(self) -> str:
        """What is done with it if its VM is gone."""
        return "free"

    @property
    def addresses(self) -> tuple[IPAddress, ...]:
        """What it holds."""
        return tuple(piece.address for piece in self.pieces)

    @property
    def owners(self) -> tuple[Owner, ...]:
        """Every different owner of any of its addresses, active ones first."""
        active = [piece.owners.active for piece in self.pieces]
        found: list[Owner] = []
        for owner in active + [piece.owners.alternate for piece in self.pieces]:
            if owner and owner not in found:
                found.append(owner)
        return tuple(found)

    @property
    def node(self) -> str:
        """The node that the first owner names; "" when none does."""
        return next((owner["node"] for owner in self.owners if owner.get("node")), "")

    @property
    def running(self) -> bool:
        """Whether a pod is active owner: then its DEL is still to come."""
        return any(is_pod(piece.owners.active) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that an owner names. Without a `uid` any object of the name is meant."""

    kind: type[KubeObject]
    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        uid = f" with UID {self.uid}" if self.uid else ""
        return f"{self.kind.api.kind} {self.namespace}/{self.name}{uid}"


def vm_handles(blocks: tuple[Block, ...]) -> tuple[VMHandle, ...]:
    """Every VM's handle that holds an address in these blocks."""
    pieces: dict[str, list[Piece]] = {}
    for block in blocks:
        for ordinal, index in enumerate(block.allocations):
            attribute = None if index is None else block.attributes[index]
            if attribute is None or attribute.released_at is not None:
                continue
            if attribute.handle_id and VM_MARK in attribute.handle_id:
                piece = piece_of(block, ordinal, Owners(attribute.active, attribute.alternate))
                pieces.setdefault(attribute.handle_id, []).append(piece)
    made = [handle_of(handle_id, found) for handle_id, found in sorted(pieces.items())]
    return tuple(handle for handle in made if _is_vms(handle))


def handle_of(handle_id: str, pieces: list[Piece]) -> VMHandle:
    """The handle that holds these, in address order."""
    order = sorted(pieces, key=lambda piece: (piece.address.version, int(piece.address)))
    return VMHandle(handle_id, tuple(order))


def read_vm_handles(store: Datastore) -> tuple[tuple[VMHandle, ...], tuple[str, ...]]:
    """Every VM's handle, and the blocks that cannot be read."""
    listings = [store.list(Blocks(version)) for version in (4, 6)]
    values = [record.value for listing in listings for record in listing.records]
    blocks = tuple(value for value in values if isinstance(value, Block))
    return vm_handles(blocks), tuple(name for listing in listings for name in listing.malformed)


def references(handle: VMHandle) -> tuple[Reference, ...]:
    """What must be gone before the handle's addresses are free; () when nothing says whose it is.

    An owner without any UID (another program's record) means VM and VMI of its name. Without an
    owner the handle's own name says which VM it is, as far as that is certain.
    """
    found: dict[Reference, None] = {}
    namespace, name = vm_of_handle(handle.handle_id) or ("", "")
    for owner in handle.owners or ({"namespace": namespace, "vmi-name": name},):
        namespace, name = owner.get("namespace", ""), owner.get("vmi-name", "")
        if not (namespace and name):
            return ()
        kinds: dict[str, type[KubeObject]] = {
            "vm-uid": VirtualMachine,
            "vmi-uid": VirtualMachineInstance,
        }
        uids = {kind: owner.get(key, "") for key, kind in kinds.items()}
        known = {kind: uid for kind, uid in uids.items() if uid} or uids
        found |= {Reference(kind, namespace, name, uid): None for kind, uid in known.items()}
    return tuple(found)


def by_vm(handles: Iterable[VMHandle]) -> dict[tuple[str, str], VMHandle]:
    """Handles by the namespace and name of their VM, as their owners say."""
    found: dict[tuple[str, str], VMHandle] = {}
    for handle in handles:
        for owner in handle.owners:
            key = owner.get("namespace", ""), owner.get("vmi-name", "")
            if all(key):
                found.setdefault(key, handle)
    return found


def piece_of(block: Block, ordinal: int, owners: Owners) -> Piece:
    """One allocated ordinal of a block."""
    number = block.sequence_numbers.get(ordinal)
    return Piece(block.address(ordinal), block.cidr, number, owners)


def _is_vms(handle: VMHandle) -> bool:
    """A network's own name may have the mark in it: then the owners are no VM's."""
    return not handle.owners or any(owner.get("vmi-name") for owner in handle.owners)
