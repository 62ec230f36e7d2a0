"""Three nodes with an agent each on one underlay, a store and an API for all, real VXLAN.

    fabric: router, API server ── n0 172.31.1.10, n1 .11, n2 .12, each beside fd31:0:0:1::10 …
    or with these alone

A node may be in another subnet (172.31.2.0/24), which has the same router.

The VM `db` starts on n0, in whose block its address is. Everything is below one directory and in
namespaces of fresh names; `close` takes it all away.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
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

SOURCE, TARGET = "virt-launcher-db-0", "virt-launcher-db-1"
DEVICE, DEVICE6 = "vxlan.calico", "vxlan-v6.calico"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a site is like: the families of its pools, and the subnet of each node; in mode `Never`
    each node has a BIRD instead of a tunnel. `underlay` are the families between the nodes."""

    versions: tuple[int, ...] = (4,)
    mode: str = "Always"
    subnets: tuple[int, int, int] = (1, 1, 1)
    convergence: str = "1s"
    underlay: tuple[int, ...] = (4, 6)

    @property
    def bird(self) -> str:
        """The mode of the nodes' BIRDs."""
        return "supervised" if self.mode == "Never" else "off"

    @property
    def ipam(self) -> dict[str, str]:
        """What workloads get, in the plugin's words."""
        return {f"assign_ipv{one}": str(one in self.versions).lower() for one in (4, 6)}


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
            ip=f"{site.address(number)}/24" if 4 in site.shape.underlay else "none",
            ip6=f"{site.address(number, 6)}/64" if 6 in site.shape.versions else "none",
            sqlite_path=str(site.root / "tortie.db"),
            log_level="debug",
            bird={"mode": site.shape.bird},
            **site.certificate(f"n{number}"),
        )
        self.world = site.world
        self.config["k8s_api_root"] = site.server.url
        self.module = "tests.fakes.mortal_agent"

    @property
    def node(self) -> str:
        """The node's name."""
        return f"n{self.number}"

    def _make_namespace(self) -> None:
        ip("netns", "add", self.name)
        port, subnet = f"p{self.number}", self.site.shape.subnets[self.number]
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", "up0", "type", "veth", "peer", "name", port, "netns", self.site.name)
        ip("-n", self.site.name, "link", "set", port, "master", f"br{subnet}", "up")
        self.ip("link", "set", "up0", "up")
        for version in self.site.shape.underlay:
            own = f"{self.site.address(self.number, version)}/{_LENGTHS[version]}"
            self.ip("address", "add", own, "dev", "up0", *_AT_ONCE[version])
            self.ip("route", "add", "default", "via", router(subnet, version))

    def _start_api(self, stack: ExitStack) -> None:
        """The site has one."""

    def _make_pool(self) -> None:
        """The site has one."""

    def plugin(self, **settings: Any) -> dict[str, Any]:
        """Our plugin's object in a list, on this node."""
        return super().plugin(nodename=self.node, ipam=self.site.shape.ipam, **settings)

    def attach_pod(self, pod: str) -> tuple[str, ...]:
        """A CNI ADD; the addresses, without their prefix lengths."""
        body = self.done("ADD", pod, pod).body
        return tuple(one["address"].partition("/")[0] for one in body["ips"])

    def way(self, address: str) -> str:
        """Where a packet from this node goes: a node's name, `here`, or the kernel's words."""
        command = ["ip", "-n", self.name, "-o", "route", "get", address]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        text = done.stdout or done.stderr
        if "dev cali" in text:
            return "here"
        via = re.search(r"via (\S+) dev (\S+)", text)
        if via and via[2] in (DEVICE, DEVICE6):
            return self.site.tunnels(6 if via[2] == DEVICE6 else 4).get(via[1], text)
        version = ip_address(address).version
        direct = {self.site.address(number, version): f"n{number} directly" for number in range(3)}
        return direct.get(via[1], text) if via else text

    def metrics_to(self, pod: str, address: str) -> list[int]:
        """Metrics of the routes to one address on a pod's veth."""
        family = "-6" if ip_address(address).version == 6 else "-4"
        routes = self.ip_json(family, "route", "show", address, "dev", self.host_name(pod))
        return sorted(route["metric"] for route in routes)

    def announce(self, pod: str) -> None:
        """QEMU's announcement, from inside a pod."""
        self.send(pod, frames.rarp(self.mac(pod)))

    def mac(self, pod: str) -> str:
        """The MAC of a pod's interface."""
        return Netns(deadline=DEADLINE).call(self.sandbox(pod), lambda: _mac_of("eth0"))

    def pings(self, pod: str, address: str, *, seconds: float = 1.0) -> bool:
        """Whether an address answers somebody in a pod's namespace."""
        command = ["nsenter", f"--net={self.sandbox(pod)}", "ping", "-n", "-c1", f"-W{seconds}"]
        return subprocess.run([*command, address], check=False, capture_output=True).returncode == 0

    def picture(self) -> str:
        """What decides on the way of packets here, for who reads a failure."""
        looks = (
            "ip route show table all", "ip -6 route show", "ip route show cache", "ip neigh",
            "ip -s link", "nft list table inet tortie", "nstat -az",
        )  # fmt: skip
        found = [f"== {self.node}"]
        for look in looks:
            command = ["ip", "netns", "exec", self.name, *look.split()]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            found.append(f"-- {look}\n{done.stdout}{done.stderr}")
        return "\n".join([*found, *map(str, self.lines()[-80:])])

    def kill(self) -> None:
        """kill -9, and start again; waits until it serves."""
        assert self.stop(signal.SIGKILL) == -9
        self.start()

    def signal_bird(self, number: int) -> None:
        """A signal to the node's BIRD."""
        os.kill(self.bird_pid(), number)

    def bird_pid(self) -> int:
        """The node's BIRD; 0: none has begun."""
        try:
            return int((self.root / "run" / "bird.pid").read_text())
        except (FileNotFoundError, ValueError):
            return 0


