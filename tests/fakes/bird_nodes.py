"""Nodes in namespaces on one bridge, dual-stack, each with a BIRD of its own."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, closing
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path
from typing import Any

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import BirdInput, Peer
from felix_shim.bird_sweep import Sweeper
from felix_shim.drivers.bird import Bird
from libtortie.linux.netlink import NetlinkKernel
from libtortie.model.ipam import IPAddress
from tests.fakes.bird_lab import DEADLINE, inside, ip
from tests.fakes.fresh_names import fresh_name


class BirdNode:
    """One node: its namespace, its addresses, its BIRD and what that runs with."""

    def __init__(self, workdir: Path, namespace: str, number: int) -> None:
        self.namespace = namespace
        self.address = IPv4Interface(f"172.31.1.{number + 1}/24")
        self.address6 = IPv6Interface(f"fd00:1::{number + 1}/64")
        files = (workdir / f"{number}.{end}" for end in ("conf", "ctl", "pid"))
        self.control = workdir / f"{number}.ctl"
        self.bird = Bird(*files, deadline=DEADLINE)
        self.input = BirdInput(
            node=f"node{number}",
            router_id=self.address.ip,
            address=self.address,
            address6=self.address6,
            uplinks=("eth0",),
            log_file=str(workdir / f"{number}.log"),
        )

    def own(self, version: int) -> IPAddress:
        return self.address.ip if version == 4 else self.address6.ip

    def peer(self, version: int = 4, as_number: int = 64512, **options: Any) -> Peer:
        """This node as a neighbour of others."""
        return Peer(self.own(version), as_number, **options)

    def run(self, *peers: Peer, **changes: Any) -> bool:
        """Have BIRD run with these neighbours; whether it was told anything."""
        self.input = replace(self.input, peers=peers, **changes)
        text, priorities = render_bird(self.input), self.input.priorities
        metrics = {4: priorities.bird, 6: self.input.priorities6.bird}

        def work() -> bool:
            with closing(NetlinkKernel()) as kernel:
                sweeper = Sweeper(kernel, self.control.with_suffix(".metrics"))
                sweeper.note(metrics)
                told = self.bird.ensure(text)
                sweeper.sweep(metrics)
                return told

        return inside(self.namespace, work)

    def birdc(self, words: str) -> str:
        command = ["birdc", "-s", str(self.control), words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def established(self, count: int) -> bool:
        return sum(one.established for one in self.bird.sessions()) == count

    def connections(self) -> frozenset[tuple[str, ...]]:
        """The sessions' TCP connections: a session that was reset has another one.

        When BIRD says it began is reckoned anew each time, and differs by a millisecond.
        """
        command = ["ip", "netns", "exec", self.namespace, "ss", "-Htn", "state", "established"]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return frozenset(tuple(line.split()[2:4]) for line in lines.splitlines())

    def workload(self, verb: str, cidr: str, metric: int) -> None:
        """Add or delete the host route of a workload."""
        family = "-6 " if ":" in cidr else ""
        scope = "" if family else "scope link "
        words = f"{family}route {verb} {cidr} dev calivm {scope}proto boot metric {metric}"
        ip(self.namespace, words)

    def routes(self, cidr: str) -> str:
        """What the kernel has of a network."""
        return ip(self.namespace, f"{'-6 ' if ':' in cidr else ''}route show {cidr}")


class BirdNodes:
    """The nodes and the bridge between them."""

    def __init__(self, workdir: Path, count: int) -> None:
        prefix = fresh_name("bn")
        self.switch = f"{prefix}s"
        self.nodes = [BirdNode(workdir, f"{prefix}{n}", n) for n in range(1, count + 1)]

    def up(self, *, link_local: bool = True) -> None:
        """Make them; `link_local` false: IPv6 next hops are the nodes' own addresses alone."""
        for name in (self.switch, *(node.namespace for node in self.nodes)):
            subprocess.run(["ip", "netns", "add", name], check=True)
            ip(name, "link set lo up")
        ip(self.switch, "link add br0 type bridge")
        ip(self.switch, "link set br0 up")
        for n, node in enumerate(self.nodes):
            name = node.namespace
            ip(self.switch, f"link add to{n} type veth peer name eth0 netns {name}")
            ip(self.switch, f"link set to{n} master br0 up")
            ip(name, f"addr add {node.address} dev eth0")
            ip(name, f"addr add {node.address6} dev eth0 nodad")
            if not link_local:
                ip(name, "link set eth0 addrgenmode none")
            ip(name, "link set eth0 up")
            ip(name, "link add calivm type veth peer name peer")
            ip(name, "link set calivm up")
            ip(name, "link set peer up")

    def down(self) -> None:
        with ExitStack() as stack:
            for name in (self.switch, *(node.namespace for node in self.nodes)):
                command = ["ip", "netns", "del", name]
                stack.callback(subprocess.run, command, check=False, capture_output=True)
            for node in self.nodes:
                stack.callback(node.bird.stop)
