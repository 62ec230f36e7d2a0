"""The real client on a bad wire: silence, drips, cuts, redirects; TLS and rotating credentials."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lab.apiserver.auth import ANONYMOUS
from lab.apiserver.errors import expired
from lab.apiserver.faults import CloseConnection, Delay, Drip, Fault, Reject
from lab.apiserver.pages import Pages
from lab.apiserver.server import ApiServer, Tls
from libtortie.errors import (
    InvalidInput,
    Malformed,
    NotFound,
    TortieError,
    Unauthorized,
    Unavailable,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import KubeConfig, Material, direct, in_cluster, load_kubeconfig
from libtortie.kube.objects import Namespace, Pod
from libtortie.kube.port import Overloaded
from tests.fakes.certificates import Authority

BUDGET = 0.4  # seconds: the client's deadline in these tests
SLACK = 0.6  # what a loaded machine may add


@contextmanager
def talking(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A TCP server with one behaviour per connection; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()

    def guarded(connection: socket.socket) -> None:
        try:
            serve(connection)
        except OSError:
            return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            connection.close()
        thread.join(5)


def answer(head: str, body: bytes = b"") -> Callable[[socket.socket], None]:
    """Read a request, send this, close."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    return serve


def timed(call: Callable[[], object], error: type[TortieError]) -> tuple[float, str]:
    """How long a call took to raise `error`, and its text."""
    began = time.monotonic()
    with pytest.raises(error) as caught:
        call()
    return time.monotonic() - began, str(caught.value)


# --- deadlines ---------------------------------------------------------------------------------


def drip_headers(connection: socket.socket) -> None:
    connection.recv(65536)
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: 1\r\n" * 1000:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def drip_body(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(100000):
        connection.sendall(b" ")
        time.sleep(0.02)


def silence(connection: socket.socket) -> None:
    connection.recv(65536)
    threading.Event().wait(30)


@pytest.mark.parametrize("serve", [drip_headers, drip_body, silence])
def test_no_call_outlives_its_deadline(serve: Callable[[socket.socket], None]) -> None:
    with talking(serve) as url:
        client = HttpKubeClient(direct(url), timeout=BUDGET)
        took, text = timed(lambda: client.get(Pod, "web", "shop"), Overloaded)
        assert BUDGET * 0.9 <= took < BUDGET + SLACK
        assert "get pods shop/web" in text and url in text
        client.close()


def test_a_listener_that_never_accepts_is_slow_not_away() -> None:
    """A stopped server's kernel still completes the handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = HttpKubeClient(direct(url), timeout=BUDGET)
        took, _ = timed(lambda: client.get(Pod, "web", "shop"), Overloaded)
        assert took < BUDGET + SLACK


def test_a_full_backlog_is_bounded_too() -> None:
    """No SYN-ACK at all: the connect itself must end."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            time.sleep(0.05)
            client = HttpKubeClient(direct(f"http://127.0.0.1:{address[1]}"), timeout=BUDGET)
            took, _ = timed(lambda: client.get(Pod, "web", "shop"), Unavailable)
            assert took < BUDGET + SLACK
        finally:
            for filler in fillers:
                filler.close()


def test_tls_handshake_with_a_silent_server_is_bounded() -> None:
    with talking(silence) as url:
        config = KubeConfig(url.replace("http:", "https:"), insecure=True)
        client = HttpKubeClient(config, timeout=BUDGET)
        took, _ = timed(lambda: client.get(Pod, "web", "shop"), Unavailable)
        assert took < BUDGET + SLACK


def test_a_refused_connection_is_unavailable_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    client = HttpKubeClient(direct(url))
    took, text = timed(lambda: client.get(Pod, "web", "shop"), Unavailable)
    assert took < SLACK
    assert "refused" in text.lower()


def test_an_unknown_host_is_unavailable() -> None:
    client = HttpKubeClient(direct("http://no-such-host.invalid"), timeout=2)
    with pytest.raises(Unavailable, match=r"no-such-host\.invalid"):
        client.get(Pod, "web", "shop")


