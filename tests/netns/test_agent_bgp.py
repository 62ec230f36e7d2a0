"""The real agent and its BIRD: both families, passwords, services, a canary, a bad value."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from felix_shim.bird_passwords import Secret
from felix_shim.bird_services import EndpointSlice, Service
from libtortie.errors import NotFound
from libtortie.model.bgp_canary import ANNOTATION, CanaryRequest
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Node, parse_resource
from tests.fakes.agent_world import NODE
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import NodeProcess, until

pytestmark = pytest.mark.root
PEER = {"peerIP": "172.31.1.1", "asNumber": 65000}
PASSWORD = {"password": {"secretKeyRef": {"name": "bgp", "key": "tor"}}}


class BgpNode(NodeProcess):
    """A dual-stack node whose agent supervises a BIRD."""

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(
            root, name, api=True, bird={"mode": "supervised", "bfd": True}, ip6="cidr=fd00:1::/64"
        )
        self.ip("address", "add", "fd00:1::2/64", "dev", "up0", "nodad")
        self.conf = root / "run" / "bird.conf"

    def put(self, kind: Kind, name: str, **spec: Any) -> None:
        key = ResourceKey(kind, name)
        body = {"kind": kind, "metadata": {"name": name}, "spec": spec}
        with suppress(NotFound):
            self.store.delete(key)
        self.store.create(key, parse_resource(kind, body))

    def secret(self, text: str, verb: str = "create") -> None:
        data = {"tor": base64.b64encode(text.encode()).decode()}
        metadata = {"name": "bgp", "namespace": "kube-system"}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        if verb == "create":
            self.kube(lambda client: client.create(Secret, body))
        else:
            patch = {"data": data}
            self.kube(lambda client: client.patch(Secret, "bgp", "kube-system", patch))

    def text(self) -> str:
        """BIRD's configuration, once there is one."""
        return self.conf.read_text() if self.conf.exists() else ""

    def has(self, *words: str) -> Callable[[], bool]:
        return lambda: all(word in self.text() for word in words)

    def birdc(self, words: str) -> str:
        command = ["birdc", "-s", str(self.root / "run" / "bird.ctl"), words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.stdout

    def said(self, event: str, words: str) -> Callable[[], bool]:
        return lambda: any(words in str(line) for line in self.lines(event))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BgpNode]:
    made = BgpNode(tmp_path, fresh_name("ab"))
    try:
        made.start()
        yield made
    finally:
        if made.agent is not None:
            made.stop(signal.SIGKILL)  # else it would start another BIRD
        made.close()


def test_both_families_a_password_and_what_may_read_it(node: BgpNode) -> None:
    until("BIRD has both families", node.has("fib4", "fib6", "bfd {"))
    mine = node.store.get(ResourceKey(Kind.NODE, NODE)).value
    assert isinstance(mine, Node)
    assert mine.spec.bgp is not None
    assert mine.spec.bgp.ipv6_address == "fd00:1::2/64"
    node.put(Kind.BGP_PEER, "tor", **PEER, **PASSWORD)
    until("it is not there yet", node.said("bgp_setting_ignored", "there is no key tor of Secret"))
    assert "172.31.1.1" not in node.text(), "no session without its password"
    node.secret("hush")
    until("BIRD has it", node.has("neighbor 172.31.1.1", 'password "hush"'))
    assert node.conf.stat().st_mode & 0o777 == 0o640
    node.secret("hush2", "patch")
    until("BIRD has the new one", node.has('password "hush2"'))
    logged = (node.root / "log" / "node.log").read_text()
    assert "hush" not in logged


def test_a_bad_value_keeps_the_old_and_a_death_is_noticed(node: BgpNode) -> None:
    until("BIRD runs", node.has("fib4"))
    node.put(Kind.BGP_PEER, "tor", **PEER)
    until("the peer is there", lambda: "peer_172_31_1_1" in node.birdc("show protocols"))
    node.put(Kind.BGP_PEER, "bad", peerIP="172.31.1.9", asNumber=65000, maxRestartTime="a year")
    until("it is named", node.said("bgp_setting_ignored", "BGPPeer bad: spec.maxRestartTime"))
    node.store.delete(ResourceKey(Kind.BGP_PEER, "tor"))
    until("the peer is gone", lambda: "peer_172_31_1_1" not in node.birdc("show protocols"))
    pid = int((node.root / "run" / "bird.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    until("its death is told", node.said("apply_failed", "BIRD does not answer"))
    until("another runs", lambda: "fib4" in node.birdc("show protocols"))


def test_a_services_local_traffic_and_a_canary(node: BgpNode) -> None:
    until("BIRD runs", node.has("fib4"))
    node.put(Kind.BGP_CONFIGURATION, "default", serviceExternalIPs=[{"cidr": "192.0.2.0/24"}])
    until("the range is announced", node.has("route 192.0.2.0/24 blackhole"))
    metadata = {"name": "web", "namespace": "default"}
    spec = {"externalIPs": ["192.0.2.9"], "externalTrafficPolicy": "Local"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    node.kube(lambda client: client.create(Service, service))
    labels = {"kubernetes.io/service-name": "web"}
    found = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "namespace": "default", "labels": labels},
        "endpoints": [{"nodeName": NODE, "conditions": {"ready": True}}],
    }
    node.kube(lambda client: client.create(EndpointSlice, found))
    until("the address is announced, too", node.has("route 192.0.2.9/32 blackhole"))
    record = node.store.get(ResourceKey(Kind.NODE, NODE))
    assert isinstance(record.value, Node)
    until_ = datetime.now(UTC) + timedelta(minutes=5)
    asked = CanaryRequest(ip_network("198.51.100.7/32"), 512, until_).to_text()
    metadata_ = record.value.metadata.model_copy(update={"annotations": {ANNOTATION: asked}})
    changed = record.value.model_copy(update={"metadata": metadata_})
    node.store.update(record.key, changed, record.revision)
    until("the canary is announced", node.has("route 198.51.100.7/32 blackhole"))
    assert "198.51.100.7" in node.birdc("show route protocol canary4")
