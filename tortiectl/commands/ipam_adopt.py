"""`tortiectl ipam adopt`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path

import click

from ipam.gc_inventory import allocated_in
from ipam.ownership import Owners
from ipam.settings import read_pools
from ipam.transaction import Transaction
from libtortie.datastore.port import Datastore
from libtortie.errors import AlreadyExists, InvalidInput, Malformed
from libtortie.kube.objects import VirtualMachineInstance
from libtortie.kube.port import KubeReader, NotServed
from libtortie.model.ipam import Block
from libtortie.model.keys import Blocks, Kind, ResourceKey, Resources
from libtortie.model.resources import IPReservation, Resource, parse_resource
from libtortie.wording import visible
from tortiectl.adopt.plan import Known, Wish, conflicts, manifest, parse_wishes, reservation
from tortiectl.connection import connect
from tortiectl.fsck.plan import owner_text
from tortiectl.options import config_option, not_empty

CONFLICT = 2
"""Exit status when something stands against it; then nothing is reserved."""


@click.command()
@config_option
@click.option(
    "-f", "--file", "source", required=True, metavar="FILE", callback=not_empty,
    help="CSV with the columns namespace, name, ip, mac, or VM manifests; `-`: standard input.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only report conflicts.")
@click.pass_context
def adopt(ctx: click.Context, *, config: str, source: str, dry_run: bool) -> int:
    """Reserve addresses and MACs for VMs that will come, and report conflicts.

    Makes an IPReservation for each VM and prints what its template has to say. All or nothing:
    exit status 2 when there is a conflict. Repeating it changes nothing.
    """
    where = "standard input" if source == "-" else source
    wishes = parse_wishes(_text(source), where)
    at = connect(ctx, config)
    found = list(conflicts(wishes, _known(at.store, at.kube)))
    for text in found:
        click.echo(visible(f"conflict: {text}"), err=True)
    if found:
        return CONFLICT
    for wish in wishes:
        if not dry_run:
            _reserve(at.store, wish)
        click.echo(visible(manifest(wish), keep="\n"))
    return 0


def _reserve(store: Datastore, wish: Wish) -> None:
    """Create its reservation. One of the same name is the same wish, or a conflict."""
    wanted = parse_resource(Kind.IP_RESERVATION, reservation(wish))
    key = ResourceKey(Kind.IP_RESERVATION, wish.reservation)
    try:
        store.create(key, wanted)
    except AlreadyExists:
        record = store.get(key)
        if not isinstance(record.value, IPReservation) or _spec(record.value) != _spec(wanted):
            store.update(key, wanted, record.revision)


def _spec(value: Resource) -> object:
    return value.to_wire().get("spec")


def _known(store: Datastore, kube: KubeReader | None) -> Known:
    """What there is. Raises `Malformed` for what cannot be read: it may be in the way."""
    pools, broken = read_pools(Transaction(store))
    blocks, held = [store.list(Blocks(version)) for version in (4, 6)], {}
    kept = store.list(Resources(Kind.IP_RESERVATION))
    broken += tuple(text for one in (*blocks, kept) for text in one.malformed)
    if broken:
        raise Malformed(f"cannot be read, so nothing is adopted: {'; '.join(broken)}")
    values = [record.value for one in blocks for record in one.records]
    for one in allocated_in(value for value in values if isinstance(value, Block)):
        held[one.piece.address] = _holder(one.piece.owners) or one.handle_id
    reserved = [
        (ip_network(text, strict=False), record.value.metadata.name)
        for record in kept.records
        if isinstance(record.value, IPReservation)
        for text in record.value.spec.reserved_cidrs
    ]
    usable = [pool.cidr for pool in pools if pool.enabled]
    return Known(usable, held, _macs(kube), reserved)


def _holder(owners: Owners) -> str:
    owner = owners.active or owners.alternate
    if owner.get("vmi-name"):
        return f"{owner.get('namespace', '')}/{owner['vmi-name']}"
    text = owner_text(owners)
    return "" if text == "nobody" else text


def _macs(kube: KubeReader | None) -> Mapping[str, str]:
    """Which VM has which MAC; none where there is no API or no KubeVirt."""
    if kube is None:
        return {}
    try:
        vmis, _ = kube.list(VirtualMachineInstance)
    except NotServed:
        return {}
    found: dict[str, str] = {}
    for vmi in vmis:
        name = f"{vmi.metadata.namespace}/{vmi.metadata.name}"
        for one in vmi.spec.domain.devices.interfaces:
            found[one.mac_address.lower()] = name
        for reported in vmi.status.interfaces:
            found[reported.mac.lower()] = name
    found.pop("", None)
    return found


def _text(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    return data.decode("utf-8", "replace")
