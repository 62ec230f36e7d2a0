"""A real agent on a node whose host policy denies everything: what can still be reached, and how
that follows what is stored."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from libtortie.linux.netns import Netns
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import FelixConfiguration
from tests.fakes.agent_world import NODE, resource_record
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, NodeProcess, ip, until

pytestmark = pytest.mark.root

T = TypeVar("T")
HERE, NEIGHBOUR, STRANGER = "172.31.1.2", "172.31.1.9", "172.31.1.77"
CLOSED_SECONDS = 0.4
INWARD = (22, 179, 2379, 2380, 6443)
MIGRATION = (49152, 49153, 49200, 49201)
NEVER = (80, 8443, 9199, 49151, 49154, 49202)
FELIX = ResourceKey(Kind.FELIX_CONFIGURATION, "default")


class Place:
    """The node `here` with a neighbour and a stranger on its link, listening on every port."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.beyond = f"{node.name}-x"
        node.ip("link", "del", "up0")
        ip("netns", "add", self.beyond)
        node.namespaces.append(self.beyond)
        node.ip("link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", self.beyond)
        node.ip("address", "add", f"{HERE}/24", "dev", "up0")
        node.ip("link", "set", "up0", "up")
        for address in (NEIGHBOUR, STRANGER):
            ip("-n", self.beyond, "address", "add", f"{address}/24", "dev", "up1")
        ip("-n", self.beyond, "link", "set", "up1", "up")
        self._ears = [
            ear for space in (node.name, self.beyond) for ear in self._call(space, self._listen)
        ]

    def close(self) -> None:
        for ear in self._ears:
            ear.close()

    def enters(self, port: int, source: str = STRANGER, patience: float = DEADLINE) -> bool:
        """Whether a TCP connection from there to the node comes about."""
        return self._connects(self.beyond, source, HERE, port, patience)

    def leaves(self, port: int, destination: str, patience: float = DEADLINE) -> bool:
        """Whether one of the node to there does."""
        return self._connects(self.node.name, HERE, destination, port, patience)

    def reaches_itself(self, address: str, port: int) -> bool:
        """Whether a connection of the node to itself comes about."""
        return self._connects(self.node.name, address, address, port, DEADLINE)

    def _connects(
        self, space: str, source: str, destination: str, port: int, patience: float
    ) -> bool:
        def connect() -> bool:
            with socket.socket() as sock:
                sock.settimeout(patience)
                sock.bind((source, 0))
                try:
                    sock.connect((destination, port))
                except (TimeoutError, PermissionError):
                    return False
                return True

        return self._call(space, connect)

    @staticmethod
    def _listen() -> list[socket.socket]:
        ears = []
        for port in (*INWARD, *MIGRATION, *NEVER):
            ears.append(socket.create_server(("0.0.0.0", port), backlog=64))
        return ears

    @staticmethod
    def _call(space: str, work: Callable[[], T]) -> T:
        return Netns(deadline=2 * DEADLINE).call(f"/run/netns/{space}", work)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    node = NodeProcess(
        tmp_path,
        fresh_name("hp"),
        open_migration_ports=True,
        migration_proxy_ports="49200-49201",
        ip_check=False,
    )
    try:
        made = Place(node)
        try:
            store(node, Kind.NODE, "n2", {"bgp": {"ipv4Address": f"{NEIGHBOUR}/24"}})
            store(node, Kind.HOST_ENDPOINT, "all", {"node": NODE, "interfaceName": "*"})
            deny = {"applyOnForward": True, "types": ["Ingress", "Egress"]}
            store(node, Kind.GLOBAL_NETWORK_POLICY, "deny-all", deny)
            node.start()
            yield made
        finally:
            made.close()
    finally:
        node.close()


def store(node: NodeProcess, kind: Kind, name: str, spec: dict[str, Any]) -> None:
    record = resource_record(kind, name, spec)
    node.store.create(record.key, record.value)


def configure(node: NodeProcess, ports: Any) -> None:
    """Give the stored FelixConfiguration these failsafe ports, whatever else it has."""
    found = node.store.get(FELIX)
    assert isinstance(found.value, FelixConfiguration)
    spec = found.value.spec.model_copy(update={"failsafe_inbound_host_ports": ports})
    value = found.value.model_copy(update={"spec": spec})
    node.store.update(FELIX, value, found.revision)


def test_a_node_that_denies_everything(place: Place) -> None:
    for port in INWARD:
        assert place.enters(port), port
    for port in INWARD[1:]:
        assert place.leaves(port, STRANGER), port
    for port in MIGRATION:
        assert place.enters(port, NEIGHBOUR), port
        assert place.leaves(port, NEIGHBOUR), port
        assert not place.enters(port, STRANGER, CLOSED_SECONDS), port
        assert not place.leaves(port, STRANGER, CLOSED_SECONDS), port
    for port in NEVER:
        assert not place.enters(port, NEIGHBOUR, CLOSED_SECONDS), port
        assert not place.leaves(port, NEIGHBOUR, CLOSED_SECONDS), port
    assert not place.leaves(22, STRANGER, CLOSED_SECONDS)
    assert place.reaches_itself("127.0.0.1", 80)
    assert place.reaches_itself(HERE, 80)


def test_failsafe_ports_follow_what_is_stored_and_outlive_the_agent(place: Place) -> None:
    node = place.node
    assert not place.enters(8443, patience=CLOSED_SECONDS)
    configure(node, [{"protocol": "TCP", "port": 8443, "net": f"{STRANGER}/32"}])
    until("the port is open", lambda: place.enters(8443, patience=1.0))
    assert not place.enters(22, patience=CLOSED_SECONDS)
    assert not place.enters(8443, NEIGHBOUR, CLOSED_SECONDS)
    configure(node, "tcp:22")
    until("it is named", lambda: node.lines("setting_ignored"))
    assert place.enters(8443)
    node.stop(signal.SIGKILL)
    assert place.enters(8443)
    assert not place.enters(80, NEIGHBOUR, CLOSED_SECONDS)
    configure(node, [{"protocol": "TCP", "port": 80}])
    node.start()
    until("the other port is open", lambda: place.enters(80, patience=1.0))
    assert not place.enters(8443, patience=CLOSED_SECONDS)
