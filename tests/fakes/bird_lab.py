"""Two nodes and a top-of-rack router in namespaces, each with a BIRD of its own."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Interface, ip_address, ip_network
from pathlib import Path
from typing import TypeVar

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import BirdInput, Peer
from felix_shim.drivers.bird import Bird
from libtortie.linux.netns import Netns
from libtortie.model.ipam import IPAddress
from tests.fakes.fresh_names import fresh_name

T = TypeVar("T")
BLOCK = ip_network("10.65.0.0/26")
VM = IPv4Address("10.65.0.2")
RTM_NEWROUTE, RTM_DELROUTE = 24, 25
DEADLINE = 90.0
"""Seconds; many times what anything takes on a quiet machine of two cores."""


def ip(namespace: str, words: str) -> str:
    command = ["ip", "-n", namespace, *words.split()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def inside(namespace: str, work: Callable[[], T]) -> T:
    return Netns(deadline=2 * DEADLINE).call(f"/run/netns/{namespace}", work)


def eventually(condition: Callable[[], bool], seconds: float = DEADLINE) -> float:
    """Seconds until a condition held; fails the test when it never does."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, "did not happen in time"
        time.sleep(0.002)
    return time.monotonic() - begin


class Watch:
    """Route notifications about one address in one namespace, read by whoever asks."""

    def __init__(self, namespace: str, address: IPAddress) -> None:
        self._address = address
        self._sock = inside(namespace, self._open)
        self._kinds: list[int] = []

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def wait_for(self, kind: int, seconds: float = DEADLINE) -> float:
        """Block until the next such message; `perf_counter` then. Fails the test without one."""
        end = time.monotonic() + seconds
        while kind not in self._kinds:
            left = end - time.monotonic()
            assert left > 0, "no such route change"
            self._read(left)
        now = time.perf_counter()
        self._kinds.clear()
        return now

    def drain(self) -> list[int]:
        """The kinds of everything that has come so far."""
        while self._read(0.0):
            pass
        return self._kinds

    @staticmethod
    def _open() -> socket.socket:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        sock.bind((0, 0x40 | 0x400))  # RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE
        return sock

    def _read(self, seconds: float) -> bool:
        self._sock.settimeout(seconds)
        try:
            data = self._sock.recv(65536)
        except (TimeoutError, BlockingIOError):
            return False
        offset = 0
        while offset + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, offset)
            if self._address.packed in data[offset : offset + length]:
                self._kinds.append(kind)
            offset += max(16, (length + 3) & ~3)
        return True


class BirdLab:
    """`tor` with a link to each of two nodes: one bridge (`l2`), or a subnet each (`l3`)."""

    def __init__(self, workdir: Path, layout: str) -> None:
        self.layout = layout
        prefix = fresh_name("bird")
        self.tor, self.nodes = f"{prefix}t", (f"{prefix}a", f"{prefix}b")
        same = layout == "l2"
        self.addresses = (
            IPv4Interface("172.31.1.2/24"),
            IPv4Interface("172.31.1.3/24" if same else "172.31.2.2/24"),
        )
        self.gateways = ("172.31.1.1", "172.31.1.1" if same else "172.31.2.1")
        self.tor_bird, *self.birds = (
            Bird(*(workdir / f"{name}.{end}" for end in ("conf", "ctl", "pid")), deadline=DEADLINE)
            for name in ("tor", 0, 1)
        )
        self.workdir = workdir

    def up(self) -> None:
        for name in (self.tor, *self.nodes):
            subprocess.run(["ip", "netns", "add", name], check=True)
            ip(name, "link set lo up")
            inside(name, lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
        if self.layout == "l2":
            ip(self.tor, "link add br0 type bridge")
            ip(self.tor, "addr add 172.31.1.1/24 dev br0")
            ip(self.tor, "link set br0 up")
        for n, name in enumerate(self.nodes):
            ip(self.tor, f"link add to{n} type veth peer name eth0 netns {name}")
            ip(name, f"addr add {self.addresses[n]} dev eth0")
            ip(name, "link set eth0 up")
            if self.layout == "l2":
                ip(self.tor, f"link set to{n} master br0")
            else:
                ip(self.tor, f"addr add {self.gateways[n]}/24 dev to{n}")
            ip(self.tor, f"link set to{n} up")
            ip(name, f"route add default via {self.gateways[n]}")
            ip(name, "link add calivm type veth peer name peer")
            ip(name, "link set calivm up")
            ip(name, "link set peer up")
        inside(self.tor, lambda: self.tor_bird.ensure(self.tor_config()))
        for n, name in enumerate(self.nodes):
            inside(name, lambda n=n: self.birds[n].ensure(self.config(n)))  # type: ignore[misc]  # bound now

    def down(self) -> None:
        with ExitStack() as stack:
            for name in (self.tor, *self.nodes):
                command = ["ip", "netns", "del", name]
                stack.callback(subprocess.run, command, check=False, capture_output=True)
            for bird in (self.tor_bird, *self.birds):
                stack.callback(bird.stop)

    def input(self, n: int) -> BirdInput:
        other = Peer(self.addresses[1 - n].ip, 64512, mesh=True)
        return BirdInput(
            node=f"node{n}",
            router_id=self.addresses[n].ip,
            address=self.addresses[n],
            peers=(other, Peer(ip_address(self.gateways[n]), 65000)),
            blocks=(BLOCK,) if n == 0 else (),
            uplinks=("eth0",),
            log_file=str(self.workdir / f"{n}.log"),
        )

    def config(self, n: int) -> str:
        return render_bird(self.input(n))

    def tor_config(self) -> str:
        sessions = "".join(
            f"""
protocol bgp node{n} {{
  local {self.gateways[n]} as 65000;
  neighbor {self.addresses[n].ip} as 64512;
  graceful restart on;
  connect delay time 1;
  error wait time 1, 5;
  ipv4 {{ import all; export none; }};
}}
"""
            for n in (0, 1)
        )
        return (
            f'log "{self.workdir}/tor.log" all;\nrouter id 172.31.1.1;\n'
            "protocol device { scan time 2; }\nprotocol direct { ipv4; }\n"
            "protocol kernel {\n  scan time 2;\n  merge paths on;\n"
            f"  ipv4 {{ export where source = RTS_BGP; }};\n}}\n{sessions}"
        )

    def established(self) -> bool:
        expected = ((self.tor_bird, 2), (self.birds[0], 2), (self.birds[1], 2))
        return all(
            sum(session.established for session in bird.sessions()) == count
            for bird, count in expected
        )

    def at_tor(self) -> int | None:
        """The node that the router sends the VM's packets to."""
        return self._hop(self.tor, {str(self.addresses[n].ip): n for n in (0, 1)})

    def at_node(self, n: int) -> str:
        """Where a node sends them: `local`, `remote` or nowhere."""
        text = self.lookup(self.nodes[n])
        return "local" if "calivm" in text else "remote" if "eth0" in text else text

    def lookup(self, namespace: str) -> str:
        done = subprocess.run(
            ["ip", "-n", namespace, "route", "get", str(VM)],
            check=False,
            capture_output=True,
            text=True,
        )
        return done.stdout or done.stderr

    def _hop(self, namespace: str, known: dict[str, int]) -> int | None:
        words = self.lookup(namespace).split()
        return known.get(words[words.index("via") + 1]) if "via" in words else None

    def host_routes_at_tor(self) -> str:
        return ip(self.tor, f"route show {VM}/32")

    def route(self, n: int, verb: str, metric: int) -> None:
        ip(
            self.nodes[n],
            f"route {verb} {VM}/32 dev calivm scope link proto boot metric {metric}",
        )
