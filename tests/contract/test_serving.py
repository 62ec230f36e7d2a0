"""Pages over real sockets: who gets in, what a stuck client delays, and how it all ends."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import pytest

from libtortie import serving
from libtortie.errors import InvalidInput
from libtortie.serving import Answer, Asked, Server
from libtortie.serving_access import Place
from tests.fakes.certificates import Authority, Pair
from tests.fakes.migration_proxies import until

DEADLINE = 120.0


def secret(asked: Asked) -> Answer:
    return Answer(f"secret of {asked.path} {dict(asked.query)}\n")


def state(asked: Asked) -> Answer:
    return Answer("ok\nin detail\n" if asked.trusted else "ok\n")


def broken(_: Asked) -> Answer:
    raise KeyError("what it knows")


@contextmanager
def served(place: Place, told: list[str] | None = None, **more: serving.Page) -> Iterator[Server]:
    troubles = told if told is not None else []
    pages = {"/secret": secret, "/state": state, "/below/": secret, "/broken": broken}
    pages |= {f"/{name}": page for name, page in more.items()}
    server = Server(
        place, pages, serving=lambda _: None, trouble=troubles.append, open=frozenset({"/state"})
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.port > 0, DEADLINE)
        yield server
    finally:
        server.stop()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def get(
    url: str,
    context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
) -> tuple[int, str]:
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    asked = urllib.request.Request(url, headers=dict(headers or {}), method=method)
    try:
        with urllib.request.build_opener(*handlers).open(asked, timeout=DEADLINE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_on_loopback_everybody_reads() -> None:
    with served(Place(0)) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert get(f"{url}/secret?a=1&b=2&a=") == (200, "secret of /secret {'a': '', 'b': '2'}\n")
        assert get(f"{url}/below/it/is")[1].startswith("secret of /below/it/is")
        assert get(f"{url}/state") == (200, "ok\nin detail\n")
        assert get(f"{url}/nothing")[0] == 404
        assert get(f"{url}/secret", method="HEAD") == (200, "")
        assert get(f"{url}/secret", method="POST")[0] == 501


def test_a_request_that_is_none_is_answered_so() -> None:
    with (
        served(Place(0)) as server,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE) as rude,
    ):
        rude.sendall(b"GET http://[ HTTP/1.0\r\n\r\n")
        assert rude.makefile().readline() == "HTTP/1.0 400 Bad Request\n"


def test_on_loopback_a_strangers_page_reads_nothing_in_a_browsers_name() -> None:
    with served(Place(0)) as server:
        url = f"http://127.0.0.1:{server.port}/secret"
        assert get(url, headers={"Host": f"evil.example:{server.port}"}) == (
            421,
            "ask for it by address\n",
        )


def test_a_token_is_needed_where_one_is_set_and_may_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("right\n")
    told: list[str] = []
    with served(Place(0, "0.0.0.0", token_file=str(file)), told) as server:
        url = f"http://127.0.0.1:{server.port}"
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            for path in ("/secret", "/below/it", "/nothing"):
                assert get(url + path, headers=headers)[0] == 401
            assert get(f"{url}/state", headers=headers) == (200, "ok\n")
        right = {"Authorization": "Bearer right", "Host": "tortie.example"}
        assert get(f"{url}/secret", headers=right)[0] == 200
        assert get(f"{url}/state", headers=right) == (200, "ok\nin detail\n")
        file.write_text("other\n")
        assert get(f"{url}/secret", headers=right)[0] == 401
        file.unlink()
        assert get(f"{url}/secret", headers={"Authorization": "Bearer other"})[0] == 401
        assert get(f"{url}/state", headers={"Authorization": "Bearer other"}) == (200, "ok\n")
        assert f"token file {file}: No such file or directory" in told


def test_a_browser_is_asked_for_a_log_in_and_a_scraper_for_its_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("right")
    with (
        served(Place(0, token_file=str(token))) as server,
        pytest.raises(urllib.error.HTTPError, match="401") as refused,
    ):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/secret", timeout=DEADLINE)
    with refused.value as answer:
        asked = answer.headers.get_all("WWW-Authenticate")
    assert asked == ['Bearer realm="tortie"', 'Basic realm="tortie"']


def trusting(authority: Authority, own: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


def test_a_client_certificate_or_a_token_is_enough(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other-ca")
    pair, client = authority.server("page"), authority.client("prometheus")
    token = tmp_path / "token"
    token.write_text("right")
    place = Place(0, "0.0.0.0", str(token), str(pair.cert), str(pair.key), str(authority.cert))
    with served(place) as server:
        server.check()
        url = f"https://127.0.0.1:{server.port}"
        nobody = trusting(authority)
        assert get(f"{url}/secret", trusting(authority, client))[0] == 200
        assert get(f"{url}/secret", nobody, headers={"Authorization": "Bearer right"})[0] == 200
        assert get(f"{url}/secret", nobody)[0] == 401
        assert get(f"{url}/state", nobody) == (200, "ok\n")
        with pytest.raises(OSError):
            get(f"{url}/secret", trusting(authority, other.client("stranger")))
        with pytest.raises(OSError):
            get(f"http://127.0.0.1:{server.port}/secret")


def test_each_connection_proves_itself_anew(tmp_path: Path) -> None:
    """A session that is resumed would outlive its client's certificate."""
    authority = Authority(tmp_path)
    pair, context = authority.server("page"), trusting(authority, authority.client("prometheus"))
    place = Place(0, "", "", str(pair.cert), str(pair.key), str(authority.cert))
    with served(place) as server:
        where, session = ("127.0.0.1", server.port), None
        for _ in range(3):
            with (
                socket.create_connection(where, DEADLINE) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as spoken,
            ):
                spoken.sendall(b"GET /secret HTTP/1.0\r\n\r\n")
                assert spoken.makefile("rb").read().startswith(b"HTTP/1.0 200")
                assert not spoken.session_reused
                session = spoken.session
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):
            get(f"https://127.0.0.1:{server.port}/secret", context)


