"""The lab's wires: which namespaces, links, addresses and routes, decided first, then made.

    tlab-node1 .11 ─┐
    tlab-node2 .12 ─┤  172.31.0.0/24            172.31.1.0/24
    tlab-node3 .13 ─┼─ bridge "lan" in tlab-tor ─────────── tlab-ext .2
    tlab-api   .10 ─┘  .1, AS 65000         .1

IPv6 beside it, for all but the API server: fd00:172:31::/64 (nodes at ::11 and up, the ToR at ::1)
and fd00:172:31:1::/64. No address is searched for duplicates: each is to be used at once.

No link ever exists in the machine's own namespace: each veth is created with both ends in their
final namespaces, so nothing can be left there either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lab import names
from lab.tools import ip_batch, run, set_sysctls


@dataclass(frozen=True, slots=True)
class Topology:
    """What has to exist: namespaces in order, `ip` commands and sysctls of each."""

    nodes: tuple[names.LabNode, ...]
    namespaces: tuple[str, ...]
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sysctls: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


NO_REDIRECTS = {
    "net.ipv4.conf.all.send_redirects": "0",
    "net.ipv4.conf.default.send_redirects": "0",
}
"""A switch sends none; the API server would otherwise remember where a VM was before it moved."""

FORWARDING = {"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}


def plan_topology(node_count: int) -> Topology:
    """The whole topology of a lab with so many nodes."""
    nodes = names.lab_nodes(node_count)
    tor, ext, api = (names.netns(part) for part in (names.TOR, names.EXT, names.API))
    commands = {tor: _tor_commands(nodes)}
    commands[ext] = (
        *_leaf_commands(f"{names.EXT_ADDRESS}/24", str(names.EXT_SUBNET[1])),
        *_leaf_commands6(f"{names.EXT_ADDRESS6}/64", str(names.EXT_SUBNET6[1])),
    )
    commands[api] = _leaf_commands(f"{names.API_ADDRESS}/24", str(names.TOR_ADDRESS))
    sysctls: dict[str, Mapping[str, str]] = {tor: {**FORWARDING, **NO_REDIRECTS}}
    for node in nodes:
        commands[node.netns] = (
            *_leaf_commands(str(node.address), str(names.TOR_ADDRESS)),
            *_leaf_commands6(str(node.address6), str(names.TOR_ADDRESS6)),
        )
        sysctls[node.netns] = FORWARDING
    return Topology(
        nodes=nodes,
        namespaces=(tor, ext, api, *(node.netns for node in nodes)),
        commands=commands,
        sysctls=sysctls,
    )


def _tor_commands(nodes: tuple[names.LabNode, ...]) -> tuple[str, ...]:
    ports = {node.name: node.netns for node in nodes}
    ports[names.API] = names.netns(names.API)
    lines = [
        "link set lo up",
        "link add lan type bridge stp_state 0 mcast_snooping 0",
        f"addr add {names.TOR_ADDRESS}/{names.CLUSTER_SUBNET.prefixlen} dev lan",
        f"addr add {names.TOR_ADDRESS6}/{names.CLUSTER_SUBNET6.prefixlen} dev lan nodad",
        "link set lan up",
    ]
    for port, peer in ports.items():
        lines.append(f"link add {port} type veth peer name eth0 netns {peer}")
        lines.append(f"link set {port} master lan up")
    lines += [
        f"link add {names.EXT} type veth peer name eth0 netns {names.netns(names.EXT)}",
        f"addr add {names.EXT_SUBNET[1]}/{names.EXT_SUBNET.prefixlen} dev {names.EXT}",
        f"addr add {names.EXT_SUBNET6[1]}/{names.EXT_SUBNET6.prefixlen} dev {names.EXT} nodad",
        f"link set {names.EXT} up",
    ]
    return tuple(lines)


def _leaf_commands(address: str, gateway: str) -> tuple[str, ...]:
    return (
        "link set lo up",
        f"addr add {address} dev eth0",
        "link set eth0 up",
        f"route add default via {gateway}",
    )


def _leaf_commands6(address: str, gateway: str) -> tuple[str, ...]:
    return (f"addr add {address} dev eth0 nodad", f"route add ::/0 via {gateway}")


def apply_topology(topology: Topology) -> None:
    """Make everything of a plan. Raises `LabError` at the first refusal; undo is `lab down`."""
    for name in topology.namespaces:
        run(["ip", "netns", "add", name])
    for name in topology.namespaces:
        set_sysctls(name, topology.sysctls.get(name, {}))
        ip_batch(name, topology.commands[name])
