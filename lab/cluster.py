"""`lab up`: from nothing to a cluster whose nodes accept pods.

Each step leaves something that `lab down` finds by itself, so an interrupted `up` is undone like
a finished one.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence
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
from lab.teardown import is_alive, remove_namespaces, tear_down
from lab.tools import LabError, missing_tools, run
from lab.topology import Topology, apply_topology, plan_topology
from lab.tor import render_tor, session
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
STARTING = 9
"""How many agents start at once."""
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
    reflectors: int = 0,
) -> Topology:
    """Start a lab and return when pods can be made; `make_way` comes before.

    Raises `LabError`; what was made until then is for `tear_down`.
    """
    topology = plan_topology(node_count)
    reflecting = names.reflectors(topology.nodes, reflectors)
    record = LabRecord(
        node_count,
        convergence,
        missing_mount_points(),
        datastore=datastore,
        guest=guest,
        vxlan=vxlan,
        reflectors=reflectors,
    )
    make_directories(state, record)
    tell(f"network: {len(topology.namespaces)} namespaces")
    apply_topology(topology)
    pin_filesystem(state)
    for node in topology.nodes:
        make_node(state, node)
    tell("ToR, API server")
    start_tor(state, reflecting or topology.nodes)
    start_api(state)
    fill_api(topology.nodes, reflecting)
    fill_datastore(state, record, reflecting)
    tell("agents, control plane")
    make_authority(state)
    for node in topology.nodes:
        equip_node(state, node, datastore)
    start_agents(state, topology.nodes)
    start_daemon(state, node_count)
    until(lambda: meshed(state, node_count, reflectors), "not every BGP session is established")
    return topology


def make_way(state: StateDir) -> None:
    """Raise `LabError` when the machine lacks a tool or has a lab that lives, in whichever place.

    What a dead one left is removed. The caller holds the lab lock.
    """
    missing = missing_tools()
    if missing:
        raise LabError(f"missing system tools: {', '.join(missing)}; run `make setup` as root")
    bury_dead(state)
    active = active_state()
    if active is not None and active.root != state.root:
        way = f"`lab --state-dir {active.root} down`"
        raise LabError(f"a lab is up already in {active.root}; end it with {way} if it is yours")
    present = lab_namespaces()
    if present or state.record_file.exists():
        seen = f" ({', '.join(present[:3])} …)" if present else f" ({state.record_file})"
        raise LabError(f"a lab is up already{seen}; end it with `lab down`")


def bury_dead(state: StateDir) -> None:
    """Remove what a lab left that has no process any more, be it in `state` or elsewhere.

    Raises `LabError` where that is more than a lab makes. The caller holds the lab lock.
    """
    for known in (active_state(), state):
        if known is not None and known.record_file.exists() and not is_alive(known):
            _bury(known)
    if active_state() is None and not is_alive(state):
        remove_namespaces()  # its directory was removed by somebody else


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


def start_tor(state: StateDir, nodes: tuple[names.LabNode, ...]) -> None:
    """The ToR's BIRD, with sessions to these nodes."""
    config = state.tor / "bird.conf"
    config.write_text(render_tor(nodes, state.tor / "bird.log"))
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


def fill_datastore(
    state: StateDir, record: LabRecord, reflecting: Sequence[names.LabNode] = ()
) -> None:
    """Pool, BGP configuration and agent settings; of the API's Nodes it is theirs to say who
    reflects."""
    wanted = seed.resources(record.convergence, record.vxlan, reflected=bool(reflecting))
    if record.datastore == SQLITE:
        wanted += tuple(seed.reflector(node) for node in reflecting)

    def work(store: Datastore) -> None:
        for key, resource in wanted:
            store.create(key, resource)

    with_store(state, record.datastore, work, create=True)


def fill_api(nodes: Sequence[names.LabNode], reflecting: Sequence[names.LabNode] = ()) -> None:
    """Core Nodes, and the object on which kubectl sets address persistence."""
    wanted: list[tuple[type[KubeObject], dict[str, Any]]] = [
        (IPAMSettings, seed.ipam_configuration()),
        *((KubeNode, seed.kube_node(node, reflector=node in reflecting)) for node in nodes),
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
    """A node's agent, with the niceness of its systemd unit: this environment's program, or another
    one by its path on the node."""
    agent = program or str(tool("tortie-node"))
    command = ["nice", "-n", "-5", agent, "--config", "/etc/tortie/node.yaml"]
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


def start_agents(state: StateDir, nodes: Sequence[names.LabNode]) -> None:
    """All agents, a few at a time, until each serves CNI: a hundred that start at once would keep
    each other from it for minutes."""
    starting: dict[str, Process] = {}
    for node in nodes:
        if len(starting) == STARTING:
            _await_cni(state, starting)
        starting[node.name] = start_agent(state, node.name)
    while starting:
        _await_cni(state, starting)


def _await_cni(state: StateDir, starting: dict[str, Process]) -> None:
    """Wait for the first of these agents, and take it out."""
    node = next(iter(starting))
    complaint = f"the agent of {node} does not serve CNI; see log/agent-{node}.log"
    until((state.node(node, "run") / "cni.sock").exists, complaint, child=starting.pop(node))


def sessions_of(
    node: names.LabNode, nodes: Sequence[names.LabNode], reflecting: Sequence[names.LabNode] = ()
) -> frozenset[str]:
    """Names of the BGP protocols a node's BIRD has, in each family: one for each other node, one
    for the ToR.

    Where nodes reflect, they alone have those, and the others one for each of them.
    """
    others = nodes if node in reflecting else reflecting or nodes
    mesh, member = not reflecting, bool(reflecting)
    found = [
        Peer(other.ip(version), names.CLUSTER_AS, mesh=mesh, member=member)
        for other in others
        if other != node
        for version in names.FAMILIES
    ]
    if node in reflecting or not reflecting:
        found += [Peer(address, names.TOR_AS) for address in names.TOR_ADDRESSES]
    return frozenset(peer.protocol for peer in found)


def meshed(state: StateDir, count: int, reflectors: int = 0) -> bool:
    """Whether all nodes and the ToR have all sessions. Raises `LabError` naming what is missing."""
    nodes = names.lab_nodes(count)
    reflecting = names.reflectors(nodes, reflectors)
    birdc = ["birdc", "-s", "/run/tortie/bird.ctl", "show", "protocols"]
    known = reflecting or nodes
    wanted = {session(node.name, version) for node in known for version in names.FAMILIES}
    missing = {names.TOR: frozenset(wanted - established(state))}
    for node in nodes:
        up = parse_established(run(in_node(state, node.name, birdc)))
        missing[node.name] = sessions_of(node, nodes, reflecting) - up
    words = [f"{name}: {', '.join(sorted(lack))}" for name, lack in missing.items() if lack]
    if words:
        raise LabError(f"missing: {'; '.join(words)}; see `lab exec NODE -- birdc …`")
    return True


def established(state: StateDir) -> set[str]:
    """The ToR's sessions that are up, by `tor.session`."""
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
