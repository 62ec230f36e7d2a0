"""Source and owner of a VM's block are told at once that the VM has come, and again while that is
wanted; whatever goes wrong, nothing waits for it and nothing is said that is not so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import pytest

from felix_shim.exchange import Wish
from felix_shim.herald import Addressee, Herald, Tidings, tidings
from felix_shim.model import EndpointId
from felix_shim.peer_messages import HEADER, VERSION, Moved, Request, encode
from felix_shim.peers import Link, PeerServer, dial
from felix_shim.roster import Local
from libtortie.errors import Unavailable
from libtortie.model.ipam import IPAddress
from tests.contract.test_peers import LIMITS, REQUEST, Cluster, spawn
from tests.fakes.node_process import until
from tests.fakes.patience import PATIENCE

VM = (ip_address("10.65.0.2"),)
ENDPOINT = EndpointId("default", "tgt")
COMING = Tidings("m1", VM, "n1", IPv4Address("127.0.0.1"))
HERE = replace(COMING, arrived=True)
HEARD = ("n2", "m1", VM)
OWNER = (ENDPOINT, "n1")


@dataclass
class Site:
    """n2 has a herald, n1 a server that notes what it is told."""

    cluster: Cluster
    heard: list[tuple[str, str, tuple[IPAddress, ...]]] = field(default_factory=list)
    dialled: list[int] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    port: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.own = self.cluster.credentials("n2")
        log = self.cluster.log
        self.herald = Herald(self._dial, self._spawn, log, lambda: self.now + time.monotonic())

    def serve(self) -> PeerServer:
        credentials = self.cluster.credentials("n1")

        def notice(node: str, uid: str, addresses: tuple[IPAddress, ...]) -> None:
            self.heard.append((node, uid, addresses))

        answer = self.cluster.answer
        server = PeerServer(
            "127.0.0.1", 0, credentials, answer, spawn, self.cluster.log, LIMITS, notice
        )
        thread = spawn("server", server.run)
        self.cluster.stack.callback(thread.join)
        self.cluster.stack.callback(server.stop)
        until("it listens", lambda: server.port)
        self.port = server.port
        return server

    def _dial(self, one: Tidings) -> Link:
        self.dialled.append(self.port)
        if not self.port:
            raise Unavailable("nobody listens")
        return dial(one.node, str(one.node_address), self.port, self.own, LIMITS)

    def _spawn(self, name: str, body: object) -> threading.Thread:
        thread = spawn(name, body)  # type: ignore[arg-type]  # as `Spawn` has it
        self.threads.append(thread)
        return thread

    def followed(self, count: int) -> None:
        until("so many are followed", lambda: len(self.dialled) >= count)

    def ended(self) -> None:
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(Cluster(tmp_path, stack))
        stack.callback(made.ended)
        stack.callback(made.herald.stop)
        yield made


def test_it_is_told_when_the_vm_has_come_and_not_before(site: Site) -> None:
    site.serve()
    site.herald.want({OWNER: COMING})
    until("a connection stands", lambda: site.dialled)
    site.herald.want({OWNER: COMING})
    assert (site.heard, len(site.threads)) == ([], 1)
    site.herald.want({OWNER: HERE})
    until("it is told", lambda: site.heard)
    site.herald.want({OWNER: HERE})
    site.herald.want({})
    site.ended()
    assert (site.heard, len(site.threads)) == ([HEARD], 1)
    assert site.cluster.log.of("cut_over_told") == [{"node": "n1", "migration_uid": "m1"}]


def test_an_owner_that_is_away_is_told_when_it_comes(site: Site) -> None:
    site.herald.want({OWNER: HERE})
    until("it was tried", lambda: len(site.dialled) > 1)
    site.serve()
    until("it is told", lambda: site.heard)
    assert site.heard == [HEARD]


def test_an_agent_that_is_too_old_to_know_is_told_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know this kind of message, as this one does not know the next release's."""
    newer = HEADER.pack(2, VERSION, 77) + b"[]"
    monkeypatch.setattr(
        "felix_shim.peers.encode", lambda one: newer if isinstance(one, Moved) else encode(one)
    )
    site.serve()
    site.herald.want({OWNER: HERE})
    site.ended()
    (said,) = site.cluster.log.of("cut_over_not_told")
    assert said["reason"] == "node n1: a message of kind 77, which this agent is too old for"
    assert (site.heard, len(site.dialled)) == ([], 1)


