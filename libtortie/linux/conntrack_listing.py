"""The connection table as procfs lists it: which entries an address has part in. Pure.

A line, whose IPv6 addresses are written out in full:

    ipv4     2 tcp      6 117 ESTABLISHED src=10.65.0.2 dst=10.96.0.1 sport=4000 dport=80 \\
        src=10.66.0.5 dst=10.65.0.2 sport=8080 dport=4000 [ASSURED] mark=0 zone=0 use=2

Only what names an entry is taken from it, to ask the kernel for the entry itself: what the text
leaves out or words differently between kernels is of no account here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address

from libtortie.linux.flows import ICMPS, TRACKED, FlowTuple
from libtortie.model.ipam import IPAddress

_LINE = re.compile(
    r"ipv[46] +\d+ \S+ +(?P<protocol>\d{1,3}) [^\n]*?"
    r"\bsrc=(?P<source>[0-9a-f.:]+) dst=(?P<destination>[0-9a-f.:]+) "
    r"(?:sport=(?P<sport>\d{1,5}) dport=(?P<dport>\d{1,5})"
    r"|type=(?P<type>\d{1,3}) code=(?P<code>\d{1,3}) id=(?P<id>\d{1,5})) ",
    re.ASCII,
)


def listed_flows(text: str, addresses: Collection[IPAddress]) -> frozenset[FlowTuple]:
    """The first packets of the entries with one of these addresses at any end.

    Other protocols' and broken lines are passed over. An entry of another zone is named as if it
    were of zone 0.
    """
    marks = [f"={address.exploded} " for address in addresses]
    lines = (line for line in text.split("\n") if any(mark in line for mark in marks))
    return frozenset(flow for line in lines if (flow := _parse(line)) is not None)


def _parse(line: str) -> FlowTuple | None:
    found = _LINE.match(line)
    if found is None:
        return None
    protocol = int(found["protocol"])
    if protocol not in TRACKED or (protocol in ICMPS) != (found["id"] is not None):
        return None
    try:
        source, destination = ip_address(found["source"]), ip_address(found["destination"])
    except ValueError:
        return None
    if source.version != destination.version:
        return None
    if protocol in ICMPS:
        kind, code = int(found["type"]), int(found["code"])
        ports = int(found["id"]), kind << 8 | code
        fits = max(kind, code) <= 0xFF
    else:
        ports = int(found["sport"]), int(found["dport"])
        fits = True
    if not fits or max(ports) > 0xFFFF:
        return None
    return FlowTuple(source, destination, protocol, *ports)