class OverlaySite:
    """The fabric, the API, and the nodes in it."""

    def __init__(self, root: Path, name: str, shape: Shape | None = None) -> None:
        self.root, self.name = root, name
        self.shape = shape or Shape()
        self.world = CniWorld(root / "world")
        self.nodes: list[OverlayNode] = []
        self.addresses: tuple[str, ...] = ()
        self.authority = Authority(root, "peers")
        with ExitStack() as stack:
            ip("netns", "add", name)
            stack.callback(self._delete_fabric)
            self._make_fabric()
            host = router(1, self.shape.underlay[0])
            self.server = ApiServer(host, API_PORT, api=self.world.kube.api)
            stack.callback(self.server.close)
            self.in_fabric(self.server.start)
            for number in range(3):
                node = OverlayNode(self, number)
                stack.callback(node.close)
                self.nodes.append(node)
            for version in self.shape.versions:
                self.put_pool(version, vxlanMode=self.shape.mode)
            self.put(
                Kind.FELIX_CONFIGURATION,
                "default",
                liveMigrationRouteConvergenceTime=self.shape.convergence,
            )
            self._undo = stack.pop_all()

    def close(self) -> None:
        """Take everything away."""
        self._undo.close()

    def _make_fabric(self) -> None:
        ip("-n", self.name, "link", "set", "lo", "up")
        for subnet in sorted(set(self.shape.subnets)):
            ip("-n", self.name, "link", "add", f"br{subnet}", "type", "bridge")
            ip("-n", self.name, "link", "set", f"br{subnet}", "up")
            for version in self.shape.underlay:
                own = f"{router(subnet, version)}/{_LENGTHS[version]}"
                words = ("address", "add", own, "dev", f"br{subnet}", *_AT_ONCE[version])
                ip("-n", self.name, *words)
        settings = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        command = ["nsenter", f"--net=/run/netns/{self.name}", "sysctl", "-qw", *settings]
        subprocess.run(command, check=True, capture_output=True)

    def _delete_fabric(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)

    # -- doing -------------------------------------------------------------------------------

    def address(self, number: int, version: int = 4) -> str:
        """A node's own address."""
        return host(self.shape.subnets[number], 10 + number, version)

    def put_pool(self, version: int, **spec: Any) -> None:
        """The family's pool, in this form."""
        name, cidr, size = _POOLS[version]
        self.put(Kind.IP_POOL, name, cidr=cidr, blockSize=size, **spec)

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
        for version in self.shape.versions if self.shape.bird == "off" else ():
            until("every node has its tunnel", partial(self._has_tunnels, version))
        self.world.put_vm()
        self.world.put_launcher(SOURCE)
        self.nodes[0].say_vm_runs_on("n0")
        self.addresses = self.nodes[0].attach_pod(SOURCE)
        clients: list[str] = []
        for node in self.nodes:
            self.world.put_pod(f"client-{node.node}")
            clients += node.attach_pod(f"client-{node.node}")
        for address in self.addresses:
            until("n0 has the VM", partial(self._is_at_home, address))
        # Each node knows the way to every other's block, however the test then holds it up.
        for address in (*clients, *self.addresses):
            until(f"{address} is reached by all", partial(self._is_reached, address))

    def _leads(self, address: str, wanted: list[str]) -> bool:
        return self.ways(address) == wanted

    def _is_reached(self, address: str) -> bool:
        return all(self.answers(address))

    def _has_tunnels(self, version: int) -> bool:
        return len(self.tunnels(version)) == 3

    def _is_at_home(self, address: str) -> bool:
        here, *others = self.ways(address)
        return here == "here" and all(way.split()[0] == "n0" for way in others)

    def migrate(self, number: int, *, migration: str = "m1", pod: str = TARGET) -> None:
        """A migration to a node: its target is attached, and listens."""
        self.world.put_migration(migration, phase="Running")
        self.world.put_launcher(pod, migration=migration)
        node = self.nodes[number]
        listening = len(node.lines("sniffer_open"))
        assert node.attach_pod(pod) == self.addresses
        until("the agent listens", lambda: len(node.lines("sniffer_open")) > listening)

    def leave(self, number: int, pod: str) -> None:
        """The guest stops at its source: whose pod must not answer for it from now on."""
        space = self.nodes[number].sandbox(pod)
        rules = (
            "add table inet gone { chain in { type filter hook input priority 0; policy drop; }; }"
        )
        command = ["nsenter", f"--net={space}", "nft", rules]
        subprocess.run(command, check=True, capture_output=True)

    def succeed(self, number: int, *, migration: str = "m1") -> None:
        """The API agrees."""
        self.nodes[0].say_vm_runs_on(f"n{number}")
        self.nodes[0].say_migration("Succeeded", migration)

    # -- looking -----------------------------------------------------------------------------

    @property
    def address_of_vm(self) -> str:
        """Its first one."""
        return self.addresses[0]

    def tunnels(self, version: int = 4) -> dict[str, str]:
        """Tunnel address → node, of the nodes whose device is up."""
        found = {}
        device = DEVICE if version == 4 else DEVICE6
        for node in self.nodes:
            command = ["ip", "-n", node.name, "-j", "address", "show", "dev", device]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            for link in json.loads(done.stdout or "[]"):
                for one in link.get("addr_info", ()):
                    if one["family"] == _FAMILIES[version] and one["scope"] == "global":
                        found[one["local"]] = node.node
        return found

    def ways(self, address: str = "") -> list[str]:
        """Where each node's packets for the VM go, by its first address or this one."""
        return [node.way(address or self.address_of_vm) for node in self.nodes]

    def await_ways(self, wanted: list[str]) -> None:
        """By every address of the VM each node leads there, and it answers by each of them.

        A failure says which way packets go, and what each node's kernel and agent know.
        """
        for address in self.addresses:
            try:
                until(f"{address} is led to {wanted}", partial(self._leads, address, wanted))
                until(f"{address} answers everybody", partial(self._is_reached, address))
            except AssertionError as error:
                error.add_note(f"{self.ways(address)}, answered: {self.answers(address)}")
                for node in self.nodes:
                    error.add_note(node.picture())
                raise

    def answers(self, address: str = "") -> list[bool]:
        """Whether the VM answers a client on each node."""
        wanted = address or self.address_of_vm
        return [node.pings(f"client-{node.node}", wanted) for node in self.nodes]


_POOLS = {4: ("pool", "10.65.0.0/24", 26), 6: ("pool6", "fd65::/112", 122)}
_FAMILIES = {4: "inet", 6: "inet6"}
_LENGTHS = {4: 24, 6: 64}
_AT_ONCE: Mapping[int, tuple[str, ...]] = {4: (), 6: ("nodad",)}


def host(subnet: int, last: int, version: int) -> str:
    """An address of the underlay; the last part is written alike in both families."""
    return f"172.31.{subnet}.{last}" if version == 4 else f"fd31:0:0:{subnet}::{last}"


def router(subnet: int, version: int = 4) -> str:
    """The router's address in a subnet."""
    return host(subnet, 1, version)


def _mac_of(link: str) -> str:
    """A link's MAC in the calling thread's namespace, by netlink: /sys is another's."""
    done = subprocess.run(
        ["ip", "-j", "link", "show", "dev", link], check=True, capture_output=True, text=True
    )
    return str(json.loads(done.stdout)[0]["address"])