def test_a_slow_server_through_the_whole_stack() -> None:
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url), timeout=BUDGET)
        server.faults.add(Fault(Drip(0.02), verb="list"))
        took, _ = timed(lambda: client.list(Namespace), Overloaded)
        assert took < BUDGET + SLACK
        server.faults.clear()
        server.faults.add(Fault(Delay(30), verb="list"))
        took, _ = timed(lambda: client.list(Namespace), Overloaded)
        assert took < BUDGET + SLACK
        server.faults.clear()
        assert len(client.list(Namespace)[0]) == 3
        client.close()


def test_a_silent_stream_ends_after_the_idle_limit() -> None:
    with ApiServer(bookmark_interval=60) as server:
        client = HttpKubeClient(direct(server.url), idle_seconds=BUDGET)
        stream = client.watch(Pod, resource_version=client.list(Pod)[1])
        took, text = timed(lambda: next(stream), Unavailable)
        assert BUDGET * 0.9 <= took < BUDGET + SLACK
        assert "silent" in text
        assert server.audit[-1].verb == "watch"
        client.close()


def test_a_stopped_caller_does_not_wait_for_the_answer() -> None:
    """`stop` also ends a watch whose server has not even answered."""
    with talking(silence) as url:
        client = HttpKubeClient(direct(url), timeout=30)
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        began = time.monotonic()
        assert list(client.watch(Pod, resource_version="1", stop=stop)) == []
        assert time.monotonic() - began < 2


# --- odd answers -------------------------------------------------------------------------------


def test_redirects_are_refused() -> None:
    """Else a token would go wherever an answer points."""
    reached = threading.Event()

    def elsewhere(connection: socket.socket) -> None:
        reached.set()
        connection.close()

    with talking(elsewhere) as other:
        head = f"HTTP/1.1 302 Found\nLocation: {other}/\nContent-Length: 0"
        with talking(answer(head)) as url:
            client = HttpKubeClient(direct(url, "t0ken"))
            with pytest.raises(Unavailable, match="redirect"):
                client.get(Pod, "web", "shop")
    assert not reached.is_set()


@pytest.mark.parametrize(
    ("head", "body", "error"),
    [
        ("HTTP/1.1 200 OK\nContent-Length: 5", b"[1,2]", Malformed),
        ("HTTP/1.1 200 OK\nContent-Length: 9", b"not json!", Malformed),
        ("HTTP/1.1 200 OK\nContent-Length: 100", b"{}", Unavailable),
        ("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"zz\r\n", Unavailable),
        ("HTTP/1.1 502 Bad Gateway\nContent-Length: 6", b"<html>", Unavailable),
        ("garbage", b"", Unavailable),
        ("HTTP/1.1 200 OK\nContent-Length: 25", b'{"metadata":{"name":[1]}}', Malformed),
    ],
)
def test_answers_that_are_none(head: str, body: bytes, error: type[TortieError]) -> None:
    with talking(answer(head, body)) as url:
        client = HttpKubeClient(direct(url), timeout=2)
        with pytest.raises(error, match="get pods shop/web"):
            client.get(Pod, "web", "shop")


def test_a_deeply_nested_answer_is_malformed() -> None:
    body = b"[" * 200_000
    with talking(answer(f"HTTP/1.1 200 OK\nContent-Length: {len(body)}", body)) as url:
        client = HttpKubeClient(direct(url))
        with pytest.raises(Malformed):
            client.get(Pod, "web", "shop")


def test_a_watch_answered_without_chunks_still_streams() -> None:
    line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}\n'

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + line)
        threading.Event().wait(30)

    with talking(serve) as url:
        client = HttpKubeClient(direct(url))
        stream = client.watch(Pod, resource_version="1")
        assert getattr(next(stream), "resource_version", "") == "7"
        stream.close()  # type: ignore[attr-defined]  # it is a generator


