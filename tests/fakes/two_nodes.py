"""A VM that can be plugged from one node to another, and somebody far away, in real namespaces.

    vm ── source ── far        vm's and far's routes go through the source until `move`
      └── target ──┘

Both nodes keep stateful rules in one direction (established passes, new only from the VM, all else
is counted and dropped), pick up no TCP connection in its middle, and have a Service's address
rewritten to far's. Each end of a socket stays what it is: only the way of the packets changes.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from libtortie.linux.conntrack import Conntrack
from libtortie.linux.netns import Netns
from tests.fakes.fresh_names import fresh_name

T = TypeVar("T")
PATIENCE = 90.0
"""Seconds for what must arrive."""
VM = {4: "10.65.0.2", 6: "fd00:65::2"}
FAR = {4: "10.66.0.5", 6: "fd00:66::5"}
SERVICE = {4: "10.96.0.1", 6: "fd00:96::1"}
SERVICE_PORT, PORT = 80, 8080
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
_MAC = "02:00:00:00:00:{:02x}"
_RULES = f"""
table inet rules {{
    chain forward {{
        type filter hook forward priority 0; policy accept;
        ct state established accept
        iifname "tovm" ct state new accept
        counter drop
    }}
    chain prerouting {{
        type nat hook prerouting priority -100; policy accept;
        ip daddr {SERVICE[4]} meta l4proto {{ tcp, udp }} th dport {SERVICE_PORT} \
            dnat ip to {FAR[4]}:{PORT}
        ip6 daddr {SERVICE[6]} meta l4proto {{ tcp, udp }} th dport {SERVICE_PORT} \
            dnat ip6 to [{FAR[6]}]:{PORT}
    }}
}}
"""


@dataclass
class TwoNodes:
    """The namespaces; `close` removes them."""

    vm: str = field(default_factory=lambda: fresh_name("v"))
    far: str = field(default_factory=lambda: fresh_name("f"))
    source: str = field(default_factory=lambda: fresh_name("s"))
    target: str = field(default_factory=lambda: fresh_name("t"))

    def open(self) -> None:
        """Make everything; the VM is at the source."""
        for name in (self.vm, self.far, self.source, self.target):
            subprocess.run(["ip", "netns", "add", name], check=True)
            self._ip(name, "link set lo up")
        for name, ends in ((self.vm, VM), (self.far, FAR)):
            self._ip(name, f"addr add {ends[4]}/32 dev lo")
            self._ip(name, f"addr add {ends[6]}/128 dev lo nodad")
        for number, node in enumerate((self.source, self.target)):
            self._wire(node, "tovm", self.vm, VM, number=number, mac=16 + 4 * number)
            self._wire(node, "tofar", self.far, FAR, number=number, mac=32 + 4 * number)
            self.in_node(node, _become_node)
        self.plug(0)

    def close(self) -> None:
        """Remove the namespaces that there are."""
        for name in (self.vm, self.far, self.source, self.target):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def plug(self, number: int) -> None:
        """From now on packets go through the source (0) or the target (1)."""
        for name, ends in ((self.vm, VM), (self.far, FAR)):
            self._ip(name, f"route replace default dev up{number} src {ends[4]}")
            self._ip(name, f"-6 route replace default dev up{number} src {ends[6]}")

    def move(self) -> None:
        """The VM is at the target."""
        self.plug(1)

    def in_node(self, name: str, work: Callable[[], T]) -> T:
        """Run work inside a namespace."""
        return Netns(deadline=2 * PATIENCE).call(f"/run/netns/{name}", work)

    def table(self, node: str) -> Conntrack:
        """A node's connection table."""
        return self.in_node(node, lambda: Conntrack(deadline=PATIENCE))

    def socket(self, name: str, version: int, kind: socket.SocketKind) -> socket.socket:
        """A socket in a namespace."""

        def work() -> socket.socket:
            sock = socket.socket(FAMILY[version], kind)
            sock.settimeout(PATIENCE)
            return sock

        return self.in_node(name, work)

    def dropped(self, node: str) -> int:
        """How many packets a node's rules have dropped."""

        def work() -> str:
            command = ["nft", "list", "chain", "inet", "rules", "forward"]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        words = self.in_node(node, work).split()
        return int(words[words.index("packets") + 1])

    def _wire(
        self, node: str, link: str, other: str, ends: dict[int, str], *, number: int, mac: int
    ) -> None:
        """A cable whose ends know each other: nobody has to ask for an address."""
        up, here, there = f"up{number}", _MAC.format(mac), _MAC.format(mac + 1)
        self._ip(
            node,
            f"link add {link} address {here} type veth peer name {up} address {there}",
            f"netns {other}",
        )
        self._ip(node, f"link set {link} up")
        self._ip(other, f"link set {up} up")
        for version in (4, 6):
            family = f"-{version}"
            self._ip(node, f"{family} route add {ends[version]} dev {link}")
            self._ip(node, f"neigh add {ends[version]} lladdr {there} dev {link} nud permanent")
            for peer in (VM, FAR, SERVICE):
                words = f"neigh replace {peer[version]} lladdr {here} dev {up} nud permanent"
                self._ip(other, words)

    def _ip(self, namespace: str, *words: str) -> None:
        command = ["ip", "-n", namespace, *" ".join(words).split()]
        subprocess.run(command, check=True, capture_output=True, text=True)


def _become_node() -> None:
    """Forwarding, strict connection tracking, the rules."""
    for name, value in {
        "net/ipv4/ip_forward": "1",
        "net/ipv6/conf/all/forwarding": "1",
        "net/ipv4/conf/all/rp_filter": "0",
        "net/ipv4/conf/tovm/rp_filter": "0",
        "net/ipv4/conf/tofar/rp_filter": "0",
        "net/netfilter/nf_conntrack_tcp_loose": "0",
    }.items():
        Path(f"/proc/sys/{name}").write_text(value)
    subprocess.run(["nft", "-f", "-"], input=_RULES, text=True, check=True, capture_output=True)
