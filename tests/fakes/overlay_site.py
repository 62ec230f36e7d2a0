"""Three nodes with an agent each on one underlay, a store and an API for all, real VXLAN.

    fabric: bridge br0 172.31.1.1, API server ── n0 172.31.1.10, n1 .11, n2 .12

The VM `db` starts on n0, in whose block its address is. Everything is below one directory and in
namespaces of fresh names; `close` takes it all away.
"""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from lab.apiserver.server import ApiServer
from libtortie.errors import NotFound
from libtortie.linux.netns import Netns
from libtortie.model.keys import Kind
from tests.fakes import frames
from tests.fakes.agent_world import resource_record
from tests.fakes.called_node import CalledNode
from tests.fakes.certificates import Authority
from tests.fakes.cni_world import CniWorld
from tests.fakes.node_process import API_PORT, DEADLINE, ip, until

FABRIC = "172.31.1.1"
SOURCE, TARGET = "virt-launcher-db-0", "virt-launcher-db-1"
DEVICE = "vxlan.calico"


class OverlayNode(CalledNode):
    """One of the nodes; the API is the site's."""

    def __init__(self, site: OverlaySite, number: int) -> None:
        self.site = site
        self.number = number
        root = site.root / f"n{number}"
        root.mkdir()
        super().__init__(
            root,
            f"{site.name}n{number}",
            nodename=f"n{number}",
            ip=f"{site.address(number)}/24",
            sqlite_path=str(site.root / "tortie.db"),
            log_level="debug",
            **site.certificate(f"n{number}"),
        )
        self.world = site.world
        self.config["k8s_api_root"] = f"http://{FABRIC}:{API_PORT}"
        self.module = "tests.fakes.mortal_agent"

    @property
    def node(self) -> str:
        """The node's name."""
        return f"n{self.number}"

    def _make_namespace(self) -> None:
        ip("netns", "add", self.name)
        port = f"p{self.number}"
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", "up0", "type", "veth", "peer", "name", port, "netns", self.site.name)
        ip("-n", self.site.name, "link", "set", port, "master", "br0", "up")
        self.ip("address", "add", f"{self.site.address(self.number)}/24", "dev", "up0")
        self.ip("link", "set", "up0", "up")
        self.ip("route", "add", "default", "via", FABRIC)

    def _start_api(self, stack: ExitStack) -> None:
        """The site has one."""

    def _make_pool(self) -> None:
        """The site has one."""

    def plugin(self, **settings: Any) -> dict[str, Any]:
        """Our plugin's object in a list, on this node."""
        return super().plugin(nodename=self.node, **settings)

    def attach_pod(self, pod: str) -> str:
        """A CNI ADD; the address."""
        return self.done("ADD", pod, pod).address

    def way(self, address: str) -> str:
        """Where a packet from this node goes: a node's name, `here`, or the kernel's words."""
        command = ["ip", "-n", self.name, "-o", "route", "get", address]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        text = done.stdout or done.stderr
        if "dev cali" in text:
            return "here"
        via = re.search(r"via (\S+) dev (\S+)", text)
        if via and via[2] == DEVICE:
            return self.site.tunnels().get(via[1], text)
        direct = {self.site.address(number): f"n{number} directly" for number in range(3)}
        return direct.get(via[1], text) if via else text

    def announce(self, pod: str) -> None:
        """QEMU's announcement, from inside a pod."""
        mac = Netns(deadline=DEADLINE).call(self.sandbox(pod), lambda: _mac_of("eth0"))
        self.send(pod, frames.rarp(mac))

    def pings(self, pod: str, address: str, *, seconds: float = 1.0) -> bool:
        """Whether an address answers somebody in a pod's namespace."""
        command = ["nsenter", f"--net={self.sandbox(pod)}", "ping", "-n", "-c1", f"-W{seconds}"]
        return subprocess.run([*command, address], check=False, capture_output=True).returncode == 0

    def kill(self) -> None:
        """kill -9, and start again; waits until it serves."""
        assert self.stop(signal.SIGKILL) == -9
        self.start()


