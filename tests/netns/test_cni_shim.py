"""The executable, Python's and the native one: installed, run as a runtime does, real sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cni_plugin import frame, shim
from cni_plugin.durable import replace_file
from cni_plugin.program import SOCKET, Front
from cni_plugin.skel import dispatch
from tests.fakes.shim_node import CONF, ENV, SECONDS, ShimNode, error_of, serving


@pytest.fixture(params=[Front.PYTHON, Front.NATIVE])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShimNode]:
    node = ShimNode(tmp_path, request.param)
    yield node
    node.close()


def test_a_request_goes_out_whole_and_its_answer_comes_back(node: ShimNode) -> None:
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b'{"cniVersion":"0.4.0"}\n'))
    done = node.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, b'{"cniVersion":"0.4.0"}\n', b"")
    assert seen == [frame.Request(ENV, CONF)], "CNI_ variables and stdin, nothing else"


def test_the_frame_is_the_modules_own(node: ShimNode) -> None:
    received: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        header = connection.recv(8, socket.MSG_WAITALL)
        size = int.from_bytes(header[4:], "big")
        received.append(header + connection.recv(size, socket.MSG_WAITALL))
        connection.sendall(frame.encode_response(0, b""))

    node.agent(handle)
    for stdin in (CONF, b"", b"\0\xff" * 1000, b"x" * 1_500_000, b"y" * (frame.MAX_BODY // 2)):
        assert node.run(stdin).returncode == 0
        sent = received.pop()
        request = frame.decode_request(sent[8:])
        assert request.stdin == stdin
        ordered = {name: request.env[name] for name in request.env}
        assert sent == frame.encode_request(ordered, stdin)
    assert shim.MAX_BODY == frame.MAX_BODY


def test_arguments_that_are_no_text_are_refused_by_name(node: ShimNode) -> None:
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
    odd = {"CNI_PATH": "/opt/\udcff", "CNI_COMMAND": "VERSION"}
    assert node.run(env={**ENV, **odd}).returncode == 0


def test_exit_status_and_large_answers(node: ShimNode) -> None:
    answers: list[tuple[int, bytes]] = []

    def handle(connection: socket.socket) -> None:
        frame.read_request(connection)
        connection.sendall(frame.encode_response(*answers[-1]))

    node.agent(handle)
    text = b'{"x":"' + b"y" * 1_000_000 + b'"}\n'
    for code, stdout, status in (
        (1, text, 1),
        (0, b"z" * frame.MAX_BODY, 0),
        (0, b"", 0),
        (255, b"", 255),
        (256, b"", 255),
        (0xFFFFFFFF, b"", 255),
    ):
        answers.append((code, stdout))
        done = node.run()
        assert (done.returncode, done.stdout) == (status, stdout)


def test_the_whole_contract_over_the_socket(node: ShimNode) -> None:
    def handle(connection: socket.socket) -> None:
        request = frame.read_request(connection)

        def never(_: object) -> object:
            raise AssertionError("VERSION needs no plugin")

        answer = dispatch(request.env, request.stdin, never)  # type: ignore[arg-type]  # never called
        connection.sendall(frame.encode_response(answer.code, answer.stdout))

    node.agent(handle)
    done = node.run(b"", env={"CNI_COMMAND": "VERSION"})
    assert done.returncode == 0
    assert "1.1.0" in json.loads(done.stdout)["supportedVersions"]
    plain = {name: value for name, value in ENV.items() if name != "CNI_ARGS"}
    assert error_of(node.run(b"junk", env=plain))[0] == 6
    assert error_of(node.run(CONF))[0] == 4, "the pod's name is no Kubernetes name"
    code, message, _ = error_of(node.run(CONF, env={}))
    assert code == 4
    assert "CNI_COMMAND" in message


# --- nobody listens: the fallback ------------------------------------------------------------


def test_no_socket_runs_the_fallback_with_everything_it_needs(node: ShimNode) -> None:
    node.make_fallback()
    process = node.begin("one", "two words")
    stdout, _ = process.communicate(CONF, timeout=SECONDS)
    assert process.returncode == 3
    assert stdout.decode() == f"fallback ADD ['one', 'two words'] {CONF.decode()}\n"


def test_a_socket_without_a_listener_too(node: ShimNode) -> None:
    node.make_fallback()
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(node.socket))
    assert node.run().stdout.startswith(b"fallback ADD")


def test_no_agent_and_no_fallback_is_try_again_and_says_why(node: ShimNode) -> None:
    def why() -> str:
        code, message, version = error_of(node.run())
        assert (code, version) == (11, "0.4.0")
        assert str(node.socket) in message
        assert str(node.fallback) in message
        return message.rpartition(": ")[2]

    assert why() == "No such file or directory"
    node.fallback.write_text("#!/no/such/python\n")
    assert why() == "Permission denied"
    node.fallback.chmod(0o755)
    assert why() == "its interpreter is missing"


def test_the_fallback_inherits_what_the_runtime_gave(node: ShimNode) -> None:
    """No socket of ours among its files."""
    script = f"#!{sys.executable}\nimport os\nprint(sorted(os.listdir('/proc/self/fd')))\n"
    replace_file(node.fallback, script.encode(), 0o755)
    direct = subprocess.run([node.fallback], stdin=subprocess.PIPE, stdout=-1, check=True)
    assert node.run().stdout == direct.stdout


def test_an_error_is_json_whatever_is_in_it(node: ShimNode) -> None:
    """A constant that no installer sets."""
    odd, socket_path = '/no/"\\\n\x01\x7f%s', str(node.socket)
    if node.front is Front.NATIVE:
        made = SOCKET.filled(node.program.read_bytes(), odd)
    else:
        text = node.program.read_text()
        made = text.replace(f'"{socket_path}"', repr(odd)).encode()
    replace_file(node.program, made, 0o755)
    code, message, _ = error_of(node.run())
    assert code == 11
    assert message.startswith("no agent listens at /no/?????%s and ")


@pytest.mark.parametrize(
    ("stdin", "version"),
    [
        (CONF, "0.4.0"),
        (b'{ "name": "n", "cniVersion" :\n "1.1.0" }', "1.1.0"),
        (b'{"cniVersion"' + b" \t\r\n" * 50 + b':"1.1.0"}', "1.1.0"),
        (b'{"cniVersion":"1.0.1"', "1.0.1"),
        (b'\0\0{"cniVersion":"1.0.1"}', "1.0.1"),
        (b'{"cniVersion":"1.0.0\\"},{evil"}', "1.0.0"),
        (b'{"cniVersion":"<script>"}', "1.0.0"),
        (b'{"cniVersion":"%s%n"}', "1.0.0"),
        (b'{"cniVersion":"2.0', "1.0.0"),
        (b'{"cniVersion":""}', "1.0.0"),
        (b'{"cniVersion"\0:"2.0"}', "1.0.0"),
        (b'{"cniVersion":"' + b"2" * 63 + b'"}', "2" * 63),
        (b'{"cniVersion":"' + b"2" * 64 + b'"}', "1.0.0"),
        (b'{"cniVersion":7,"x":"2.0"}', "1.0.0"),
        (b'{"cniVersion":7,"2.0":"x"}', "1.0.0"),
        (b'{"cniVersion" "2.0"}', "1.0.0"),
        (b'"cniVersion"', "1.0.0"),
        (b'"cniVersion" :', "1.0.0"),
        (b"", "1.0.0"),
    ],
)
def test_errors_carry_the_configurations_version(
    node: ShimNode, stdin: bytes, version: str
) -> None:
    assert error_of(node.run(stdin))[2] == version


# --- anything else: code 11, and never a second run ------------------------------------------


def test_an_agent_that_never_answers_meets_the_deadline(node: ShimNode) -> None:
    node.make_fallback()
    node.install(deadline=0.3)
    released = threading.Event()
    silences: list[bool] = []

    def silent(connection: socket.socket) -> None:
        frame.read_request(connection)
        connection.sendall(b"TTA1")
        silences.append(released.wait(SECONDS))

    node.agent(silent)
    code, message, version = error_of(node.run())
    assert silences == [], "it ended while the agent was silent still"
    released.set()
    assert (code, version) == (11, "0.4.0")
    assert "0.3 seconds" in message


def test_an_agent_whose_queue_is_full(node: ShimNode) -> None:
    node.make_fallback()
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
            code, _, version = error_of(node.run())
            assert (code, version) == (11, "0.4.0")
        finally:
            for client in waiting:
                client.close()


@pytest.mark.root
def test_a_socket_one_may_not_use(node: ShimNode) -> None:
    """EACCES: not the same as nobody there. Root may do anything, so this runs as nobody."""
    node.make_fallback()
    node.agent(serving([], 0, b""))
    node.socket.chmod(0o600)
    for path in (node.directory, *node.directory.parents[:3]):
        with suppress(PermissionError):
            path.chmod(path.stat().st_mode | 0o055)  # /tmp is among them
    code, message, _ = error_of(node.run(user=65534, group=65534))
    assert code == 11
    assert "Permission denied" in message


def test_many_at_once(node: ShimNode) -> None:
    """Each gets its own answer, whole."""

    def handle(connection: socket.socket) -> None:
        request = frame.read_request(connection)
        connection.sendall(frame.encode_response(0, request.stdin[::-1]))

    node.agent(handle)
    texts = [f"{number}-".encode() * 20_000 for number in range(16)]
    processes = [node.begin(stdin=subprocess.PIPE) for _ in texts]
    threads = []
    answers: dict[int, bytes] = {}
    for number, (process, text) in enumerate(zip(processes, texts, strict=True)):

        def talk(
            number: int = number, process: subprocess.Popen[bytes] = process, text: bytes = text
        ) -> None:
            answers[number] = process.communicate(text, timeout=SECONDS)[0]

        threads.append(threading.Thread(target=talk))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert [answers[number] for number in range(len(texts))] == [text[::-1] for text in texts]


def test_it_needs_only_what_a_runtime_gives(node: ShimNode) -> None:
    """No PATH, no HOME, another working directory, another locale."""
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b"{}"))
    env = {
        "CNI_COMMAND": "ADD",
        "LC_ALL": "xx_XX.ISO-8859-1",
        "PYTHONHOME": "/no",
        "LD_PRELOAD": "",
    }
    assert node.run(env=env, cwd="/").returncode == 0
    assert seen[0].env == {"CNI_COMMAND": "ADD"}
    assert os.access(node.program, os.X_OK)
