"""The executable: installed as on a node, run as a runtime runs it, against a real socket."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cni_plugin import frame, shim
from cni_plugin.install import executable, replace_file
from cni_plugin.skel import dispatch

PYTHON = "/usr/bin/python3"
ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "K8S_POD_NAME=ünïcode;K8S_POD_NAMESPACE=default",
    "CNI_PATH": "/opt/cni/bin",
}
CONF = b'{"cniVersion":"0.4.0","name":"net","type":"tortie"}'

ALLOWED_MODULES = frozenset(
    [
        "_abc",
        "_codecs",
        "_codecs_data",
        "_collections_abc",
        "_frozen_importlib",
        "_frozen_importlib_external",
        "_imp",
        "_io",
        "_signal",
        "_socket",
        "_stat",
        "_thread",
        "_warnings",
        "_weakref",
        "abc",
        "builtins",
        "codecs",
        "encodings",
        "encodings.aliases",
        "encodings.ascii",
        "encodings.latin_1",
        "encodings.utf_8",
        "errno",
        "genericpath",
        "io",
        "marshal",
        "os",
        "os.path",
        "posix",
        "posixpath",
        "stat",
        "sys",
        "time",
        "zipimport",
        "__main__",
    ]
)

Handler = Callable[[socket.socket], None]
SILENCE = 100.0
"""Seconds for which a silent agent says nothing."""
QUICK = 0.25
"""Seconds."""


class Agent:
    """A listener that treats every connection in one way."""

    def __init__(self, path: Path, handler: Handler, backlog: int = 16) -> None:
        self.path = path
        self.requests: list[frame.Request] = []
        self._handler = handler
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(backlog)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                self._handler(connection)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)


class Node:
    """A directory with the installed executable, and agents to start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "cni.sock"
        self.fallback = directory / "fallback"
        self.program = directory / "tortie"
        self.agents: list[Agent] = []
        self.install()

    def install(self, *, deadline: float = 20.0) -> None:
        text = executable(str(self.socket), str(self.fallback), PYTHON).decode()
        text = text.replace("DEADLINE = 170.0", f"DEADLINE = {deadline}")
        replace_file(self.program, text.encode(), 0o755)

    def agent(self, handler: Handler) -> Agent:
        agent = Agent(self.socket, handler)
        self.agents.append(agent)
        return agent

    def run(
        self, stdin: bytes = CONF, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(self.program)],
            input=stdin,
            env={"PATH": "/usr/bin:/bin", "SECRET": "no", **(ENV if env is None else env)},
            capture_output=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    with ExitStack() as stack:
        yield node
        for agent in node.agents:
            stack.callback(agent.close)


def error_of(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str, str]:
    body = json.loads(done.stdout)
    assert done.returncode == 1
    assert done.stderr == b""
    return body["code"], body["msg"], body["cniVersion"]


def serving(seen: list[frame.Request], code: int, stdout: bytes) -> Handler:
    def handle(connection: socket.socket) -> None:
        seen.append(frame.read_request(connection))
        connection.sendall(frame.encode_response(code, stdout))

    return handle


def test_a_request_goes_out_whole_and_its_answer_comes_back(node: Node) -> None:
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b'{"cniVersion":"0.4.0"}\n'))
    done = node.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, b'{"cniVersion":"0.4.0"}\n', b"")
    assert seen == [frame.Request(ENV, CONF)], "CNI_ variables and stdin, nothing else"


def test_the_frame_is_the_modules_own(node: Node) -> None:
    received: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        header = connection.recv(8, socket.MSG_WAITALL)
        size = int.from_bytes(header[4:], "big")
        received.append(header + connection.recv(size, socket.MSG_WAITALL))
        connection.sendall(frame.encode_response(0, b""))

    node.agent(handle)
    for stdin in (CONF, b"", b"\0\xff" * 1000, b"x" * 1_500_000):
        assert node.run(stdin).returncode == 0
        sent = received.pop()
        request = frame.decode_request(sent[8:])
        assert request.stdin == stdin
        ordered = {name: request.env[name] for name in request.env}
        assert sent == frame.encode_request(ordered, stdin)
    assert shim.MAX_BODY == frame.MAX_BODY