def test_a_connection_closed_between_requests_is_tried_again() -> None:
    """The server drops idle connections; a read must not fail for it."""
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        client.list(Namespace)
        server.faults.add(Fault(CloseConnection(), verb="list"), times=1)
        assert len(client.list(Namespace)[0]) == 3
        server.faults.add(Fault(CloseConnection(), verb="list"), times=2)
        with pytest.raises(Unavailable):
            client.list(Namespace)
        server.faults.clear()
        server.faults.add(Fault(CloseConnection(), verb="create"), times=1)
        with pytest.raises(Unavailable):  # a write may have happened: the caller decides
            client.create(Namespace, {"metadata": {"name": "shop"}})
        client.close()


def test_a_stream_that_ends_well_in_mid_line_is_broken_all_the_same() -> None:
    """A proxy may close its chunks properly where its own upstream was cut."""
    line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}\n'
    data = line + line[:30]
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    with talking(answer("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", body)) as url:
        client = HttpKubeClient(direct(url))
        stream = client.watch(Pod, resource_version="1")
        assert getattr(next(stream), "resource_version", "") == "7"
        with pytest.raises(Unavailable, match="middle of an event"):
            next(stream)


def test_one_connection_serves_many_calls() -> None:
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        client.list(Namespace)
        assert server._listener is not None
        first = set(server._listener._open)
        for _ in range(5):
            client.list(Namespace)
            with pytest.raises(NotFound):
                client.get(Pod, "absent", "default")
        assert set(server._listener._open) == first
        assert len(first) == 1
        client.close()


def test_a_restarted_server_is_found_again() -> None:
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        client.list(Namespace)
        server.stop()
        with pytest.raises(Unavailable):
            client.list(Namespace)
        server.start()
        assert len(client.list(Namespace)[0]) == 3
        client.close()


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        assert len(client.list(Namespace)[0]) == 3
        client.close()


def test_lists_come_in_pages_and_survive_their_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libtortie.kube.client.PAGE", 2)
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        found, version = client.list(Namespace)
        assert [n.metadata.name for n in found] == ["default", "kube-public", "kube-system"]
        assert version == str(server.api.store.version)
        assert [a.verb for a in server.audit] == ["list", "list"]
        server.api._pages = _Forgetful()  # every page expires
        assert len(client.list(Namespace)[0]) == 3
        assert [a.verb for a in server.audit][2:] == ["list", "list", "list"]
        client.close()


class _Forgetful(Pages):
    def resume(self, name: str) -> tuple[tuple[dict[str, object], ...], int]:
        raise expired("The provided continue parameter is too old")


# --- identities --------------------------------------------------------------------------------


def test_no_and_wrong_tokens_are_unauthorized() -> None:
    with ApiServer(tokens={"right": "alice"}) as server:
        for token in ("", "wrong-token"):
            client = HttpKubeClient(direct(server.url, token))
            with pytest.raises(Unauthorized) as caught:
                client.list(Namespace)
            assert "wrong-token" not in str(caught.value)
            client.close()
        client = HttpKubeClient(direct(server.url, "right"))
        client.list(Namespace)
        assert server.audit[-1].user == "alice"
        client.close()


def test_forbidden_names_user_verb_and_resource() -> None:
    with ApiServer(tokens={"right": "alice"}) as server:
        client = HttpKubeClient(direct(server.url, "right"))
        server.faults.add(Fault(Reject(403), user="alice", verb="get", resource="pods"))
        with pytest.raises(Unauthorized, match='User "alice" cannot get resource "pods"'):
            client.get(Pod, "web", "default")
        client.list(Pod)
        client.close()


