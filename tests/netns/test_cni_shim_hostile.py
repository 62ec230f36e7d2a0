"""What surrounds the executable at its worst: agents, standard files, environment, limits."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_plugin import frame
from cni_plugin.program import Front
from tests.fakes.node_process import until
from tests.fakes.shim_node import (
    CONF,
    ENV,
    SECONDS,
    Handler,
    ShimNode,
    called_by,
    error_of,
    serving,
)

BROKE = "the agent broke the connection; what it did will be completed by a retry"
NOT_OURS = "the agent answered with something that is not a frame of ours"


@pytest.fixture(params=[Front.PYTHON, Front.NATIVE])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShimNode]:
    node = ShimNode(tmp_path, request.param)
    node.make_fallback()  # which must not run
    yield node
    node.close()


# --- agents ----------------------------------------------------------------------------------


def after_request(answer: bytes) -> Handler:
    def handle(connection: socket.socket) -> None:
        frame.read_request(connection)
        connection.sendall(answer)

    return handle


def unread(connection: socket.socket) -> None:
    """Close with something left to read: the other side gets ECONNRESET."""
    connection.recv(10)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (socket.socket.close, BROKE),
        (unread, BROKE),
        (after_request(b""), BROKE),
        (after_request(b"TTA1"), BROKE),
        (after_request(frame.encode_response(0, b"x" * 100)[:11]), BROKE),
        (after_request(frame.encode_response(0, b"x" * 100)[:50]), BROKE),
        (after_request(b"TTA9" + bytes(8)), NOT_OURS),
        (after_request(b"TTR1" + bytes(8)), NOT_OURS),
        (after_request(b"HTTP/1.1 400 Bad Request\r\n\r\n"), NOT_OURS),
        (after_request(b"TTA1" + bytes(4) + (frame.MAX_BODY + 1).to_bytes(4, "big")), NOT_OURS),
        (after_request(b"TTA1" + bytes(4) + b"\xff" * 4), NOT_OURS),
    ],
)
def test_an_answer_that_is_none(node: ShimNode, handler: Handler, message: str) -> None:
    """Broken, half, foreign or too long: code 11 once a byte was sent, never the fallback."""
    node.agent(handler)
    assert error_of(node.run()) == (11, message, "0.4.0")
    assert error_of(node.run(CONF + b" " * 1_000_000)) == (11, message, "0.4.0")


def test_what_follows_an_answer_is_not_part_of_it(node: ShimNode) -> None:
    node.agent(after_request(frame.encode_response(0, b"{}") + b"more"))
    assert node.run().stdout == b"{}"


def test_an_answer_in_drops(node: ShimNode) -> None:
    def handle(connection: socket.socket) -> None:
        frame.read_request(connection)
        for byte in frame.encode_response(0, b'{"a":1}\n'):
            connection.sendall(bytes([byte]))

    node.agent(handle)
    assert node.run().stdout == b'{"a":1}\n'


def test_drops_do_not_move_the_deadline(node: ShimNode) -> None:
    """Not even when there is always another one to be read."""
    node.install(deadline=0.3)

    def handle(connection: socket.socket) -> None:
        frame.read_request(connection)
        connection.sendall(frame.encode_response(0, b"x" * frame.MAX_BODY)[:12])
        for _ in range(frame.MAX_BODY):  # until the executable has gone
            connection.sendall(b"x")

    node.agent(handle)
    assert error_of(node.run()) == (11, "the agent did not answer within 0.3 seconds", "0.4.0")


def test_status_of_an_agent_that_does_not_answer(node: ShimNode) -> None:
    """No ADD could be served: that is 50, and soon; the runtime waits for it with all its pods."""
    node.install(deadline=2)
    released = threading.Event()

    def silent(_: socket.socket) -> None:
        released.wait(SECONDS)

    node.agent(silent)
    done = node.run(env={**ENV, "CNI_COMMAND": "STATUS"})
    released.set()
    assert error_of(done) == (50, "the agent did not answer within 0.4 seconds", "0.4.0")


@pytest.mark.parametrize("verb", ["STATUS", "GC"])
def test_status_has_a_code_of_its_own_whatever_went_wrong(node: ShimNode, verb: str) -> None:
    code, env = 50 if verb == "STATUS" else 11, {**ENV, "CNI_COMMAND": verb}
    node.fallback.unlink()
    assert error_of(node.run(env=env))[0] == code, "neither agent nor fallback"
    node.agent(socket.socket.close)
    assert error_of(node.run(env=env)) == (code, BROKE, "0.4.0")
    assert error_of(node.run(CONF + b"x" * (3 << 20), env=env))[0] == 6


def test_an_agent_that_does_not_read(node: ShimNode) -> None:
    node.install(deadline=0.3)
    released = threading.Event()

    def deaf(_: socket.socket) -> None:
        released.wait(SECONDS)

    node.agent(deaf)
    done = node.run(CONF + b" " * 2_000_000)
    released.set()
    assert error_of(done) == (11, "the agent did not answer within 0.3 seconds", "0.4.0")


def test_stopped_and_continued_while_it_waits(node: ShimNode) -> None:
    """Some system calls end with EINTR then, though no handler is installed."""

    def handle(connection: socket.socket) -> None:
        frame.read_request(connection)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            until("it is stopped", lambda: b" T " in Path(f"/proc/{pid}/stat").read_bytes())
            os.kill(pid, signal.SIGCONT)
        connection.sendall(frame.encode_response(0, b"{}"))

    node.agent(handle)
    assert node.run().stdout == b"{}"


# --- standard files --------------------------------------------------------------------------


def test_too_much_stdin_is_refused_before_the_agent_sees_it(node: ShimNode) -> None:
    seen: list[bytes] = []
    node.agent(lambda connection: seen.append(connection.recv(1)))
    code, message, version = error_of(node.run(CONF + b"x" * (3 << 20)))
    assert (code, version) == (6, "0.4.0")
    assert message == "the network configuration on stdin exceeds 2097152 bytes"
    with Path("/dev/zero").open("rb") as endless:
        assert error_of(node.run(stdin=endless))[0] == 6
    until("the agent saw both", lambda: len(seen) == 2)
    assert seen == [b"", b""]


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_files(node: ShimNode, closed: str) -> None:
    """The agent's socket must not take the number of one of them."""
    received: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        seen = frame.read_request(connection)
        connection.sendall(frame.encode_response(7, b'{"to":"the runtime"}'))
        received.extend([seen.stdin, connection.recv(100)])

    agent = node.agent(handle)
    done = called_by("/bin/sh", "-c", f"exec {node.program} {closed}")
    agent.close()
    assert done.returncode == 7
    assert received == [b"" if "0" in closed else CONF, b""]
    assert done.stdout == (b"" if "1" in closed else b'{"to":"the runtime"}')
    assert done.stderr == b""


