"""Every name another program can see, each made by one function.

Formats are Calico's, so that its tools recognise ours: host interface, WorkloadEndpoint,
handle, status file, block and affinity names.
"""

from __future__ import annotations

import hashlib
import re
from ipaddress import IPv4Network, IPv6Network
from urllib.parse import quote

from libtortie.model.plain_ip import plain_network

DEFAULT_NETWORK = "k8s-pod-network"
INTERFACE_PREFIX = "cali"
FIRST_INTERFACE = "eth0"
"""A sandbox's interface whose names are Calico's; others are told apart by their own."""

HOST_SIDE_MAC = "ee:ee:ee:ee:ee:ee"
"""Equal on all nodes, so that a migrated guest's gateway entry stays right."""

FILE_NAME_MAX = 255
"""Bytes of a file's name (NAME_MAX of Linux's file systems)."""

_ALIAS = "tortie:"
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""One word of a DNS name, as a pattern."""
_LABEL = re.compile(LABEL)
_NODE_NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")

HANDLE_MAX = 128
VM_MARK = ".vmi."
"""What tells a VM's handle from a container's, unless a network's own name has it."""

KUBERNETES_NAME_MAX = 253

ORCHESTRATOR_K8S = "k8s"
ORCHESTRATOR_CNI = "cni"


def is_node_name(text: str) -> bool:
    """Whether a node may be called so: a lower-case DNS name, as Kubernetes has it."""
    return _NODE_NAME.fullmatch(text) is not None


def host_ifname(namespace: str, pod: str, ifname: str = FIRST_INTERFACE) -> str:
    """Host end of a Kubernetes pod's veth: `cali` + 11 hex digits of SHA-1(`<ns>.<pod>`).

    For an interface beside the first one, `/<interface>` is hashed, too.
    """
    return _hashed(f"{namespace}.{pod}", ifname)


def host_ifname_of_container(container_id: str, ifname: str = FIRST_INTERFACE) -> str:
    """Host end of a veth for a caller that names no pod: `cali` + 11 hex of SHA-1 of the id.

    Calico takes the first 11 characters of the id. We differ, because callers that number their
    containers share them, and two containers with one name would be attached wrongly.
    """
    return _hashed(container_id, ifname)


def _hashed(workload: str, ifname: str) -> str:
    text = workload if ifname == FIRST_INTERFACE else f"{workload}/{ifname}"
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return INTERFACE_PREFIX + digest[:11]


def link_alias(network: str, container_id: str) -> str:
    """Alias (IFLA_IFALIAS) of the host end of a veth: whose it is, before any record says so.

    At most 199 bytes: a network's name has 63, a container id 128, neither has a `/`.
    """
    return f"{_ALIAS}{network}/{container_id}"


def sandbox_of_alias(alias: str) -> tuple[str, str] | None:
    """Network and container id in a link's alias; None when it is none of ours."""
    network, separator, container_id = alias.removeprefix(_ALIAS).partition("/")
    ours = alias.startswith(_ALIAS) and separator and network and container_id
    return (network, container_id) if ours else None


def wep_name(node: str, orchestrator: str, workload: str, endpoint: str) -> str:
    """WorkloadEndpoint name: segments joined by `-`, each `-` inside a segment doubled."""
    return "-".join(part.replace("-", "--") for part in (node, orchestrator, workload, endpoint))


def container_handle(network: str, container_id: str, ifname: str = FIRST_INTERFACE) -> str:
    """Handle of an ordinary pod: one per sandbox, and per interface beside the first.

    It is an object's name in Kubernetes, in lower case. An interface whose name could not be a
    label there is told by a digest, which is longer than any interface's name.
    """
    handle = f"{network or DEFAULT_NETWORK}.{container_id}"
    if ifname == FIRST_INTERFACE:
        return handle
    plain = _LABEL.fullmatch(ifname)
    return f"{handle}.{ifname if plain else hashlib.sha256(ifname.encode()).hexdigest()[:32]}"


