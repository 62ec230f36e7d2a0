"""The MTU of an attachment: the one that ADD gives it, and what CHECK says of another.

Too large a one loses large packets without a word, so CHECK names it at either end. A smaller one
inside the pod is nobody's error: a later plugin of the chain (`tuning`) sets it there, says so in
no result, and checks it itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cni_plugin import dataplane
from cni_plugin.chain import Previous
from cni_plugin.ports import Ports
from cni_plugin.types import NetConf
from libtortie.errors import Unavailable
from libtortie.files import read_text
from libtortie.linux.port import Link

FALLBACK_MTU = 1500
LARGEST = 65535


def wanted(conf: NetConf, ports: Ports) -> int:
    """The configuration's, else the agent's file, else the default route's link, else 1500.

    Raises `Unavailable` where the file is required and names none.
    """
    if conf.mtu:
        return conf.mtu
    file = ports.mtu_file
    try:
        text = read_text(file).strip()
    except OSError:
        text = ""
    if named := _number(text):
        return named
    if conf.require_mtu_file:
        raise Unavailable(f"require_mtu_file: {file} names no MTU: is tortie-node running?")
    return dataplane.default_route_mtu(ports.kernel) or FALLBACK_MTU


def _number(text: str) -> int:
    """The MTU that a text says; 0 where it says none."""
    readable = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST))
    return int(text) if readable and int(text) <= LARGEST else 0


@dataclass(frozen=True, slots=True)
class Expected:
    """An MTU, and who says so. `exact`: it was this one's at ADD, not only what ADD gives now."""

    mtu: int
    source: str
    exact: bool


def expected(before: Previous, host: str, stored: str, conf: NetConf, ports: Ports) -> Expected:
    """What the host's end has by right: as ADD answered, as a VM's endpoint has it, or as now.

    Raises `Unavailable`, as ADD would.
    """
    if told := before.mtu_of(host):
        return Expected(told, "prevResult", exact=True)
    if noted := _number(stored):
        return Expected(noted, "the endpoint", exact=True)
    source = "the configuration" if conf.mtu else "the node"
    return Expected(wanted(conf, ports), source, exact=bool(conf.mtu))


def host_difference(host: Link, right: Expected) -> Iterator[str]:
    """What is wrong with the host's end."""
    if host.mtu > right.mtu or (right.exact and host.mtu != right.mtu):
        yield f"interface {host.name} has MTU {host.mtu}, {right.source} {right.mtu}"


def pod_difference(pod: Link, right: Expected) -> Iterator[str]:
    """What is wrong with the pod's end."""
    if pod.mtu > right.mtu:
        yield f"{pod.name} has MTU {pod.mtu}, {right.source} {right.mtu}"