class OverlaySite:
    """The fabric, the API, and the nodes in it."""

    def __init__(
        self, root: Path, name: str, *, mode: str = "Always", convergence: str = "1s"
    ) -> None:
        self.root, self.name = root, name
        self.world = CniWorld(root / "world")
        self.nodes: list[OverlayNode] = []
        self.address_of_vm = ""
        self.authority = Authority(root, "peers")
        with ExitStack() as stack:
            ip("netns", "add", name)
            stack.callback(self._delete_fabric)
            for words in (
                "link set lo up",
                "link add br0 type bridge",
                f"address add {FABRIC}/24 dev br0",
                "link set br0 up",
            ):
                ip("-n", name, *words.split())
            self.server = ApiServer(FABRIC, API_PORT, api=self.world.kube.api)
            stack.callback(self.server.close)
            self.in_fabric(self.server.start)
            for number in range(3):
                node = OverlayNode(self, number)
                stack.callback(node.close)
                self.nodes.append(node)
            self.put(Kind.IP_POOL, "pool", cidr="10.65.0.0/24", blockSize=26, vxlanMode=mode)
            self.put(
                Kind.FELIX_CONFIGURATION,
                "default",
                liveMigrationRouteConvergenceTime=convergence,
            )
            self._undo = stack.pop_all()

    def close(self) -> None:
        """Take everything away."""
        self._undo.close()

    def _delete_fabric(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)

    # -- doing -------------------------------------------------------------------------------

    def address(self, number: int) -> str:
        """A node's own address."""
        return f"172.31.1.{10 + number}"

    def certificate(self, node: str) -> dict[str, str]:
        """Who a node is to other agents."""
        pair = self.authority.node(node)
        return {
            "peer_ca_file": str(self.authority.cert),
            "peer_cert_file": str(pair.cert),
            "peer_key_file": str(pair.key),
        }

    @contextmanager
    def full_store(self) -> Iterator[None]:
        """Nobody can write to the store meanwhile."""
        with closing(sqlite3.connect(self.root / "tortie.db", isolation_level=None)) as holder:
            holder.execute(f"PRAGMA busy_timeout = {int(DEADLINE * 1000)}")
            holder.execute("BEGIN IMMEDIATE")
            yield
            holder.execute("ROLLBACK")

    def gateway_mac(self, number: int, pod: str) -> str:
        """The MAC under which a pod's kernel knows its gateway, as a guest would."""
        command = ["ip", "-n", self.nodes[number].sandbox(pod).rpartition("/")[2], "-j", "neigh"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        known = {one["dst"]: one.get("lladdr", "") for one in json.loads(done.stdout)}
        return str(known["169.254.1.1"])

    def know_gateway(self, number: int, pod: str, mac: str) -> None:
        """Have a pod's kernel know it by this one, and never ask."""
        space = self.nodes[number].sandbox(pod).rpartition("/")[2]
        words = f"neigh replace 169.254.1.1 lladdr {mac} dev eth0 nud permanent"
        ip("-n", space, *words.split())

    def in_fabric(self, work: Callable[[], object]) -> None:
        """Do something in the fabric's namespace."""
        Netns(deadline=2 * DEADLINE).call(f"/run/netns/{self.name}", work)

    def put(self, kind: Kind, name: str, **spec: Any) -> None:
        """A resource in the store, in this form."""
        record = resource_record(kind, name, spec)
        store = self.nodes[0].store
        try:
            held = store.get(record.key)
        except NotFound:
            store.create(record.key, record.value)
        else:
            store.update(record.key, record.value, held.revision)

    def start(self) -> None:
        """Agents, tunnels, the VM on n0, and a client's pod on each node."""
        for node in self.nodes:
            node.start()
        until("every node has its tunnel", lambda: len(self.tunnels()) == 3)
        self.world.put_vm()
        self.world.put_launcher(SOURCE)
        self.nodes[0].say_vm_runs_on("n0")
        self.address_of_vm = self.nodes[0].attach_pod(SOURCE)
        for node in self.nodes:
            self.world.put_pod(f"client-{node.node}")
            node.attach_pod(f"client-{node.node}")
        until("all lead to n0", lambda: self.ways() == ["here", "n0", "n0"])

    def migrate(self, number: int, *, migration: str = "m1", pod: str = TARGET) -> None:
        """A migration to a node: its target is attached, and listens."""
        self.world.put_migration(migration, phase="Running")
        self.world.put_launcher(pod, migration=migration)
        node = self.nodes[number]
        listening = len(node.lines("sniffer_open"))
        assert node.attach_pod(pod) == self.address_of_vm
        until("the agent listens", lambda: len(node.lines("sniffer_open")) > listening)

    def leave(self, number: int, pod: str) -> None:
        """The guest stops at its source: whose pod must not answer for it from now on."""
        space = self.nodes[number].sandbox(pod)
        rules = (
            "add table ip gone { chain in { type filter hook input priority 0; policy drop; }; }"
        )
        command = ["nsenter", f"--net={space}", "nft", rules]
        subprocess.run(command, check=True, capture_output=True)

    def succeed(self, number: int, *, migration: str = "m1") -> None:
        """The API agrees."""
        self.nodes[0].say_vm_runs_on(f"n{number}")
        self.nodes[0].say_migration("Succeeded", migration)

    # -- looking -----------------------------------------------------------------------------

    def tunnels(self) -> dict[str, str]:
        """Tunnel address → node, of the nodes whose device is up."""
        found = {}
        for node in self.nodes:
            command = ["ip", "-n", node.name, "-j", "address", "show", "dev", DEVICE]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            for link in json.loads(done.stdout or "[]"):
                for one in link.get("addr_info", ()):
                    if one["family"] == "inet":
                        found[one["local"]] = node.node
        return found

    def ways(self) -> list[str]:
        """Where each node's packets for the VM go."""
        return [node.way(self.address_of_vm) for node in self.nodes]

    def answers(self) -> list[bool]:
        """Whether the VM answers a client on each node."""
        return [node.pings(f"client-{node.node}", self.address_of_vm) for node in self.nodes]


def _mac_of(link: str) -> str:
    """A link's MAC in the calling thread's namespace, by netlink: /sys is another's."""
    done = subprocess.run(
        ["ip", "-j", "link", "show", "dev", link], check=True, capture_output=True, text=True
    )
    return str(json.loads(done.stdout)[0]["address"])
