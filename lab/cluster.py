"""`lab up`: from nothing to a cluster whose nodes accept pods.

Each step leaves something that `lab down` finds by itself, so an interrupted `up` is undone like
a finished one.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any, TypeVar

import yaml

from cni_plugin.conflist import conflist
from cni_plugin.install import install
from cni_plugin.program import program
from felix_shim.bgp_model import Peer
from lab import names, seed
from lab.certificates import certify, make_authority
from lab.datastore import SQLITE, settings, with_store
from lab.guest_store import PACKET
from lab.interrupts import uninterrupted
from lab.nodes import (
    in_netns,
    in_node,
    make_node,
    missing_mount_points,
    pin_filesystem,
)
from lab.processes import lab_namespaces, spawn
from lab.state import LabRecord, StateDir, active_state
from lab.teardown import is_alive, tear_down
from lab.tools import LabError, missing_tools, run
from lab.topology import Topology, apply_topology, plan_topology
from lab.tor import render_tor
from libtortie.datastore.port import Datastore
from libtortie.errors import AlreadyExists, TortieError, first_line
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import IPAMSettings, KubeNode, KubeObject
from libtortie.linux.netns import Netns

T = TypeVar("T")
READY_DEADLINE_S = 120.0
POLL_S = 0.1
CONTROL_PLANE = "kubelets and KubeVirt"
API_WORK_S = 180.0
Tell = Callable[[str], None]
Process = Popen[bytes]


def bring_up(
    state: StateDir,
    node_count: int,
    convergence: str,
    tell: Tell,
    *,
    datastore: str = SQLITE,
    guest: str = PACKET,
    vxlan: str = seed.NEVER,
) -> Topology:
    """Start a lab and return when pods can be made; `make_way` comes before.

    Raises `LabError`; what was made until then is for `tear_down`.
    """
    topology = plan_topology(node_count)
    made = missing_mount_points()
    record = LabRecord(node_count, convergence, made, datastore=datastore, guest=guest, vxlan=vxlan)
    make_directories(state, record)
    tell(f"network: {len(topology.namespaces)} namespaces")
    apply_topology(topology)
    pin_filesystem(state)
    for node in topology.nodes:
        make_node(state, node)
    tell("ToR, API server")
    start_tor(state, topology)
    start_api(state)
    fill_api(topology)
    fill_datastore(state, record)
    tell("agents, control plane")
    make_authority(state)
    agents: dict[str, Process] = {}
    for node in topology.nodes:
        equip_node(state, node, datastore)
        agents[node.name] = start_agent(state, node.name)
    start_daemon(state, node_count)
    await_ready(state, agents)
    return topology


def make_way(state: StateDir) -> None:
    """Raise `LabError` when the machine lacks a tool or has a lab that lives, in whichever place.

    What a dead one left is removed. The caller holds the lab lock.
    """
    missing = missing_tools()
    if missing:
        raise LabError(f"missing system tools: {', '.join(missing)}; run `make setup` as root")
    for known in (active_state(), state):
        if known is not None and known.record_file.exists() and not is_alive(known):
            _bury(known)
    active = active_state()
    if active is not None and active.root != state.root:
        way = f"`lab --state-dir {active.root} down`"
        raise LabError(f"a lab is up already in {active.root}; end it with {way} if it is yours")
    present = lab_namespaces()
    if present or state.record_file.exists():
        seen = f" ({', '.join(present[:3])} …)" if present else f" ({state.record_file})"
        raise LabError(f"a lab is up already{seen}; end it with `lab down`")


def _bury(dead: StateDir) -> None:
    """Remove a dead lab; a directory that has other things, too, is left to whoever knows it."""
    if strangers := dead.strangers():
        raise LabError(
            f"{dead.root} has {dead.record_file.name}, but also what no lab makes"
            f" ({', '.join(strangers[:3])}); if a lab was there, `lab --state-dir {dead.root} down`"
            " removes what it made"
        )
    with uninterrupted():
        tear_down(dead)


def make_directories(state: StateDir, record: LabRecord) -> None:
    """The state directory and the mount points, written down before they are made."""
    state.write(record)
    for path in record.made_dirs:
        Path(path).mkdir(exist_ok=True)
    for directory in (state.logs, state.tor, state.pods, state.database.parent):
        directory.mkdir(parents=True, exist_ok=True)


def start_tor(state: StateDir, topology: Topology) -> None:
    """The ToR's BIRD."""
    config = state.tor / "bird.conf"
    config.write_text(render_tor(topology.nodes, state.tor / "bird.log"))
    run(["bird", "-p", "-c", str(config)])
    command = ["bird", "-f", "-c", str(config), "-s", str(state.tor / "bird.ctl")]
    spawn(
        state.ledger,
        "bird of the ToR",
        in_netns(names.netns(names.TOR), command),
        log=state.logs / "tor-bird.log",
    )


def start_api(state: StateDir) -> None:
    """The Kubernetes API server, in its own namespace."""
    listen = f"{names.API_ADDRESS}:{names.API_PORT}"
    command = [sys.executable, "-m", "lab.kube_api", "--listen", listen]
    command += ["--kubeconfig", str(state.kubeconfig)]
    child = spawn(
        state.ledger,
        "API server",
        in_netns(names.netns(names.API), command),
        log=state.logs / "api.log",
    )
    until(api_answers, "the API server does not answer; see log/api.log", child=child)


def api_answers() -> bool:
    """Whether the API server accepts connections."""

    def work() -> bool:
        try:
            socket.create_connection((str(names.API_ADDRESS), names.API_PORT), 1).close()
        except OSError:
            return False
        return True

    return in_api(work)


