"""An IPv6 workload's gateway in real namespaces: taken away, heard of, given back."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from cni_plugin.dataplane import HOST_LINK_LOCAL
from felix_shim.drivers.sysctls import ensure_gateways, ensure_workloads
from libtortie.linux import netns
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.port import RouteGone
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, until

pytestmark = pytest.mark.root

HOST = "cali0123456789a"


def run(space: str, *command: str) -> str:
    enter = ["nsenter", f"--net=/run/netns/{space}", *command]
    done = subprocess.run(enter, capture_output=True, text=True, check=False, timeout=120)
    assert not done.returncode, f"{command}: {done.stderr or done.stdout}"
    return done.stdout


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """A node and a pod with a veth between them, of which the pod's end has an address."""
    node, pod = made = fresh_name("node"), fresh_name("pod")
    try:
        for name in made:
            netns.create(name)
        run(node, "ip", "link", "add", HOST, "type", "veth", "peer", "eth0", "netns", pod)
        run(node, "sysctl", "-qw", f"net.ipv6.conf.{HOST}.accept_dad=0")
        run(pod, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0")
        run(node, "ip", "link", "set", HOST, "address", "ee:ee:ee:ee:ee:ee", "up")
        run(pod, "ip", "link", "set", "eth0", "up")
        yield node, pod
    finally:
        for name in made:
            with suppress(OSError):
                netns.delete(name)


def answered(pod: str) -> bool:
    """Whether one ping of the gateway is; the first may be lost while a link comes up."""
    command = ["ping", "-6", "-c1", "-W1", f"{HOST_LINK_LOCAL.ip}%eth0"]
    enter = ["nsenter", f"--net=/run/netns/{pod}", *command]
    return subprocess.run(enter, capture_output=True, check=False, timeout=120).returncode == 0


def test_the_gateway_is_heard_to_go_and_given_back(spaces: tuple[str, str]) -> None:
    """It is the veth's own address, so the guest resolves it whatever proxy_ndp says."""
    node, pod = spaces
    kernel = NetlinkKernel(f"/run/netns/{node}")
    watchdog = threading.Timer(4 * DEADLINE, kernel.close)
    watchdog.start()
    try:
        assert ensure_workloads(kernel, [HOST], [HOST]) == frozenset()
        assert ensure_gateways(kernel, [HOST]) == ""
        run(node, "sysctl", "-qw", f"net.ipv6.conf.{HOST}.proxy_ndp=0")
        until("an answer", lambda: answered(pod))
        events = kernel.events()
        run(node, "ip", "address", "del", str(HOST_LINK_LOCAL), "dev", HOST)
        network = HOST_LINK_LOCAL.network
        gone = (e.route for e in events if isinstance(e, RouteGone) and e.route.dst == network)
        assert next(gone).ifname == HOST
        assert HOST_LINK_LOCAL not in kernel.addresses(HOST)
        assert ensure_gateways(kernel, [HOST, "caliaway"]) == ""
        assert HOST_LINK_LOCAL in kernel.addresses(HOST)
        run(pod, "ip", "neighbour", "flush", "dev", "eth0")
        until("an answer", lambda: answered(pod))
        before = run(node, "ip", "-j", "address", "show", "dev", HOST)
        assert ensure_gateways(kernel, [HOST]) == ""
        assert json.loads(run(node, "ip", "-j", "address", "show", "dev", HOST)) == json.loads(
            before
        )
    finally:
        watchdog.cancel()
        kernel.close()
