"""The agents' channel over real sockets and TLS: who may talk, and what a hostile peer can do."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from felix_shim.peer_credentials import Credentials, Files
from felix_shim.peer_messages import (
    BODY_MAX,
    HEADER,
    VERSION,
    End,
    Kind,
    Message,
    Refused,
    Request,
    Unknown,
    encode,
)
from felix_shim.peers import Limits, Link, PeerServer, dial
from libtortie.errors import Unauthorized, Unavailable
from tests.fakes.agent_world import RecordingLog
from tests.fakes.certificates import Authority, Pair
from tests.fakes.node_process import until
from tests.fakes.patience import PATIENCE
from tests.fakes.tcp_proxy import TcpProxy

DAY = datetime.timedelta(days=1)
LIMITS = Limits(step=PATIENCE, idle=PATIENCE, told=0.0)
REQUEST = Request("mig-1", "vmi-1", (ip_address("10.65.0.2"),))


def spawn(name: str, body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


@dataclass
class Cluster:
    """One authority, nodes with their certificates, and servers."""

    directory: Path
    stack: ExitStack
    log: RecordingLog = field(default_factory=RecordingLog)
    authority: Authority = field(init=False)
    asked: list[tuple[str, Request]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.authority = Authority(self.directory, "peers")

    def files(self, pair: Pair, ca: Path | None = None) -> Files:
        return Files(ca or self.authority.cert, pair.cert, pair.key)

    def credentials(
        self, node: str, pair: Pair | None = None, ca: Path | None = None
    ) -> Credentials:
        files = self.files(pair or self.authority.node(node), ca)
        return Credentials(files, node, self.log, time.time)

    def answer(self, node: str, request: Request) -> Iterable[Message]:
        self.asked.append((node, request))
        yield End(len(self.asked))

    def serve(
        self,
        credentials: Credentials,
        limits: Limits = LIMITS,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> PeerServer:
        server = PeerServer(host, port, credentials, self.answer, spawn, self.log, limits)
        thread = spawn("server", server.run)
        self.stack.callback(thread.join)
        self.stack.callback(server.stop)
        if not port:
            until("it listens", lambda: server.port)
        return server

    def refusals(self) -> list[str]:
        return [str(line["reason"]) for line in self.log.of("peer_refused")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def ask(link: Link) -> Message | Unknown | None:
    link.send(REQUEST)
    return link.receive(PATIENCE)


def reach(server: PeerServer, credentials: Credentials, node: str = "n1") -> Link:
    return dial(node, server.host, server.port, credentials, LIMITS)


def test_who_is_not_there_is_named_with_its_address(cluster: Cluster) -> None:
    for host, shown in (("127.0.0.1", r"127\.0\.0\.1:1"), ("::1", r"\[::1\]:1")):
        with pytest.raises(Unavailable, match=f"node n1 at {shown}: "):
            dial("n1", host, 1, cluster.credentials("n2"), LIMITS)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_sides_know_each_other(cluster: Cluster, host: str) -> None:
    server = cluster.serve(cluster.credentials("n1"), host=host)
    with reach(server, cluster.credentials("n2")) as link:
        assert link.node == "n1"
        assert ask(link) == End(1)
        assert ask(link) == End(2)
    assert cluster.asked == [("n2", REQUEST)] * 2


def test_another_node_at_the_address_is_not_talked_to(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"))
    with pytest.raises(Unauthorized, match="node n1 answers where node n3 was expected"):
        reach(server, cluster.credentials("n2"), node="n3")


def test_a_certificate_of_another_authority_is_refused_by_both(cluster: Cluster) -> None:
    stranger = Authority(cluster.directory, "others")
    pair = stranger.node("n9")
    server = cluster.serve(cluster.credentials("n1"))
    with pytest.raises(Unavailable, match="not accepted"):
        reach(server, cluster.credentials("n9", pair, stranger.cert))
    both = cluster.directory / "both.pem"
    both.write_bytes(stranger.cert.read_bytes() + cluster.authority.cert.read_bytes())
    with pytest.raises(Unavailable), reach(server, cluster.credentials("n9", pair, both)) as link:
        ask(link)
    assert cluster.asked == []
    until("it is told", lambda: any("not accepted" in one for one in cluster.refusals()))


@pytest.mark.parametrize("names", [(), ("n1", "n2"), ("*.example",), ("10.0.0.1",)])
def test_a_certificate_that_names_no_single_node_is_refused(
    cluster: Cluster, names: tuple[str, ...]
) -> None:
    """Here by ourselves; on the wire by the server, whatever the caller would accept."""
    pair = cluster.authority.node("n1", names=names)
    with pytest.raises(Unavailable, match="one DNS name"):
        cluster.credentials("n1", pair).identity()
    server = cluster.serve(cluster.credentials("n5"))
    with pytest.raises((Unavailable, OSError)):
        raw = _tls(server.port, cluster, pair)
        raw.sendall(encode(REQUEST))
        assert raw.recv(1) == b""
        raise ConnectionError("closed")
    assert cluster.asked == []


def _tls(port: int, cluster: Cluster, pair: Pair) -> ssl.SSLSocket:
    """A caller that checks nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cluster.authority.cert)
    context.load_cert_chain(pair.cert, pair.key)
    sock = context.wrap_socket(socket.create_connection(("127.0.0.1", port), PATIENCE))
    cluster.stack.callback(sock.close)
    return sock