def vm_handle(network: str, namespace: str, vmi_name: str) -> str:
    """Handle of a VM: the same for every pod that ever runs it.

    A VMI has its VM's name. Over 128 characters the identity part becomes a SHA-256 digest:
    lower-case hex, because the handle is also a Kubernetes object name.
    """
    prefix = f"{network or DEFAULT_NETWORK}{VM_MARK}"
    identity = f"{namespace}.{vmi_name}"
    if len(prefix) + len(identity) > HANDLE_MAX:
        identity = hashlib.sha256(identity.encode()).hexdigest()
    return prefix + identity


def vm_interface_handle(network: str, namespace: str, vmi_name: str, ifname: str) -> str:
    """Handle of a VM's interface where another one of the VM has the network's."""
    digest = hashlib.sha256(f"{namespace}.{vmi_name}/{ifname}".encode()).hexdigest()
    return f"{network or DEFAULT_NETWORK}{VM_MARK}{digest}"


def vm_of_handle(handle_id: str) -> tuple[str, str] | None:
    """Namespace and name of the VM a handle is of; None when that is not certain.

    A namespace has no dots, a VM's name may; of a digest nothing can be told.
    """
    _, _, identity = handle_id.partition(VM_MARK)
    namespace, _, name = identity.partition(".")
    return (namespace, name) if namespace and name and handle_id.count(VM_MARK) == 1 else None


def status_file_name(orchestrator: str, workload: str, endpoint: str) -> str:
    """Name of an endpoint-status file, e.g. `k8s default%2Fweb-0 eth0`.

    No file name has more than 255 bytes, while a pod's name alone may have 253: a longer one
    keeps its first 190 characters, then `#` and the SHA-256 of the whole. The `#`, which other
    names have as `%23`, keeps the two kinds apart.
    """
    parts = (orchestrator, workload, endpoint)
    name = " ".join(quote(part, safe="$&+:=@~") for part in parts)
    if len(name) <= FILE_NAME_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: FILE_NAME_MAX - len(digest) - 1]}#{digest}"


def block_name(cidr: IPv4Network | IPv6Network) -> str:
    """Kubernetes name of a block: every `.`, `:` and the `/` become `-`."""
    return str(cidr).replace(".", "-").replace(":", "-").replace("/", "-")


def block_of_name(name: str) -> IPv4Network | IPv6Network:
    """The block of a name; ValueError for one that no block has."""
    *parts, prefixlen = name.split("-")
    decimal = len(parts) == 4 and all(part.isdecimal() for part in parts)
    cidr = plain_network(f"{('.' if decimal else ':').join(parts)}/{prefixlen}", strict=True)
    if block_name(cidr) != name:
        raise ValueError(f"{name!r} would be {block_name(cidr)!r}")
    return cidr


def affinity_name(node: str, cidr: IPv4Network | IPv6Network) -> str:
    """Kubernetes name of a block affinity; 253 characters or more are cut and hashed to 252."""
    block = block_name(cidr)
    name = f"{node}-{block}"
    if len(name) < KUBERNETES_NAME_MAX:
        return name
    digest = hashlib.sha256(f"{node}+{block}".encode()).hexdigest()[:11]
    return f"{node[: 252 - len(block) - 13]}-{block}-{digest}"


def derived_mac(handle_id: str) -> str:
    """A stable, locally administered unicast MAC for a VM that names none.

    A function of the handle alone, so that every node gives the VM the same address and
    nothing has to be stored. The top byte is fixed (02) as for any locally administered
    unicast address; 40 bits come from SHA-256.
    """
    digest = hashlib.sha256(handle_id.encode()).digest()[:5]
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest))


ANNOTATION_POD_UID = "tortie.io/pod-uid"
ANNOTATION_STATIC_UID = "tortie.io/static-pod-uid"
ANNOTATION_VMI_NAME = "tortie.io/vmi-name"
ANNOTATION_VMI_UID = "tortie.io/vmi-uid"
ANNOTATION_VM_UID = "tortie.io/vm-uid"
ANNOTATION_HANDLE = "tortie.io/handle"
ANNOTATION_MIGRATION_UID = "tortie.io/migration-uid"
ANNOTATION_IPAM = "tortie.io/ipam"
ANNOTATION_MTU = "tortie.io/mtu"
"""What the CNI plugin proved about an attachment, on its WorkloadEndpoint, for the agent."""
