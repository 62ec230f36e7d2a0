"""Both executables say the same: to the agent, to the runtime, whatever either gives them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_plugin import frame
from cni_plugin.program import Front
from tests.fakes.shim_node import ShimNode

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NAMES = st.sampled_from(["CNI_COMMAND", "CNI_ARGS", "CNI_", "CNI", "XCNI_A", "cni_a", "CNI_Ä"])
ENVIRONMENTS = st.dictionaries(NAMES, TEXT, max_size=5)
PIECES = [
    b'"cniVersion"',
    b":",
    b'"',
    b"1.0.0",
    b".",
    b" ",
    b"\n",
    b"\0",
    b"\xff",
    b"{",
    b"}",
    b"%s",
]
STDINS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=8).map(b"".join)
CODES = st.integers(0, 300) | st.integers(0, 2**32 - 1)


def frames(code: int, body: bytes, cut: int, flip: int) -> bytes:
    """An answer, perhaps cut short, perhaps with one byte that is another."""
    made = bytearray(frame.encode_response(code, body))
    if flip < len(made):
        made[flip] ^= 0x55
    return bytes(made[: len(made) - cut])


ANSWERS = st.binary(max_size=30) | st.builds(
    frames,
    CODES,
    st.binary(max_size=30),
    st.just(0) | st.integers(0, 45),
    st.just(99) | st.integers(0, 15),
)


Outcome = tuple[int, bytes, bytes, list[frame.Request]]


class Told:
    """One installed executable and an agent that answers as it is told."""

    def __init__(self, directory: Path, front: Front) -> None:
        directory.mkdir()
        self.node = ShimNode(directory, front)
        self.answer = b""
        self.received: list[frame.Request] = []
        self.node.agent(self._handle)

    def _handle(self, connection: socket.socket) -> None:
        self.received.append(frame.read_request(connection))
        connection.sendall(self.answer)

    def outcome(self, env: dict[str, str], stdin: bytes, answer: bytes) -> Outcome:
        """What runtime and agent see of one call."""
        self.answer = answer
        self.received.clear()
        done = self.node.run(stdin, env=env)
        return done.returncode, done.stdout, done.stderr, list(self.received)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Told]]:
    root = tmp_path_factory.mktemp("shims")
    made = [Told(root / front, front) for front in (Front.PYTHON, Front.NATIVE)]
    yield made
    for one in made:
        one.node.close()


@settings(max_examples=60)
@given(env=ENVIRONMENTS, stdin=STDINS, answer=ANSWERS)
def test_both_are_one_program(
    both: list[Told], env: dict[str, str], stdin: bytes, answer: bytes
) -> None:
    one, other = (told.outcome(env, stdin, answer) for told in both)
    assert one == other
    assert one[2] == b"", "no traceback"
    ours = {name: value for name, value in env.items() if name.startswith("CNI_")}
    assert one[3] == [frame.Request(ours, stdin)]
    status, size = int.from_bytes(answer[4:8], "big"), int.from_bytes(answer[8:12], "big")
    if answer[:4] == frame.ANSWER_MAGIC and len(answer) >= 12 + size:
        assert one[:2] == (min(status, 255), answer[12 : 12 + size])
    else:
        assert (one[0], json.loads(one[1])["code"]) == (1, 11)