def test_arguments_that_are_no_text_are_refused_by_name(node: Node) -> None:
    def handle(connection: socket.socket) -> None:
        request = frame.read_request(connection)
        answer = dispatch(request.env, request.stdin, lambda _: pytest.fail("must not be built"))
        connection.sendall(frame.encode_response(answer.code, answer.stdout))

    node.agent(handle)
    for name in ("CNI_ARGS", "CNI_NETNS", "CNI_CONTAINERID", "CNI_IFNAME"):
        bad = {name: ENV[name] + "\udcff"}
        code, message, _ = error_of(node.run(env={**ENV, **bad}))
        assert code == 4
        assert name in message
    assert (
        node.run(env={**ENV, "CNI_PATH": "/opt/\udcff", "CNI_COMMAND": "VERSION"}).returncode == 0
    )


def test_exit_status_and_large_answers(node: Node) -> None:
    text = b'{"x":"' + b"y" * 1_000_000 + b'"}\n'
    node.agent(serving([], 1, text))
    done = node.run()
    assert (done.returncode, done.stdout) == (1, text)


def test_the_whole_contract_over_the_socket(node: Node) -> None:
    def handle(connection: socket.socket) -> None:
        request = frame.read_request(connection)

        def never(_: object) -> object:
            raise AssertionError("VERSION needs no plugin")

        answer = dispatch(request.env, request.stdin, never)  # type: ignore[arg-type]  # never called
        connection.sendall(frame.encode_response(answer.code, answer.stdout))

    node.agent(handle)
    done = node.run(b"", {"CNI_COMMAND": "VERSION"})
    assert done.returncode == 0
    assert "1.1.0" in json.loads(done.stdout)["supportedVersions"]
    plain = {name: value for name, value in ENV.items() if name != "CNI_ARGS"}
    assert error_of(node.run(b"junk", plain))[0] == 6
    assert error_of(node.run(CONF))[0] == 4, "the pod's name is no Kubernetes name"


# --- nobody listens: the fallback ------------------------------------------------------------


def make_fallback(node: Node) -> None:
    script = (
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "print('fallback', os.environ['CNI_COMMAND'], sys.stdin.read())\n"
        "sys.exit(3)\n"
    )
    replace_file(node.fallback, script.encode(), 0o755)


def test_no_socket_runs_the_fallback_with_everything_it_needs(node: Node) -> None:
    make_fallback(node)
    done = node.run()
    assert done.returncode == 3
    assert done.stdout.decode() == f"fallback ADD {CONF.decode()}\n"


def test_a_socket_without_a_listener_too(node: Node) -> None:
    make_fallback(node)
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(node.socket))
    assert node.run().stdout.startswith(b"fallback ADD")


def test_no_agent_and_no_fallback_is_try_again(node: Node) -> None:
    code, message, _ = error_of(node.run())
    assert code == 11
    assert str(node.socket) in message
    assert str(node.fallback) in message


# --- anything else: code 11, and never a second run ------------------------------------------


def test_bytes_were_sent_then_the_connection_broke(node: Node) -> None:
    make_fallback(node)

    def before_reading(connection: socket.socket) -> None:
        connection.close()

    def after_reading(connection: socket.socket) -> None:
        frame.read_request(connection)

    def half_an_answer(connection: socket.socket) -> None:
        frame.read_request(connection)
        connection.sendall(frame.encode_response(0, b"x" * 100)[:50])

    for handler in (before_reading, after_reading, half_an_answer):
        agent = node.agent(handler)
        code, message, version = error_of(node.run())
        assert (code, version) == (11, "0.4.0")
        assert "broke" in message
        agent.close()
        node.socket.unlink()


def test_an_answer_that_is_none_of_ours(node: Node) -> None:
    make_fallback(node)

    def other_version(connection: socket.socket) -> None:
        frame.read_request(connection)
        connection.sendall(b"TTA9" + bytes(8))

    node.agent(other_version)
    code, message, _ = error_of(node.run())
    assert code == 11
    assert "not a frame" in message


def test_an_agent_that_never_answers_meets_the_deadline(node: Node) -> None:
    make_fallback(node)
    node.install(deadline=0.3)
    released = threading.Event()
    silences: list[bool] = []

    def silent(connection: socket.socket) -> None:
        frame.read_request(connection)
        connection.sendall(b"TTA1")
        silences.append(released.wait(SILENCE))

    node.agent(silent)
    code, message, _ = error_of(node.run())
    assert silences == [], "it ended while the agent was silent still"
    released.set()
    assert code == 11
    assert "0.3 seconds" in message


