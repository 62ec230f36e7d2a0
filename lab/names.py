"""Names and numbers of the lab, each made in one place.

Everything the lab puts on a machine carries the prefix `tlab-` (network namespaces) or lies
under its state directory, so that `lab down` can find all of it without having been told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path

PREFIX = "tlab-"
NETNS_DIR = Path("/run/netns")
DEFAULT_STATE_DIR = Path("/run/tortie-lab")

CLUSTER_SUBNET = IPv4Network("172.31.0.0/24")
EXT_SUBNET = IPv4Network("172.31.1.0/24")
POOL = IPv4Network("10.65.0.0/16")
BLOCK_SIZE = 26
CLUSTER_SUBNET6 = IPv6Network("fd00:172:31::/64")
EXT_SUBNET6 = IPv6Network("fd00:172:31:1::/64")
POOL6 = IPv6Network("fd00:10:65::/64")
BLOCK_SIZE6 = 122
FAMILIES = {4: "IPv4", 6: "IPv6"}
TOR_ADDRESS = IPv4Address("172.31.0.1")
TOR_ADDRESS6 = CLUSTER_SUBNET6[1]
TOR_ADDRESSES = (TOR_ADDRESS, TOR_ADDRESS6)
API_ADDRESS = IPv4Address("172.31.0.10")
API_PORT = 6443
EXT_ADDRESS = IPv4Address("172.31.1.2")
EXT_ADDRESS6 = EXT_SUBNET6[2]
CLUSTER_AS = 64512
TOR_AS = 65000
ECHO_PORT = 7
MAX_NODES = 100
POLICY_TIMEOUT_S = 10
"""How long ADD waits for policy before the pod starts without."""

REFLECTOR_CLUSTER = "244.0.0.1"
"""The cluster id of the lab's route reflectors."""
REFLECTOR_LABEL = "route-reflector"
"""Nodes that have it are the others' reflectors."""

METRIC_NORMAL = 1024
METRIC_ELEVATED = 512

TOR = "tor"
EXT = "ext"
API = "api"

ANNOTATION_BLACKOUT = "lab.tortie.io/blackout-ms"
ANNOTATION_GARP = "lab.tortie.io/garp"
ANNOTATION_SILENT = "lab.tortie.io/silent"
ANNOTATION_CUTOVER = "lab.tortie.io/cutover"
ANNOTATION_COPY = "lab.tortie.io/copy-s"
"""On a migration: how long its memory takes to copy, in seconds."""
ANNOTATION_HOLD_MOVE = "lab.tortie.io/hold-move"
"""On a migration of a QEMU guest: the status of `query-migrate` it stays in until called off."""
ANNOTATION_GUEST = "lab.tortie.io/guest"
"""On an instance (or a VM's template): which kind of guest it is."""
ANNOTATION_HOLD = "lab.tortie.io/hold-phase"
"""On a migration: the phase it stays in until the annotation goes."""
ANNOTATION_LINGER = "lab.tortie.io/linger-s"
"""On a pod (or a VM's template): how long its containers take to end, in seconds."""


@dataclass(frozen=True, slots=True)
class LabNode:
    """One node of the lab."""

    name: str
    address: IPv4Interface
    address6: IPv6Interface

    @property
    def netns(self) -> str:
        """Its network namespace's name."""
        return netns(self.name)

    def ip(self, version: int) -> IPv4Address | IPv6Address:
        """Its own address of a family."""
        return self.address.ip if version == 4 else self.address6.ip


def netns(part: str) -> str:
    """Network namespace of a fixed part: `tor`, `ext`, `api` or a node's name."""
    return PREFIX + part


def netns_path(name: str) -> Path:
    """Where `ip netns` keeps a namespace's handle."""
    return NETNS_DIR / name


def pod_netns(pod: str, uid: str) -> str:
    """Namespace of a pod; the UID tells two pods of one name apart."""
    return f"{PREFIX}pod-{pod}-{uid[:8]}"


def guest_netns(vmi: str, uid: str) -> str:
    """Namespace that stands for the guest's own kernel."""
    return f"{PREFIX}vm-{vmi}-{uid[:8]}"


def hypervisor_netns(vmi: str, uid: str) -> str:
    """Namespace of the guest's switch: what QEMU's network backend is on a real node."""
    return f"{PREFIX}hv-{vmi}-{uid[:8]}"


def cable(pod_uid: str) -> str:
    """Hypervisor end of the cable whose other end is `tap0` in a launcher pod."""
    return f"c{pod_uid.replace('-', '')[:12]}"


def lab_nodes(count: int) -> tuple[LabNode, ...]:
    """`node1` … `nodeN` at .11 and ::11 and up. Raises `ValueError` outside 1 … `MAX_NODES`."""
    if not 1 <= count <= MAX_NODES:
        raise ValueError(f"a lab has 1 to {MAX_NODES} nodes, not {count}")
    four, six = CLUSTER_SUBNET, CLUSTER_SUBNET6
    return tuple(
        LabNode(
            f"node{n}",
            IPv4Interface(f"{four[10 + n]}/{four.prefixlen}"),
            IPv6Interface(f"{six[0x10 + n]}/{six.prefixlen}"),
        )
        for n in range(1, count + 1)
    )


def reflectors(nodes: Sequence[LabNode], count: int) -> tuple[LabNode, ...]:
    """The nodes that reflect: the first so many. Raises `ValueError` for one that is not there."""
    if not 0 <= count <= len(nodes):
        raise ValueError(f"{count} of {len(nodes)} nodes cannot be route reflectors")
    return tuple(nodes[:count])


def prober(place: str, version: int) -> str:
    """What a prober of a place is called that probes in one family."""
    return place if version == 4 else f"{place} ({FAMILIES[version]})"


def api_url() -> str:
    """The API server as the cluster's processes reach it."""
    return f"http://{API_ADDRESS}:{API_PORT}"


def linger_s(annotations: Mapping[str, str]) -> float:
    """How long a pod's containers take to end; what is no number of seconds is none."""
    text = annotations.get(ANNOTATION_LINGER, "")
    return float(text) if text.isascii() and text.isdigit() else 0.0