def test_a_new_certificate_is_taken_and_half_a_one_is_not(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "ca-1"), Authority(tmp_path, "ca-2")
    pair, new = first.server("page"), second.server("page-2")
    told: list[str] = []
    with served(Place(0, cert_file=str(pair.cert), key_file=str(pair.key)), told) as server:
        url = f"https://127.0.0.1:{server.port}/state"
        assert get(url, trusting(first))[0] == 200
        pair.cert.write_bytes(new.cert.read_bytes())
        assert get(url, trusting(first))[0] == 200
        assert told == [f"certificate {pair.cert} and key {pair.key}: key values mismatch"]
        pair.key.write_bytes(new.key.read_bytes())
        assert get(url, trusting(second))[0] == 200


def test_files_that_cannot_be_used_are_told_before_the_start(tmp_path: Path) -> None:
    def made(place: Place) -> Server:
        return Server(place, {}, serving=lambda _: None, trouble=lambda _: None)

    none = str(tmp_path / "none")
    with pytest.raises(InvalidInput, match=f"token file {none}"):
        made(Place(0, token_file=none)).check()
    with pytest.raises(InvalidInput, match=f"certificate {none} and key {none}: No such file"):
        made(Place(0, cert_file=none, key_file=none)).check()
    pair = Authority(tmp_path).server("page")
    with pytest.raises(InvalidInput, match=f"client CA {none}: No such file"):
        made(Place(0, "", "", str(pair.cert), str(pair.key), none)).check()


