"""What is no JSON, or none that could be passed on, is refused before anything is done."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest

from cni_plugin import foreign_json
from cni_plugin.child import Finished
from cni_plugin.frame import MAX_BODY
from cni_plugin.skel import dispatch
from tests.fakes.cni_world import CniWorld
from tests.fakes.ipam_program import FakeProgram

START = b'{"cniVersion":"1.1.0","name":"n","type":"tortie"'
ENV = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/c1", "CNI_IFNAME": "eth0"}


def strict(text: bytes) -> Any:
    """As a reader in another language has it."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(name)

    return json.loads(text.decode(), parse_constant=refuse)


def nested(depth: int, begin: bytes = b'{"a":', end: bytes = b"}") -> bytes:
    return begin * depth + b"1" + end * depth


@pytest.mark.parametrize("key", [b"prevResult", b"runtimeConfig", b"ipam", b"args", b"a.b/c"])
@pytest.mark.parametrize(
    "value",
    [
        b'{"x":NaN}',
        b'{"x":-Infinity}',
        b'{"x":1e999}',
        b'{"x":"\xff"}',
        nested(101),
        nested(500),
        nested(980),
        nested(500, b"[", b"]"),
    ],
)
@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
def test_a_configuration_that_could_not_be_passed_on(
    world: CniWorld, verb: str, key: bytes, value: bytes
) -> None:
    node = world.node()
    node.netns("c1")
    stdin = START + b',"' + key + b'":' + value + b"}"
    answer = dispatch({**ENV, "CNI_COMMAND": verb}, stdin, node.plugin)
    assert (answer.code, strict(answer.stdout)["code"]) == (1, 6)
    assert world.nothing_left()


@pytest.mark.parametrize("text", [b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"{}{}"])
def test_other_encodings_and_more_than_one(text: bytes) -> None:
    with pytest.raises(ValueError):  # whatever it says
        foreign_json.loads(text)


def test_the_deepest_that_is_read(world: CniWorld) -> None:
    assert foreign_json.loads(nested(foreign_json.DEEPEST))
    node = world.node()
    node.netns("c1")
    inner = nested(foreign_json.DEEPEST - 2)
    stdin = START + b',"prevResult":{"x":' + inner + b"}}"
    answer = dispatch({**ENV, "CNI_COMMAND": "ADD"}, stdin, node.plugin)
    assert answer.code == 0
    assert strict(answer.stdout)["x"] == strict(inner)


@pytest.mark.parametrize("text", ["ü", "\\u00fc\\ud83d\\ude00", "\\\\", "<&>", "\U0001f600"])
def test_what_fits_into_a_request_fits_into_its_answer(world: CniWorld, text: str) -> None:
    """A result that the executable refuses to carry would be code 11 again and again."""
    node = world.node()
    node.netns("c1")
    many = ((2 << 20) - 4096) // len(text.encode())
    stdin = START + b',"prevResult":{"x":"' + text.encode() * many + b'"}}'
    answer = dispatch({**ENV, "CNI_COMMAND": "ADD"}, stdin, node.plugin)
    assert answer.code == 0
    assert len(answer.stdout) <= MAX_BODY - 8
    assert strict(answer.stdout)["x"] == strict(stdin)["prevResult"]["x"]


@pytest.mark.parametrize(
    "more", [b'"dns":{"x":NaN}', b'"routes":[{"dst":"10.0.0.0/8","mtu":1e999}]', b'"x":%s']
)
def test_a_delegated_answer_that_could_not_be_passed_on(world: CniWorld, more: bytes) -> None:
    program = FakeProgram(world.directory / "bin", "host-local")

    def run(path: Any, env: Any, stdin: bytes) -> Finished:
        done = program(path, env, stdin)
        if env["CNI_COMMAND"] != "ADD":
            return done
        extra = more.replace(b"%s", nested(600))
        return Finished(0, b'{"ips":[{"address":"10.99.0.2/24"}],' + extra + b"}")

    node = world.node()
    node.use(run, **program.settings())
    node.netns("c1")
    body = {**json.loads(START + b"}"), **program.settings()}
    path = body.pop("CNI_PATH")
    env = {**ENV, "CNI_COMMAND": "ADD", "CNI_PATH": path}
    answer = dispatch(env, json.dumps(body).encode(), node.plugin_for)
    assert strict(answer.stdout)["code"] == 109
    assert "its result cannot be read" in strict(answer.stdout)["msg"]
    assert world.nothing_left()