def test_an_expired_certificate_is_not_used_and_not_accepted(cluster: Cluster) -> None:
    pair = cluster.authority.node("n2", ends=-DAY / 24)
    with pytest.raises(Unavailable, match="expired"):
        cluster.credentials("n2", pair).identity()
    server = cluster.serve(cluster.credentials("n1"))
    with suppress(OSError):
        _tls(server.port, cluster, pair).recv(1)
    until("it is told", lambda: any("expired" in one for one in cluster.refusals()))
    assert cluster.asked == []


def test_a_clock_that_is_behind_is_told_and_no_certificate_taken_before_its_time(
    cluster: Cluster,
) -> None:
    """What was just issued is not valid yet where the clock is an hour behind."""
    pair = cluster.authority.node("n2", begins=DAY / 24)
    behind = cluster.credentials("n2", pair)
    with pytest.raises(Unavailable, match="would not be accepted: certificate is not yet valid"):
        behind.identity()
    server = cluster.serve(cluster.credentials("n1"))
    with suppress(OSError):
        _tls(server.port, cluster, pair).recv(1)
    until("it is told", lambda: any("not yet valid" in one for one in cluster.refusals()))
    assert cluster.asked == []


def test_expiry_is_told_early_and_once(cluster: Cluster) -> None:
    pair = cluster.authority.node("n1", ends=10 * DAY)
    credentials = cluster.credentials("n1", pair)
    for days, told in ((0, 0), (5, 0), (8, 1), (8, 1), (9, 2)):
        credentials.wall = lambda d=days: time.time() + d * 86400  # type: ignore[misc]  # bound now
        credentials.identity()
        assert len(cluster.log.of("peer_certificate_expires")) == told
    assert 0 < credentials.seconds_left() < 2 * 86400


def test_another_nodes_certificate_is_not_ours(cluster: Cluster) -> None:
    with pytest.raises(Unavailable, match="for node n2, this one is n1"):
        cluster.credentials("n1", cluster.authority.node("n2")).identity()


def test_no_certificate_yet_is_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("felix_shim.peers.REBIND_SECONDS", 0.01)
    pair = cluster.authority.node("n1")
    moved = pair.cert.with_suffix(".away")
    pair.cert.rename(moved)
    credentials = cluster.credentials("n1", pair)
    server = PeerServer("127.0.0.1", 0, credentials, cluster.answer, spawn, cluster.log, LIMITS)
    thread = spawn("server", server.run)
    cluster.stack.callback(thread.join)
    cluster.stack.callback(server.stop)
    until("it complains", lambda: cluster.log.of("peers_not_served"))
    moved.rename(pair.cert)
    until("it listens", lambda: server.port)
    with reach(server, cluster.credentials("n2")) as link:
        assert ask(link) == End(1)


