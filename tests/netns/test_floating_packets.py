"""What pods ask for besides their own address, from the annotation to real packets.

One node with the real agent, pods made by the real plugin, and a machine beside the node whose
default route is the node.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from libtortie.errors import NotFound
from libtortie.linux.netns import Netns
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NODE, resource_record
from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, ip, until

pytestmark = pytest.mark.root

PREFIX = "cni.projectcalico.org/"
OUTER, OUTER6 = "192.0.2.7", "2001:db8:7::7"
FAR, FAR6 = "172.31.9.2", "fd00:9::2"
SPOOFED, SPOOFED6, FORBIDDEN = "198.51.100.9", "2001:db8:9::9", "203.0.113.9"
PORT = 7788
LOST = 0.3
"""Seconds after which a datagram is sent again, or counts as dropped."""
TRANSPARENT = ((socket.SOL_IP, 19), (socket.IPPROTO_IPV6, 75))
"""Socket options, by family, for addresses that nobody has."""
BOTH = {"floatingIPs": "Enabled", "workloadSourceSpoofing": "Any"}
ADD = {
    "feature_control": {"floating_ips": True},
    "ipam": {"assign_ipv6": "true"},
}


class Site:
    """The node and the machine beside it."""

    def __init__(self, root: Path) -> None:
        self.node = CalledNode(root, fresh_name("fl"))
        self.far = fresh_name("flf")
        pool = resource_record(Kind.IP_POOL, "six", {"cidr": "fd00:10:65::/112", "blockSize": 122})
        self.node.store.create(pool.key, pool.value)
        ip("netns", "add", self.far)
        self.node.namespaces.append(self.far)
        self.node.ip(
            *("link", "add", "far0", "type", "veth", "peer", "name", "eth0", "netns", self.far)
        )
        for space, name, addresses in (
            (self.node.name, "far0", ("172.31.9.1/24", "fd00:9::1/64")),
            (self.far, "eth0", (f"{FAR}/24", f"{FAR6}/64")),
        ):
            ip("-n", space, "link", "set", name, "up")
            for one in addresses:
                extra = ("nodad",) if ":" in one else ()
                ip("-n", space, "address", "add", one, "dev", name, *extra)
        for gateway in ("172.31.9.1", "fd00:9::1"):
            ip("-n", self.far, "route", "add", "default", "via", gateway)
        self.permit(**BOTH)
        self.node.start()

    def permit(self, **spec: Any) -> None:
        """The node's own FelixConfiguration says this."""
        record = resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", spec)
        try:
            known = self.node.store.get(record.key)
        except NotFound:
            self.node.store.create(record.key, record.value)
        else:
            self.node.store.update(record.key, record.value, known.revision)

    def pod(self, name: str, **wishes: str) -> tuple[str, str, str]:
        """A pod with these annotations: its namespace, its addresses."""
        self.node.world.put_pod(name, annotations={PREFIX + k: v for k, v in wishes.items()})
        body = self.node.done("ADD", name, f"c-{name}", **ADD).body
        own = [one["address"].partition("/")[0] for one in body["ips"]]
        return f"{self.node.name}-c-{name}", own[0], own[1]

    def close(self) -> None:
        self.node.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with closing(Site(tmp_path_factory.mktemp("fl") / "node")) as made:
        yield made


def opened(space: str, address: str, port: int = 0) -> socket.socket:
    """A datagram socket of a namespace; it may have an address that nobody has."""
    six = ":" in address

    def make() -> socket.socket:
        sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(*TRANSPARENT[six], 1)
        if six:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.settimeout(LOST)
        return sock

    return Netns(deadline=2 * DEADLINE).call(f"/run/netns/{space}", make)


@contextmanager
def echoing(space: str) -> Iterator[None]:
    """Somebody in a namespace who tells each caller what address it calls from."""
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        while not over.is_set():
            with suppress(OSError):
                token, caller = sock.recvfrom(100)
                sock.sendto(token + caller[0].encode(), caller)

    sockets = [opened(space, everywhere, PORT) for everywhere in ("0.0.0.0", "::")]
    threads = [threading.Thread(target=serve, args=(one,)) for one in sockets]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        over.set()
        for one in threads:
            one.join()
        for sock in sockets:
            sock.close()