def test_an_agent_whose_queue_is_full(node: Node) -> None:
    make_fallback(node)
    node.install(deadline=0.3)
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(str(node.socket))
        full.listen(0)
        waiting = []
        try:
            while True:
                client = socket.socket(socket.AF_UNIX)
                waiting.append(client)
                client.setblocking(False)
                try:
                    client.connect(str(node.socket))
                except BlockingIOError:
                    break
            assert error_of(node.run())[0] == 11
        finally:
            for client in waiting:
                client.close()


@pytest.mark.root
def test_a_socket_one_may_not_use(node: Node) -> None:
    """EACCES: not the same as nobody there. Root may do anything, so this runs as nobody."""
    make_fallback(node)
    node.agent(serving([], 0, b""))
    node.socket.chmod(0o600)
    for path in (node.directory, *node.directory.parents[:3]):
        with suppress(PermissionError):
            path.chmod(path.stat().st_mode | 0o055)  # /tmp is among them
    done = subprocess.run(
        [str(node.program)],
        input=CONF,
        env={"PATH": "/usr/bin", **ENV},
        capture_output=True,
        timeout=120,
        check=False,
        user=65534,
        group=65534,
    )
    code, message, _ = error_of(done)
    assert code == 11
    assert "Permission denied" in message


# --- stdin -----------------------------------------------------------------------------------


def test_too_much_stdin_is_refused_before_the_agent_sees_it(node: Node) -> None:
    seen: list[frame.Request] = []

    def handle(connection: socket.socket) -> None:
        with suppress(Exception):
            seen.append(frame.read_request(connection))

    node.agent(handle)
    code, message, _ = error_of(node.run(b"x" * (3 << 20)))
    assert code == 6
    assert "exceeds" in message
    assert seen == []


def test_closed_stdin(node: Node) -> None:
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b""))
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {node.program} <&-"],
        env={"PATH": "/usr/bin:/bin", **ENV},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done
    assert seen[0].stdin == b""


@pytest.mark.parametrize(
    ("stdin", "version"),
    [
        (CONF, "0.4.0"),
        (b'{ "name": "n", "cniVersion" :\n "1.1.0" }', "1.1.0"),
        (b'{"cniVersion":"1.0.0\\"},{evil"}', "1.0.0"),
        (b'{"cniVersion":"<script>"}', "1.0.0"),
        (b'{"cniVersion":7}', "1.0.0"),
        (b'"cniVersion"', "1.0.0"),
        (b"", "1.0.0"),
    ],
)
def test_errors_carry_the_configurations_version(stdin: bytes, version: str) -> None:
    assert shim.version_of(stdin) == version


# --- what it costs ---------------------------------------------------------------------------


def test_it_imports_next_to_nothing(node: Node, tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    source = node.program.read_text()
    main = 'if __name__ == "__main__":\n    main()\n'
    assert main in source
    probe.write_text(source.replace(main, 'print(*sorted(sys.modules), sep="\\n")\n'))
    done = subprocess.run(
        [PYTHON, "-IS", str(probe)], capture_output=True, text=True, check=True, timeout=120
    )
    assert set(done.stdout.split()) <= ALLOWED_MODULES
    assert source.startswith("#!/usr/bin/python3 -IS\n")


def test_it_stays_small() -> None:
    source = Path(shim.__file__).read_text()
    assert len(source.splitlines()) <= 130
    assert len(source) <= 5000


def test_its_round_trip_is_quick(node: Node) -> None:
    """A generous bound that a stray import of json and socket would still not break by itself:
    the module list above does that. This one catches a sleep or a retry on the way."""
    node.agent(serving([], 0, b"{}"))
    times: list[float] = []
    while len(times) < 15 or (min(times) >= QUICK and len(times) < 300):
        started = time.perf_counter()
        assert node.run(b"", {"CNI_COMMAND": "VERSION"}).returncode == 0
        times.append(time.perf_counter() - started)
    assert min(times) < QUICK, "a busy machine delays some, not all"
    if os.environ.get("TORTIE_PRINT_TIMES"):
        print(f"shim round trip: median {statistics.median(times) * 1000:.1f} ms")