def test_a_rotation_takes_effect_with_the_next_connection(cluster: Cluster) -> None:
    """Authority and all: first both are trusted, then only the new one."""
    own, other = cluster.authority.node("n1"), cluster.authority.node("n2")
    trusted = cluster.directory / "trusted.pem"
    shutil.copy(cluster.authority.cert, trusted)
    server = cluster.serve(cluster.credentials("n1", own, trusted))
    caller = cluster.credentials("n2", other, trusted)
    with reach(server, caller) as old:
        assert ask(old) == End(1)
        fresh = Authority(cluster.directory, "next")
        _replace(trusted, trusted.read_bytes() + fresh.cert.read_bytes())
        fresh.node("n1")
        fresh.node("n2")
        _replace(trusted, fresh.cert.read_bytes())
        with reach(server, caller) as link:
            assert ask(link) == End(2)
        assert ask(old) == End(3)
    stale = Authority(cluster.directory, "stale").node("n7")
    with pytest.raises((Unavailable, OSError)):
        _tls(server.port, cluster, stale)


def _replace(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").rename(path)


def test_files_that_do_not_fit_leave_the_old_certificate_in_use(cluster: Cluster) -> None:
    pair = cluster.authority.node("n1")
    credentials = cluster.credentials("n1", pair)
    first = credentials.identity()
    old_cert = pair.cert.read_bytes()
    cluster.authority.node("n1")
    new_cert = pair.cert.read_bytes()
    _replace(pair.cert, old_cert)  # with the new key
    assert credentials.identity() is first
    assert len(cluster.log.of("peer_certificate_unusable")) == 1
    credentials.identity()
    assert len(cluster.log.of("peer_certificate_unusable")) == 1
    _replace(pair.cert, new_cert)
    assert credentials.identity() is not first


# -- hostile peers ---------------------------------------------------------------------------


def test_silence_and_rubbish_hold_up_nobody(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"))
    held = [socket.create_connection(("127.0.0.1", server.port), PATIENCE) for _ in range(3)]
    for sock in held:
        cluster.stack.callback(sock.close)
    held[1].sendall(b"\x16\x03\x01\x02\x00")  # the beginning of a ClientHello, and no more
    held[2].sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(200))
    with reach(server, cluster.credentials("n2")) as link:
        assert ask(link) == End(1)


def test_a_silent_peer_is_dropped_in_time(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"), replace(LIMITS, step=0.2))
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        assert sock.recv(1) == b""
    assert until("it is counted", lambda: server.refused) == 1


def test_a_known_peer_that_falls_silent_is_dropped_in_time(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"), replace(LIMITS, idle=0.2))
    with reach(server, cluster.credentials("n2")) as link:
        assert link.receive(PATIENCE) is None


def test_a_session_ends_though_it_is_used(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"), replace(LIMITS, session=0.0))
    with reach(server, cluster.credentials("n2")) as link:
        assert link.receive(PATIENCE) is None


@pytest.mark.parametrize(
    "frame",
    [
        HEADER.pack(0, VERSION + 1, Kind.WANTED),
        HEADER.pack(BODY_MAX + 1, VERSION, Kind.WANTED),
        HEADER.pack(4, VERSION, Kind.WANTED) + b"nope",
        HEADER.pack(60000, VERSION, Kind.WANTED) + b"[" * 60000,
        HEADER.pack(2, VERSION, Kind.CUT_OVER) + b"[]",
        encode(End(3)),
        encode(Refused("no")),
        os.urandom(64),
    ],
)
def test_what_is_no_request_ends_the_connection(cluster: Cluster, frame: bytes) -> None:
    server = cluster.serve(cluster.credentials("n1"))
    sock = _tls(server.port, cluster, cluster.authority.node("n2"))
    sock.sendall(frame)
    with suppress(OSError):
        assert sock.recv(1) == b""
    assert cluster.asked == []
    with reach(server, cluster.credentials("n3")) as link:
        assert ask(link) == End(1)


def test_what_a_newer_agent_says_is_refused_and_its_next_request_answered(
    cluster: Cluster,
) -> None:
    server = cluster.serve(cluster.credentials("n1"))
    with reach(server, cluster.credentials("n2")) as link:
        link._sock.sendall(HEADER.pack(8, VERSION, 77) + b"whatever")
        refused = link.receive(PATIENCE)
        assert ask(link) == End(1)
    assert refused == Refused("a message of kind 77, which this agent is too old for")


def test_one_address_cannot_take_every_place(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"), replace(LIMITS, of_one_address=2))
    held = []
    for _ in range(3):
        sock = socket.create_connection(
            ("127.0.0.1", server.port), PATIENCE, source_address=("127.0.0.9", 0)
        )
        cluster.stack.callback(sock.close)
        held.append(sock)
    with suppress(ConnectionError):
        assert held[2].recv(1) == b""
    with reach(server, cluster.credentials("n2")) as link:
        assert ask(link) == End(1)


def test_all_places_together_are_bounded(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"), replace(LIMITS, connections=1))
    with reach(server, cluster.credentials("n2")) as link:
        assert ask(link) == End(1)
        one_more = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        with one_more, suppress(ConnectionError):
            assert one_more.recv(1) == b""
        assert ask(link) == End(2)
    caller = cluster.credentials("n3")

    def room() -> bool:
        with reach(server, caller) as again:
            return ask(again) == End(3)

    assert until("there is room again", room)


def test_an_older_tls_is_refused(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"))
    pair = cluster.authority.node("n2")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cluster.authority.cert)
    context.load_cert_chain(pair.cert, pair.key)
    raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    cluster.stack.callback(raw.close)
    with pytest.raises(ssl.SSLError):
        context.wrap_socket(raw)


def test_a_recorded_session_played_again_asks_nothing(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"))
    recorded = bytearray()

    class Recorder(TcpProxy):
        def passes(self, data: bytes, replies: bool) -> bool:
            if not replies:
                recorded.extend(data)
            return True

    proxy = Recorder(server.port)
    cluster.stack.callback(proxy.close)
    with dial("n1", "127.0.0.1", proxy.port, cluster.credentials("n2"), LIMITS) as link:
        assert ask(link) == End(1)
    assert len(recorded) > 1000
    refused = server.refused
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        sock.sendall(bytes(recorded))
        until("it is refused", lambda: server.refused > refused)
    assert len(cluster.asked) == 1


def test_refusals_are_counted_and_told_now_and_then(cluster: Cluster) -> None:
    """Who is refused decides how often that is: the log is not his to fill."""
    server = cluster.serve(cluster.credentials("n1"), replace(LIMITS, told=PATIENCE * 10))
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
            sock.sendall(b"rubbish, " * 10)
            with suppress(ConnectionError):
                sock.recv(1)
    until("all are counted", lambda: server.refused == 5)
    assert len(cluster.log.of("peer_refused")) == 1


def test_a_stop_cuts_everybody_off(cluster: Cluster) -> None:
    server = cluster.serve(cluster.credentials("n1"))
    with reach(server, cluster.credentials("n2")) as link:
        assert ask(link) == End(1)
        server.stop()
        with suppress(Unavailable):
            assert link.receive(PATIENCE) is None
    with pytest.raises(Unavailable):
        until("nobody listens", lambda: _refused(server.port))
        reach(server, cluster.credentials("n2"))


def _refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_taken_port_is_tried_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felix_shim.peers.REBIND_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = cluster.serve(cluster.credentials("n1"), port=port)
        until("it complains", lambda: cluster.log.of("peers_not_served"))
    until("it serves", lambda: cluster.log.of("peers_serving"))
    with reach(server, cluster.credentials("n2")) as link:
        assert ask(link) == End(1)