ODD_REQUESTS = {
    "absolute": b"GET http://127.0.0.1/secret HTTP/1.1",
    "two-slashes": b"GET //secret HTTP/1.1",
    "another-host": b"GET //state/secret HTTP/1.1",
    "below": b"GET /state/../secret HTTP/1.1",
    "below-encoded": b"GET /state/%2e%2e/secret HTTP/1.1",
    "fragment": b"GET /secret#/state HTTP/1.1",
    "query": b"GET /secret?/state HTTP/1.1",
    "parameters": b"GET /secret;/state HTTP/1.1",
    "head": b"HEAD /secret HTTP/1.1",
    "post": b"POST /secret HTTP/1.1",
    "options": b"OPTIONS * HTTP/1.1",
    "old": b"GET /secret",
    "no-token": b"GET /secret HTTP/1.1\r\nAuthorization: Bearer",
    "blank-token": b"GET /secret HTTP/1.1\r\nAuthorization: Bearer  ",
    "nul": b"GET /secret HTTP/1.1\r\nAuthorization: Bearer right\0",
    "folded": b"GET /secret HTTP/1.1\r\nAuthorization: Bearer\r\n wrong",
    "two-tokens": b"GET /secret HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b",
    "no-basic": b"GET /secret HTTP/1.1\r\nAuthorization: Basic Og==",
    "half-basic": b"GET /secret HTTP/1.1\r\nAuthorization: Basic !",
    "injected": b"GET /secret%0d%0aX-Made-Up:%20x HTTP/1.1",
    "many-headers": b"GET /secret HTTP/1.1" + b"\r\nX: x" * 200,
    "long": b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
    "noise": bytes(range(256)),
}


@pytest.mark.parametrize("odd", ODD_REQUESTS)
def test_no_odd_request_gets_in_or_harms_who_asks_next(odd: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("right")
    told: list[str] = []
    with served(Place(0, token_file=str(token)), told) as server:
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE) as client:
            try:
                client.sendall(ODD_REQUESTS[odd] + b"\r\n\r\n")
                said = client.makefile("rb").read()
            except ConnectionError:  # hung up on before all of it was read
                said = b""
        assert b"secret of" not in said and b"X-Made-Up" not in said
        url = f"http://127.0.0.1:{server.port}/secret"
        assert get(url, headers={"Authorization": "Bearer right"})[0] == 200
    assert told == []


def test_a_page_that_fails_is_told_and_tells_its_reader_nothing() -> None:
    told: list[str] = []
    with served(Place(0), told) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert get(f"{url}/broken") == (500, "it failed: see the log\n")
        assert get(f"{url}/state")[0] == 200
    assert told == ["/broken: KeyError('what it knows')"]


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_says_nothing_delays_nobody_and_is_hung_up_on(
    tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.2)
    authority = Authority(tmp_path)
    pair = authority.server("page")
    files = {"cert_file": str(pair.cert), "key_file": str(pair.key)} if tls else {}
    with (
        served(Place(0, **files)) as server,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE) as silent,
    ):
        assert silent.recv(1) == b""


def test_a_client_that_dribbles_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.2)
    with (
        served(Place(0)) as server,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE) as slow,
    ):
        slow.settimeout(0.02)
        ended = False
        while not ended:
            try:
                slow.sendall(b"G")
                ended = slow.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True


@pytest.mark.parametrize("tls", [False, True])
def test_who_says_nothing_makes_room_for_who_asks(
    tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd of strangers that hold connections does not make a kubelet's probe fail."""
    monkeypatch.setattr(serving, "MOST_REQUESTS", 2)
    monkeypatch.setattr(serving, "REQUEST_SECONDS", DEADLINE)
    monkeypatch.setattr(serving._Handler, "timeout", DEADLINE)
    authority = Authority(tmp_path)
    pair = authority.server("page")
    files = {"cert_file": str(pair.cert), "key_file": str(pair.key)} if tls else {}
    context = trusting(authority) if tls else None
    with served(Place(0, **files)) as server:
        url = f"http{'s' if tls else ''}://127.0.0.1:{server.port}/state"
        where = "127.0.0.1", server.port
        with (
            socket.create_connection(where, DEADLINE) as first,
            socket.create_connection(where, DEADLINE),
        ):
            until(lambda: _status(url, context) == 200, DEADLINE)
            assert first.recv(1) == b"", "it has said nothing for longest"


def test_who_is_being_answered_makes_room_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_REQUESTS", 1)
    monkeypatch.setattr(serving, "REQUEST_SECONDS", DEADLINE)
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Asked) -> Answer:
        begun.set()
        go_on.wait(DEADLINE)
        return Answer("done\n")

    with served(Place(0), slow=slow) as server:
        where = "127.0.0.1", server.port
        with socket.create_connection(where, DEADLINE) as one:
            one.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
            assert begun.wait(DEADLINE)
            with socket.create_connection(where, DEADLINE) as other:
                assert other.recv(1) == b""
            go_on.set()
            assert one.makefile("rb").read().endswith(b"\r\n\r\ndone\n")