def call(space: str, address: str, *, own: str = "") -> str:
    """One try: as whom the other end sees us; empty without an answer from that very address."""
    token = secrets.token_bytes(8)
    with opened(space, own or ("::" if ":" in address else "0.0.0.0")) as sock, suppress(OSError):
        sock.connect((address, PORT))
        sock.send(token)
        while True:
            answer = sock.recv(100)
            if answer.startswith(token):
                return answer[8:].decode()
    return ""


def answered(space: str, address: str) -> str:
    """As whom the other end sees us, once it answers."""
    return until(f"{address} answers {space}", lambda: call(space, address))


def arrives(space: str, own: str, target: str, address: str) -> bool:
    """One try: whether a datagram from an address gets to a namespace."""
    token = secrets.token_bytes(8)
    with opened(target, address, PORT) as ear, opened(space, own) as mouth, suppress(OSError):
        mouth.sendto(token, (address, PORT))
        while True:
            if ear.recvfrom(100) == (token, (own, mouth.getsockname()[1], *_rest(own))):
                return True
    return False


def _rest(address: str) -> tuple[int, ...]:
    return (0, 0) if ":" in address else ()


def test_a_floating_address_leads_to_its_pod_for_as_long_as_it_may(site: Site) -> None:
    other, _, _ = site.pod("other")
    before = site.node.left()
    space, own, own6 = site.pod("web", floatingIPs=f'["{OUTER}", "{OUTER6}"]')
    with echoing(space):
        assert answered(site.far, OUTER) == FAR, "an answer from the floating address itself"
        assert answered(site.far, OUTER6) == FAR6
        assert answered(site.far, own) == FAR
        assert answered(other, OUTER)
        assert answered(site.node.name, OUTER), "the node itself"
        assert answered(site.node.name, OUTER6)
        assert answered(space, OUTER) == OUTER, "its own call, from that address"
        assert answered(space, OUTER6) == OUTER6
        assert call(site.far, "192.0.2.8") == ""
        site.permit()
        until("the translation is gone", lambda: "nat-prerouting" not in site.node.rules())
        until("its route is gone", lambda: OUTER not in str(site.node.left()["routes"]))
        assert call(site.far, OUTER) == ""
        assert answered(site.far, own6) == FAR6, "its own address stays"
        site.permit(**BOTH)
        assert answered(site.far, OUTER) == FAR
    site.node.done("DEL", "web", "c-web", **ADD)
    until("its rules go", lambda: OUTER not in site.node.rules())
    site.node.rest(before)


def test_the_nodes_own_address_is_not_given_away(site: Site) -> None:
    site.pod("thief", floatingIPs='["172.31.9.1"]')
    until("it is in the rules", lambda: "172.31.9.1 : " in site.node.rules())
    with echoing(site.node.name):
        assert answered(site.far, "172.31.9.1") == FAR, "nobody listens in the pod"
    site.node.done("DEL", "thief", "c-thief", **ADD)


def test_allowed_source_prefixes_pass_and_nothing_else(site: Site) -> None:
    allowed = f'["{SPOOFED}/24", "198.51.100.0/25", "{SPOOFED6}/64"]'
    space, own, own6 = site.pod("vpn", allowedSourcePrefixes=allowed)
    other, _, _ = site.pod("plain")
    for one, theirs in ((own, FAR), (own6, FAR6), (SPOOFED, FAR), (SPOOFED6, FAR6)):

        def through(one: str = one, theirs: str = theirs) -> bool:
            return arrives(space, one, site.far, theirs)

        until(f"from {one}", through)
    assert not arrives(space, FORBIDDEN, site.far, FAR)
    assert not arrives(other, SPOOFED, site.far, FAR), "another pod has not asked"
    site.permit()
    until("no set has it", lambda: "198.51.100.0" not in site.node.rules())
    assert not arrives(space, SPOOFED, site.far, FAR)
    until("its own address passes", lambda: arrives(space, own, site.far, FAR))
    site.permit(**BOTH)
    until("it passes again", lambda: arrives(space, SPOOFED, site.far, FAR))
    for pod in ("vpn", "plain"):
        site.node.done("DEL", pod, f"c-{pod}", **ADD)
    until("its rules go", lambda: "198.51.100.0" not in site.node.rules())