def test_a_stdin_that_cannot_be_read(node: ShimNode, tmp_path: Path) -> None:
    """As good as an empty one."""
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b"{}"))
    with (tmp_path / "w").open("wb") as write_only:
        assert node.run(stdin=write_only).returncode == 0
    assert seen[0].stdin == b""


def test_a_stdin_that_does_not_block(node: ShimNode) -> None:
    """A pipe that says "nothing yet" is not at its end."""
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b"{}"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        process = node.begin(stdin=theirs)
        until("it has looked and waits", lambda: os.get_blocking(theirs.fileno()))
        ours.sendall(CONF)
        ours.shutdown(socket.SHUT_WR)
        assert process.communicate(timeout=SECONDS)[0] == b"{}"
    assert seen[0].stdin == CONF


def test_a_stdout_that_does_not_block(node: ShimNode) -> None:
    text = b"z" * 1_000_000
    node.agent(serving([], 0, text))
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.setblocking(False)
            process = node.begin(stdin=subprocess.DEVNULL, stdout=theirs)
            until("it has filled the pipe", lambda: os.get_blocking(theirs.fileno()))
        with ours.makefile("rb") as file:
            assert file.read() == text
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@pytest.mark.parametrize("listening", [True, False])
def test_a_stdout_that_nobody_reads(node: ShimNode, listening: bool) -> None:
    """No death by SIGPIPE, no traceback: status 1."""
    node.fallback.unlink()
    if listening:
        node.agent(serving([], 0, b"{}"))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = node.run(stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


# --- environment -----------------------------------------------------------------------------

EXECVE = """
import ctypes, sys
program, *env = (item.encode() for item in sys.argv[1:])
strings = lambda items: (ctypes.c_char_p * (len(items) + 1))(*items, None)
ctypes.CDLL(None).execve(program, strings([program]), strings(env))
"""


def run_with(node: ShimNode, *env: str) -> subprocess.CompletedProcess[bytes]:
    """Run it with an environment that no dictionary can express."""
    return subprocess.run(
        [sys.executable, "-c", EXECVE, str(node.program), *env],
        input=CONF,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )


def test_an_environment_of_odd_items(node: ShimNode) -> None:
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b"{}"))
    items = ["CNI_A=1", "CNI_AB=2", "CNI_A=3", "CNI_NOTHING", "X=CNI_", "", "=", "CNI_=", "CNI_C=="]
    assert run_with(node, *items).returncode == 0
    assert run_with(node).returncode == 0
    first = {"CNI_A": "1", "CNI_AB": "2", "CNI_": "", "CNI_C": "="}
    assert [request.env for request in seen] == [first, {}], "of two with one name the first"


def test_an_environment_that_is_too_large(node: ShimNode) -> None:
    """The kernel allows six megabytes to who may have a large stack."""
    seen: list[bytes] = []
    node.agent(lambda connection: seen.append(connection.recv(1)))
    done = called_by("prlimit", "--stack=unlimited", sys.executable, "-c", GROW, str(node.program))
    assert error_of(done) == (4, "the CNI_ environment is too large", "0.4.0")
    until("the agent saw it go", lambda: seen == [b""])


GROW = """
import os, sys
env = {f"CNI_{number}": "x" * 120_000 for number in range(40)}
os.execve(sys.argv[1], sys.argv[1:], env)
"""


# --- limits ----------------------------------------------------------------------------------


def test_with_one_descriptor_to_spare(node: ShimNode) -> None:
    node.agent(serving([], 0, b"{}"))
    done = called_by("prlimit", "--nofile=4", str(node.program))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}", b"")


def test_without_a_descriptor_to_spare(tmp_path: Path) -> None:
    """Python does not start then; the native one says what is wrong."""
    node = ShimNode(tmp_path, Front.NATIVE)
    node.agent(serving([], 0, b"{}"))
    done = called_by("prlimit", "--nofile=3", str(node.program))
    node.close()
    code, message, version = error_of(done)
    assert (code, version) == (11, "0.4.0")
    assert "Too many open files" in message