def test_an_answer_of_any_characters_is_sent() -> None:
    with served(Place(0), odd=lambda _: Answer("half \ud800 a pair\n")) as server:
        assert get(f"http://127.0.0.1:{server.port}/odd") == (200, "half ? a pair\n")


def _status(url: str, context: ssl.SSLContext | None = None) -> int:
    try:
        return get(url, context)[0]
    except OSError:
        return 0


def test_an_answer_in_pieces_comes_as_they_do_and_ends_with_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "MOST_STREAMS", 1)
    ended = threading.Event()

    def pieces(asked: Asked) -> Iterator[bytes]:
        try:
            yield b"first\n"
            asked.over.wait()
            yield b"last\n"
        finally:
            ended.set()

    def live(asked: Asked) -> Answer:
        return Answer(pieces(asked), "text/event-stream")

    with served(Place(0), live=live) as server:
        url = f"http://127.0.0.1:{server.port}"
        answer = urllib.request.urlopen(f"{url}/live", timeout=DEADLINE)
        assert answer.readline() == b"first\n"
        assert get(f"{url}/live") == (503, "too many are listening\n")
        assert get(f"{url}/state")[0] == 200
    assert ended.wait(DEADLINE)
    answer.close()


def test_a_page_that_does_not_end_with_the_server_holds_up_no_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "STOP_SECONDS", 0.05)
    free = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"first\n"
        free.wait(DEADLINE)

    with served(Place(0), deaf=lambda _: Answer(pieces())) as server:
        answer = urllib.request.urlopen(
            f"http://127.0.0.1:{server.port}/deaf", timeout=DEADLINE / 2
        )
        assert answer.readline() == b"first\n"
    assert answer.read() == b""
    free.set()


def test_a_scraper_that_cannot_be_accepted_is_waited_for_without_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept, failing = TCPServer.get_request, [1, 2, 3]
    paused: list[float] = []

    def get_request(server: TCPServer) -> Any:
        if failing:
            failing.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(server)

    monkeypatch.setattr(TCPServer, "get_request", get_request)
    monkeypatch.setattr(serving, "pause", paused.append)
    with served(Place(0)) as server:
        assert get(f"http://127.0.0.1:{server.port}/state")[0] == 200
    assert paused == [serving.BREATH_SECONDS] * 3


def test_both_families_are_served(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("right")
    with served(Place(0, "::", token_file=str(token))) as server:
        for host in ("127.0.0.1", "[::1]"):
            assert get(f"http://{host}:{server.port}/state") == (200, "ok\n")
    with served(Place(0, "::1")) as server:
        assert get(f"http://[::1]:{server.port}/state")[0] == 200


def test_a_port_that_is_taken_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "RETRY_SECONDS", 0.05)
    told: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])

        def free() -> None:
            until(lambda: bool(told))
            other.close()

        freeing = threading.Thread(target=free)
        freeing.start()
        with served(Place(port), told) as server:
            assert server.port == port
        freeing.join(DEADLINE)
    assert set(told[:-1]) == {f"port {port}: [Errno 98] Address already in use"}
    assert told[-1] == "", "it is over"