def test_it_is_said_again_while_it_is_wanted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felix_shim.herald.REPEAT_SECONDS", 0.01)
    site.serve()
    site.herald.want({OWNER: HERE})
    until("it is told, and told again", lambda: len(site.heard) > 2)
    site.herald.want({})
    site.ended()
    assert set(site.heard) == {HEARD}
    assert len(site.dialled) == 1, "by one connection"
    assert len(site.cluster.log.of("cut_over_told")) == 1


def test_other_news_make_nobody_say_it_sooner(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felix_shim.herald.REPEAT_SECONDS", 3600.0)
    site.serve()
    site.herald.want({OWNER: HERE})
    until("it is told", lambda: site.heard)
    other = (EndpointId("default", "other"), "n1")
    for number in range(5):
        site.herald.want({OWNER: HERE, other: replace(COMING, migration_uid=str(number))})
        site.followed(number + 2)
    assert site.heard == [HEARD]


def test_who_is_away_for_long_is_complained_of_once_and_told_all_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("felix_shim.herald.REPEAT_SECONDS", 0.01)
    site.herald.want({OWNER: HERE})
    until("it was tried", lambda: len(site.dialled) > 1)
    site.now += 11
    until("it is said", lambda: site.cluster.log.of("cut_over_not_told"))
    tried = len(site.dialled)
    until("it is tried again", lambda: len(site.dialled) > tried + 1)
    assert site.heard == []
    (line,) = site.cluster.log.of("cut_over_not_told")
    assert (line["node"], line["reason"]) == ("n1", "nobody listens")
    site.serve()
    until("it is told", lambda: site.heard)


def test_what_nobody_wants_any_more_is_not_told(site: Site) -> None:
    site.serve()
    site.herald.want({OWNER: COMING})
    until("a connection stands", lambda: site.dialled)
    site.herald.want({})
    site.ended()
    site.herald.want({OWNER: replace(HERE, migration_uid="m2")})
    until("the next one is told", lambda: site.heard)
    assert site.heard == [("n2", "m2", VM)]


def test_a_connection_that_waited_for_long_is_made_anew(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("felix_shim.herald.IDLE_SECONDS", 0.01)
    site.serve()
    site.herald.want({OWNER: COMING})
    until("there were several", lambda: len(site.dialled) > 2)
    site.herald.want({OWNER: HERE})
    until("it is told", lambda: site.heard)


def test_the_request_at_the_cut_over_is_a_notice_too(site: Site) -> None:
    server = site.serve()
    with dial("n1", "127.0.0.1", server.port, site.own, LIMITS) as link:
        link.send(REQUEST)
        link.receive(PATIENCE)
        assert site.heard == []
        link.send(Request("m1", "vmi", VM, cut_over=True))
        link.receive(PATIENCE)
    assert site.heard == [HEARD]
    assert [node for node, _ in site.cluster.asked] == ["n2", "n2"]


def test_a_notice_is_no_request_for_connections(site: Site) -> None:
    server = site.serve()
    with dial("n1", "127.0.0.1", server.port, site.own, LIMITS) as link:
        link.send(Moved("m1", VM))
        link.receive(PATIENCE)
    assert (site.heard, site.cluster.asked) == ([HEARD], [])


def test_who_is_to_be_told() -> None:
    wish = Wish("m1", "vmi", VM, source="n0", arrived=True)
    nodes = {"n1": IPv4Address("127.0.0.1"), "n0": IPv4Address("127.0.0.2")}

    def told(owner: str, wish: Wish = wish, *, inside: bool = True) -> dict[Addressee, Tidings]:
        return tidings({ENDPOINT: wish}, Where(owner, inside), nodes.get)

    source = (ENDPOINT, "n0"), replace(HERE, node="n0", node_address=nodes["n0"])
    assert told("n1") == dict([(OWNER, HERE), source])
    assert told("n1", replace(wish, arrived=False)) == {OWNER: COMING}
    assert told("n1", replace(wish, source="")) == {OWNER: HERE}, "who it was is not known"
    assert told("") == told("n0") == dict([source]), "the block is of this node, or the source's"
    assert told("n9") == dict([source]), "it has no address"
    assert told("", inside=False) == {}, "others need not know"


@dataclass
class Where:
    """A VM whose block is somebody's, in the overlay or not."""

    owner: str
    inside: bool = True

    def covers(self, _: IPAddress) -> bool:
        return self.inside

    def owner_elsewhere(self, _: IPAddress) -> str:
        return self.owner

    def is_recorded(self, _: Local) -> bool:
        return False