def rewrite(path: Path, text: str) -> None:
    """As an installer does: write beside, rename over."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def test_a_rotated_token_file_is_read_before_the_next_call(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with ApiServer(tokens={"first": "alice"}) as server:
        client = HttpKubeClient(KubeConfig(server.url, token_file=token))
        client.list(Namespace)
        server.tokens.replace({"second": "alice"})
        rewrite(token, "second\n")
        client.list(Namespace)
        client.close()


def test_a_token_rotated_as_kubelet_does_it(tmp_path: Path) -> None:
    """The file is a link through `..data`, and only that link moves."""
    for name, text in (("..1", "first"), ("..2", "second")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")
    with ApiServer(tokens={"first": "alice"}) as server:
        client = HttpKubeClient(KubeConfig(server.url, token_file=tmp_path / "token"))
        client.list(Namespace)
        server.tokens.replace({"second": "alice"})
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        client.list(Namespace)
        client.close()


def test_a_401_reads_again_what_stat_did_not_show(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("token-1")
    with ApiServer(tokens={"token-1": "alice"}) as server:
        client = HttpKubeClient(KubeConfig(server.url, token_file=token))
        before = token.stat()
        server.tokens.replace({"token-2": "alice"})
        token.write_text("token-2")  # same inode, same size
        os.utime(token, ns=(before.st_atime_ns, before.st_mtime_ns))
        client.list(Namespace)
        assert len(server.audit) == 1  # the refused request was not authorized, so not audited
        client.close()


def test_an_unchanged_token_is_not_tried_twice(tmp_path: Path) -> None:
    requests = 0

    def refuse(connection: socket.socket) -> None:
        nonlocal requests
        requests += 1
        answer("HTTP/1.1 401 Unauthorized\nContent-Length: 0")(connection)

    token = tmp_path / "token"
    token.write_text("stale")
    os.utime(token, (time.time() - 3600, time.time() - 3600))
    with talking(refuse) as url:
        client = HttpKubeClient(KubeConfig(url, token_file=token))
        with pytest.raises(Unauthorized, match=r"written 60 min ago"):
            client.list(Namespace)
    assert requests == 1


def test_a_broken_rotation_keeps_the_last_good_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    with ApiServer(tokens={"first": "alice"}) as server:
        client = HttpKubeClient(KubeConfig(server.url, token_file=token))
        token.write_text("")
        client.list(Namespace)
        token.unlink()
        client.list(Namespace)
        server.tokens.replace({"second": "alice"})
        rewrite(token, "second")
        client.list(Namespace)
        client.close()


def test_a_rewritten_kubeconfig_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"

    def write(token: str, url: str) -> None:
        body = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        rewrite(path, yaml.safe_dump(body))

    with ApiServer(tokens={"first": "alice"}) as one, ApiServer(tokens={"second": "bob"}) as two:
        write("first", one.url)
        client = HttpKubeClient(load_kubeconfig(path))
        client.list(Namespace)
        write("second", two.url)
        client.list(Namespace)
        assert [a.user for a in (*one.audit, *two.audit)] == ["alice", "bob"]
        assert client.server == two.url
        client.close()


# --- TLS ---------------------------------------------------------------------------------------


@contextmanager
def tls_server(authority: Authority, directory: Path) -> Iterator[ApiServer]:
    del directory
    pair = authority.server("server")
    with ApiServer(tokens={"t": "alice"}, tls=Tls(pair.cert, pair.key, authority.cert)) as server:
        yield server


def test_client_certificate_names_the_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    user = authority.client("system:node:n1", "system:nodes")
    with tls_server(authority, tmp_path) as server:
        for inline in (False, True):
            ca, cert, key = (
                Material(data=path.read_bytes()) if inline else Material(path=path)
                for path in (authority.cert, user.cert, user.key)
            )
            client = HttpKubeClient(KubeConfig(server.url, ca=ca, client_cert=cert, client_key=key))
            client.list(Namespace)
            assert server.audit[-1].user == "system:node:n1"
            client.close()


def test_a_server_of_another_authority_is_refused(tmp_path: Path) -> None:
    other = Authority(tmp_path, "other-ca")
    with tls_server(Authority(tmp_path), tmp_path) as server:
        client = HttpKubeClient(KubeConfig(server.url, token="t", ca=Material(path=other.cert)))
        with pytest.raises(Unavailable, match=r"(?i)certificate verify failed"):
            client.list(Namespace)
        insecure = HttpKubeClient(KubeConfig(server.url, token="t", insecure=True))
        insecure.list(Namespace)
        insecure.close()


def test_only_the_named_ca_is_trusted(tmp_path: Path) -> None:
    """requests would add the public CAs of its bundle to the context."""
    authority = Authority(tmp_path)
    with tls_server(authority, tmp_path) as server:
        client = HttpKubeClient(KubeConfig(server.url, token="t", ca=Material(path=authority.cert)))
        client.list(Namespace)
        context = client._live.credentials.tls
        assert context is not None
        assert len(context.get_ca_certs()) == 1
        client.close()


def test_the_servers_name_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server("named", hosts=("kubernetes.default",))
    ca = Material(path=authority.cert)
    with ApiServer(tls=Tls(pair.cert, pair.key)) as server:
        client = HttpKubeClient(KubeConfig(server.url, ca=ca))
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            client.list(Namespace)
        named = HttpKubeClient(KubeConfig(server.url, ca=ca, tls_server_name="kubernetes.default"))
        named.list(Namespace)
        assert server.audit[-1].user == ANONYMOUS
        named.close()


def test_a_client_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other-ca")
    forged = other.client("system:admin")
    with tls_server(authority, tmp_path) as server:
        client = HttpKubeClient(
            KubeConfig(
                server.url,
                ca=Material(path=authority.cert),
                client_cert=Material(path=forged.cert),
                client_key=Material(path=forged.key),
            )
        )
        with pytest.raises(Unavailable):
            client.list(Namespace)
        assert len(server.audit) == 0


def test_rotated_certificates_are_used_by_the_next_call(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.client("alice"), authority.client("bob")
    cert, key = tmp_path / "client.crt", tmp_path / "client.key"
    cert.write_bytes(first.cert.read_bytes())
    key.write_bytes(first.key.read_bytes())
    with tls_server(authority, tmp_path) as server:
        client = HttpKubeClient(
            KubeConfig(
                server.url,
                ca=Material(path=authority.cert),
                client_cert=Material(path=cert),
                client_key=Material(path=key),
            )
        )
        client.list(Namespace)
        rewrite(cert, second.cert.read_text())  # half of a rotation: the pair does not match
        client.list(Namespace)
        rewrite(key, second.key.read_text())
        client.list(Namespace)
        assert [asked.user for asked in server.audit] == ["alice", "alice", "bob"]
        client.close()


def test_a_new_ca_is_trusted_once_its_file_changes(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old-ca"), Authority(tmp_path, "new-ca")
    ca = tmp_path / "ca.crt"
    ca.write_text(old.cert.read_text())
    with tls_server(new, tmp_path) as server:
        client = HttpKubeClient(KubeConfig(server.url, token="t", ca=Material(path=ca)))
        with pytest.raises(Unavailable):
            client.list(Namespace)
        rewrite(ca, old.cert.read_text() + new.cert.read_text())
        client.list(Namespace)
        client.close()


def test_in_cluster(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with tls_server(authority, tmp_path) as server:
        (tmp_path / "token").write_text("t\n")
        (tmp_path / "ca.crt").write_text(authority.cert.read_text())
        (tmp_path / "namespace").write_text("kube-system")
        environ = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        config = in_cluster(environ, tmp_path)
        assert config.namespace == "kube-system"
        client = HttpKubeClient(config)
        client.list(Namespace)
        assert server.audit[-1].user == "alice"
        client.close()


def test_key_and_certificate_that_do_not_match_are_invalid(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two = authority.client("alice"), authority.client("bob")
    with pytest.raises(InvalidInput, match="matching pair"):
        HttpKubeClient(
            KubeConfig(
                "https://127.0.0.1:1",
                client_cert=Material(path=one.cert),
                client_key=Material(path=two.key),
            )
        )


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_of_the_client_is_left_open() -> None:
    before = open_files()
    threads = threading.active_count()
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        for _ in range(20):
            stream = client.watch(Pod, resource_version=client.list(Pod)[1])
            server.api.create(
                server.api.kind("", "v1", "pods"),
                "default",
                {"metadata": {"generateName": "web-"}},
            )
            next(stream)
            stream.close()  # type: ignore[attr-defined]  # it is a generator
        client.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if open_files() <= before and threading.active_count() <= threads:
            break
        time.sleep(0.02)
    assert open_files() <= before
    assert threading.active_count() <= threads
