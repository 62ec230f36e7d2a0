"""What is left on nodes, ToR and in the datastore of pods that are gone."""

from __future__ import annotations

import json
from ipaddress import ip_network

from lab import names
from lab.datastore import with_store
from lab.processes import lab_namespaces
from lab.state import StateDir
from lab.tools import run
from lab.topology import Topology
from libtortie.datastore.port import Datastore
from libtortie.model.ipam import Block
from libtortie.model.keys import Blocks, Handles, Kind, Resources


def remains(state: StateDir, topology: Topology) -> tuple[str, ...]:
    """Traces of workloads, in words; blocks and their routes may stay with their node."""
    found: list[str] = []
    for node in topology.nodes:
        found += _on_node(node)
        status = state.node(node.name, "run") / "endpoint-status"
        if status.is_dir():
            found += [f"{node.name}: status file {path.name!r}" for path in status.iterdir()]
    found += _host_routes(names.netns(names.TOR), names.TOR)
    found += [f"namespace {name}" for name in lab_namespaces() if _of_workload(name)]
    return tuple(found + with_store(state, state.read().datastore, _stored))


def _of_workload(namespace: str) -> bool:
    return namespace.startswith(tuple(f"{names.PREFIX}{kind}-" for kind in ("pod", "vm", "hv")))


def _on_node(node: names.LabNode) -> list[str]:
    links = json.loads(run(["ip", "-n", node.netns, "-j", "link"]))
    found = [
        f"{node.name}: link {link['ifname']}" for link in links if link["ifname"].startswith("cali")
    ]
    return found + _host_routes(node.netns, node.name)


def _host_routes(netns: str, where: str) -> list[str]:
    found = []
    for family, pool in (("-4", names.POOL), ("-6", names.POOL6)):
        command = ["ip", "-n", netns, "-j", family, "route", "show", "table", "main"]
        for route in json.loads(run(command) or "[]"):
            dst = ip_network("::/0" if route["dst"] == "default" else route["dst"])
            host = dst.prefixlen == pool.max_prefixlen and dst.network_address in pool
            if host and route.get("protocol") != "kernel":  # that is a tunnel's own address
                found.append(f"{where}: route {route['dst']} metric {route.get('metric', 0)}")
    return found


def _stored(store: Datastore) -> list[str]:
    found = [f"handle {record.key}" for record in store.list(Handles()).records]
    endpoints = store.list(Resources(Kind.WORKLOAD_ENDPOINT)).records
    found += [f"endpoint {record.key}" for record in endpoints]
    blocks = [*store.list(Blocks(4)).records, *store.list(Blocks(6)).records]
    for record in blocks:
        if isinstance(record.value, Block) and (used := used_addresses(record.value)):
            found.append(f"block {record.value.cidr}: {used} addresses")
    return found


def used_addresses(block: Block) -> int:
    """How many of a block's addresses are allocated."""
    return sum(1 for slot in block.allocations if slot is not None)