def in_api(work: Callable[[], T]) -> T:
    """Run work inside the API server's namespace, from which the API can be reached."""
    return Netns(deadline=API_WORK_S).call(str(names.netns_path(names.netns(names.API))), work)


def fill_datastore(state: StateDir, record: LabRecord) -> None:
    """Pool, BGP configuration and agent settings."""

    def work(store: Datastore) -> None:
        for key, resource in seed.resources(record.convergence, record.vxlan):
            store.create(key, resource)

    with_store(state, record.datastore, work, create=True)


def fill_api(topology: Topology) -> None:
    """Core Nodes, and the object on which kubectl sets address persistence."""
    wanted: list[tuple[type[KubeObject], dict[str, Any]]] = [
        (IPAMSettings, seed.ipam_configuration()),
        *((KubeNode, seed.kube_node(node)) for node in topology.nodes),
    ]

    def work() -> None:
        client = HttpKubeClient(direct(names.api_url()))
        for kind, body in wanted:
            with suppress(AlreadyExists):
                client.create(kind, body)
        client.close()

    in_api(work)


def equip_node(state: StateDir, node: names.LabNode, datastore: str) -> None:
    """A node's agent configuration and certificate, CNI executable and conflist."""
    where = settings(state, datastore)
    config = seed.agent_config(node, where)
    (state.node(node.name, "etc") / "node.yaml").write_text(yaml.safe_dump(config))
    certify(state, node.name)
    install(
        state.node(node.name, "cni-bin"),
        state.node(node.name, "net.d"),
        program=program(socket="/run/tortie/cni.sock", fallback=str(tool("tortie-cni"))),
        conflist=conflist(seed.conflist_settings(node, where)),
    )


def tool(name: str) -> Path:
    """One of our own commands, from the environment this process runs in."""
    return Path(sys.executable).with_name(name)


def start_agent(state: StateDir, node: str, program: str = "") -> Process:
    """A node's agent: this environment's, or another one by its path on the node."""
    command = [program or str(tool("tortie-node")), "--config", "/etc/tortie/node.yaml"]
    return spawn(
        state.ledger,
        f"agent of {node}",
        in_node(state, node, command),
        log=state.logs / f"agent-{node}.log",
    )


def start_daemon(state: StateDir, node_count: int) -> Process:
    """Kubelets and KubeVirt; what they need from an earlier one they find by themselves."""
    command = [sys.executable, "-m", "lab.daemon"]
    command += ["--state-dir", str(state.root), "--nodes", str(node_count)]
    command += ["--guest", state.read().guest]
    return spawn(
        state.ledger,
        CONTROL_PLANE,
        in_netns(names.netns(names.API), command),
        log=state.logs / "daemon.log",
    )


def await_ready(state: StateDir, agents: Mapping[str, Process]) -> None:
    """Until every agent serves CNI and every BGP session, of the mesh and to the ToR, is up."""
    for node, agent in agents.items():
        path = state.node(node, "run") / "cni.sock"
        complaint = f"the agent of {node} does not serve CNI; see log/agent-{node}.log"
        until(path.exists, complaint, child=agent)
    until(lambda: meshed(state, len(agents)), "not every BGP session is established")


def sessions_of(node: names.LabNode, nodes: Sequence[names.LabNode]) -> frozenset[str]:
    """Names of the BGP protocols a node's BIRD has: one for each other node, one for the ToR."""
    mesh = (Peer(other.address.ip, names.CLUSTER_AS, mesh=True) for other in nodes if other != node)
    tor = Peer(names.TOR_ADDRESS, names.TOR_AS)
    return frozenset(peer.protocol for peer in (*mesh, tor))


def meshed(state: StateDir, count: int) -> bool:
    """Whether all nodes and the ToR have all sessions. Raises `LabError` naming what is missing."""
    nodes = names.lab_nodes(count)
    birdc = ["birdc", "-s", "/run/tortie/bird.ctl", "show", "protocols"]
    missing = {names.TOR: frozenset(node.name for node in nodes) - established(state)}
    for node in nodes:
        up = parse_established(run(in_node(state, node.name, birdc)))
        missing[node.name] = sessions_of(node, nodes) - up
    words = [f"{name}: {', '.join(sorted(lack))}" for name, lack in missing.items() if lack]
    if words:
        raise LabError(f"missing: {'; '.join(words)}; see `lab exec NODE -- birdc …`")
    return True


def established(state: StateDir) -> set[str]:
    """Nodes whose session the ToR has up."""
    try:
        text = run(["birdc", "-s", str(state.tor / "bird.ctl"), "show", "protocols"])
    except LabError:
        return set()
    return parse_established(text)


def parse_established(text: str) -> set[str]:
    """Names of established BGP protocols in `birdc show protocols`."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0] for row in rows if len(row) > 5 and row[1] == "BGP" and row[-1] == "Established"}


def until(
    condition: Callable[[], bool],
    complaint: str,
    deadline: float = READY_DEADLINE_S,
    child: Process | None = None,
) -> None:
    """Poll until a condition holds.

    Raises `LabError` with the complaint after the deadline, or when the process that was to
    make it true has ended.
    """
    end = time.monotonic() + deadline
    trouble = ""
    while True:
        try:
            if condition():
                return
        except TortieError as error:
            trouble = f" ({first_line(error)})"
        if child is not None and child.poll() is not None:
            raise LabError(f"{complaint}: its process ended with {child.returncode}")
        if time.monotonic() > end:
            raise LabError(f"after {deadline:g} s: {complaint}{trouble}")
        time.sleep(POLL_S)
