"""Which addresses and MACs are wanted for which VMs, and what stands against it. Pure.

A VM that will come has no UID, and an allocation without a living owner is what the collector
frees: so what is adopted is reserved (IPReservation), which keeps everybody from getting it by
chance, and the VM's manifest asks for it by name, which a reservation does not hinder.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from libtortie.access import parse_documents
from libtortie.datastore import gojson
from libtortie.errors import InvalidInput
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import IPNetwork
from libtortie.model.plain_ip import plain_address

ANNOTATION_IPS = "cni.projectcalico.org/ipAddrs"
PREFIX = "adopted"
COLUMNS = ("namespace", "name", "ip", "mac")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_LONGEST = 253
"""Most characters of a resource's name."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Wish:
    """Addresses (one of a family) and perhaps a MAC for one VM; `place` is where it says so."""

    namespace: str
    name: str
    addresses: tuple[IPAddress, ...]
    mac: str
    place: str

    @property
    def vm(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def reservation(self) -> str:
        """Name of its IPReservation."""
        return f"{PREFIX}.{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Known:
    """What there is. `held` is whose an allocated address is, `macs` which VM has a MAC, `reserved`
    the name of the reservation of a network."""

    pools: Sequence[IPNetwork] = ()
    held: Mapping[IPAddress, str] = field(default_factory=dict)
    macs: Mapping[str, str] = field(default_factory=dict)
    reserved: Sequence[tuple[IPNetwork, str]] = ()


def parse_wishes(text: str, where: str) -> tuple[Wish, ...]:
    """CSV with a heading, or VM manifests (YAML, JSON). Raises `InvalidInput` naming the line."""
    first = text.lstrip("\ufeff \t\r\n").split("\n", 1)[0]
    if {"name", "ip"} <= {cell.strip().lower() for cell in first.split(",")}:
        found = tuple(_of_csv(text.lstrip("\ufeff"), where))
    else:
        found = tuple(_of_manifests(text, where))
    if not found:
        raise InvalidInput(f"{where}: no VM is in it")
    return found


def _of_csv(text: str, where: str) -> Iterator[Wish]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    names = [str(name).strip().lower() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    unknown = sorted(set(names) - set(COLUMNS))
    if unknown:
        raise InvalidInput(f"{where}: column {unknown[0]!r} is none of {', '.join(COLUMNS)}")
    for row in _rows(reader, where):
        place = f"{where}, line {reader.line_num}"
        cells = {name: (row.get(name) or "").strip() for name in COLUMNS}
        addresses = cells["ip"].replace(";", " ").split()
        yield _wish(cells["namespace"] or "default", cells["name"], addresses, cells["mac"], place)


def _rows(reader: csv.DictReader[str], where: str) -> Iterator[dict[str, str]]:
    """The lines after the heading. Raises `InvalidInput` for what is no CSV of these columns."""
    try:
        for row in reader:
            if reader.restkey in row:
                raise InvalidInput(
                    f"{where}, line {reader.line_num}: more cells than columns; two addresses "
                    "stand in one cell, with a blank between them"
                )
            yield row
    except csv.Error as error:
        raise InvalidInput(f"{where}, line {reader.line_num}: not CSV: {error}") from error


def _of_manifests(text: str, where: str) -> Iterator[Wish]:
    """VMs that say an address by annotation."""
    try:
        documents = parse_documents(text, where)
    except InvalidInput as error:
        raise InvalidInput(
            f"{where}: neither CSV with columns name and ip nor YAML ({error})"
        ) from error
    for body in (body for one in documents for body in _listed_in(one)):
        if not isinstance(body, Mapping) or body.get("kind") != "VirtualMachine":
            raise InvalidInput(f"{where}: want CSV with columns name and ip, or VirtualMachines")
        meta = _map(body, "metadata")
        place = f"{where}, VirtualMachine {meta.get('name')}"
        template = _map(_map(body, "spec"), "template")
        note = _map(_map(template, "metadata"), "annotations").get(ANNOTATION_IPS)
        if note is None:
            raise InvalidInput(f"{place}: its template has no annotation {ANNOTATION_IPS}")
        yield _wish(
            str(meta.get("namespace") or "default"), str(meta.get("name") or ""),
            _listed(note, place), _mac_of(template), place,
        )  # fmt: skip


def _listed_in(document: Any) -> Sequence[Any]:
    """What a list holds; another document itself, and nothing of an empty one."""
    items = document.get("items") if isinstance(document, Mapping) else None
    if isinstance(items, list):
        return items
    return [] if document is None else [document]


def _map(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def _listed(note: object, place: str) -> list[str]:
    try:
        found = gojson.loads(str(note).encode())
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise InvalidInput(f"{place}: {ANNOTATION_IPS} is no JSON list of addresses")
    return [str(one) for one in found]


def _mac_of(template: Mapping[str, Any]) -> str:
    devices = _map(_map(_map(template, "spec"), "domain"), "devices")
    interfaces = devices.get("interfaces")
    first = interfaces[0] if isinstance(interfaces, list) and interfaces else {}
    return str(first.get("macAddress") or "") if isinstance(first, Mapping) else ""


def _wish(namespace: str, name: str, texts: Sequence[str], mac: str, place: str) -> Wish:
    for what, value, known in (("namespace", namespace, _NAMESPACE), ("name", name, _NAME)):
        if not known.fullmatch(value):
            raise InvalidInput(f"{place}: {what} {value!r} is no name that Kubernetes takes")
    try:
        addresses = tuple(plain_address(text) for text in texts)
    except ValueError as error:
        raise InvalidInput(f"{place}: ip: {error}") from error
    if not addresses or len({one.version for one in addresses}) < len(addresses):
        raise InvalidInput(f"{place}: ip: want one address, or one of each family")
    plain = mac.lower().replace("-", ":")
    if mac and (not _MAC.fullmatch(plain) or int(plain[:2], 16) & 1):
        raise InvalidInput(f"{place}: mac {mac!r} is no unicast MAC address")
    wish = Wish(namespace, name, addresses, plain, place)
    if len(wish.reservation) > _LONGEST:
        raise InvalidInput(
            f"{place}: name: the IPReservation {wish.reservation} has more than {_LONGEST} letters"
        )
    return wish


def conflicts(wishes: Sequence[Wish], known: Known) -> Iterator[str]:
    """Everything that stands against a wish; nothing may be reserved while there is one."""
    yield from _doubled(wishes)
    for wish in wishes:
        for address in wish.addresses:
            if not any(_in(address, pool) for pool in known.pools):
                yield f"{wish.place}: {address} is in no enabled IPPool"
            holder = known.held.get(address)
            if holder is not None and holder != wish.vm:
                yield f"{wish.place}: {address} belongs to {holder}"
            for network, name in known.reserved:
                if _in(address, network) and name != wish.reservation:
                    yield f"{wish.place}: {address} is reserved by IPReservation {name}"
        other = known.macs.get(wish.mac)
        if wish.mac and other is not None and other != wish.vm:
            yield f"{wish.place}: MAC {wish.mac} is {other}'s"


def _doubled(wishes: Sequence[Wish]) -> Iterator[str]:
    seen: dict[object, Wish] = {}
    for wish in wishes:
        things: list[tuple[object, str]] = [(wish.vm, f"VM {wish.vm}")]
        things += [(address, str(address)) for address in wish.addresses]
        things += [(wish.mac, f"MAC {wish.mac}")] if wish.mac else []
        for thing, text in things:
            first = seen.setdefault(thing, wish)
            if first is not wish:
                yield f"{wish.place}: {text} is wanted in {first.place} already"


def _in(address: IPAddress, network: IPNetwork) -> bool:
    return address.version == network.version and address in network


def reservation(wish: Wish) -> dict[str, Any]:
    """Its IPReservation, as on the wire."""
    cidrs = [str(ip_network(one)) for one in wish.addresses]
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": "IPReservation",
        "metadata": {
            "name": wish.reservation,
            "annotations": {"tortie.io/adopted-for": wish.vm, "tortie.io/adopted-mac": wish.mac},
        },
        "spec": {"reservedCIDRs": cidrs},
    }


def manifest(wish: Wish) -> str:
    """What its VM has to say to get them."""
    ips = json.dumps([str(one) for one in wish.addresses])
    lines = [
        f"# VM {wish.vm}: spec.template",
        f"metadata: {{annotations: {{{ANNOTATION_IPS}: {ips!r}}}}}",
    ]
    if wish.mac:
        lines.append(
            f'spec: {{domain: {{devices: {{interfaces: [{{name: default, macAddress: "{wish.mac}", '
            "bridge: {}}]}}}"
        )
    return "\n".join(lines)
