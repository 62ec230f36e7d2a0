"""Executable and agent of two releases, as while a node is upgraded: each way round, both fronts.

They work together, or the runtime is told to try again and why; never half an answer, never the
fallback beside an agent that is there.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cni_plugin import frame
from cni_plugin.durable import replace_file
from cni_plugin.frame import Request, Response
from cni_plugin.program import Front
from cni_plugin.skel import dispatch
from felix_shim.cni_server import CNIServer
from tests.fakes.agent_world import RecordingLog
from tests.fakes.shim_node import CONF, ENV, ShimNode, error_of


@pytest.fixture(params=[Front.PYTHON, Front.NATIVE])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShimNode]:
    node = ShimNode(tmp_path, request.param)
    node.make_fallback()  # which must not run
    yield node
    node.close()


@pytest.fixture
def seen() -> list[Request]:
    return []


@pytest.fixture
def log(node: ShimNode, seen: list[Request]) -> Iterator[RecordingLog]:
    """The agent's own server of this release, and its log."""

    def serve(request: Request) -> Response:
        seen.append(request)
        if request.env.get("CNI_COMMAND") == "VERSION":
            return dispatch(request.env, request.stdin, lambda _: pytest.fail("not to be built"))
        return Response(0, b"{}\n")

    def spawn(name: str, body: object) -> threading.Thread:
        assert callable(body)
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return thread

    log = RecordingLog()
    server = CNIServer(node.socket, serve, spawn, log)
    server.open()
    with ExitStack() as stack:
        stack.callback(lambda: server.stop(60))
        spawn("accept", server.run)
        yield log


def of_another_release(node: ShimNode, digit: bytes) -> None:
    """The same executable, as if its frame were of another version."""
    program = node.program.read_bytes()
    for magic in (frame.REQUEST_MAGIC, frame.ANSWER_MAGIC):
        assert magic in program
        program = program.replace(
            magic, magic[:3] + digit, 1
        )  # the native one has the other behind
    replace_file(node.program, program, 0o755)


@pytest.mark.parametrize("digit", [b"0", b"2", b"9"])
@pytest.mark.parametrize("conf", [CONF, CONF + b" " * 1_000_000])
def test_another_frame_is_answered_in_its_own_version(
    node: ShimNode, log: RecordingLog, seen: list[Request], digit: bytes, conf: bytes
) -> None:
    of_another_release(node, digit)
    code, message, version = error_of(node.run(conf))
    assert (code, version) == (11, "1.0.0")
    assert message == (
        f"the executable speaks version {digit.decode()} of the frame and the agent version 1: "
        "this node is being upgraded, or half of it was; try again when both are of one release"
    )
    assert seen == []
    assert [line["reason"] for line in log.of("cni_other_version")] == [message]


def test_an_older_executable_with_no_more_than_it_knew(
    node: ShimNode, log: RecordingLog, seen: list[Request]
) -> None:
    """What it does not say is missing by name, and that is the runtime's to be told."""
    bare = {"CNI_COMMAND": "VERSION"}
    done = node.run(env=bare)
    assert done.returncode == 0
    assert seen == [Request(bare, CONF)]


def test_a_newer_executable_may_say_more(node: ShimNode, log: RecordingLog) -> None:
    env = {**ENV, "CNI_COMMAND": "VERSION", "CNI_NEWER_THAN_WE_ARE": "x"}
    assert node.run(env=env).returncode == 0
    assert not log.lines


def test_an_executable_of_this_release_is_told_by_a_newer_agent(node: ShimNode) -> None:
    """The rule it will keep to: the answer in the version that was asked in."""

    def newer(connection: socket.socket) -> None:
        head = connection.recv(8, socket.MSG_WAITALL)
        connection.recv(int.from_bytes(head[4:], "big"), socket.MSG_WAITALL)
        answer = frame.OtherVersion(b"7").answer
        connection.sendall(frame.ANSWER_MAGIC[:3] + head[3:4] + answer[4:])

    node.agent(newer)
    code, message, _ = error_of(node.run())
    assert code == 11
    assert "this node is being upgraded" in message


@pytest.mark.parametrize("magic", [b"TTRx", b"TTR\xff", b"GET "])
def test_what_is_no_version_is_no_request(node: ShimNode, log: RecordingLog, magic: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(node.socket))
        client.sendall(magic + bytes(4))
        assert client.recv(1) == b""
    assert len(log.of("cni_unreadable")) == 1
