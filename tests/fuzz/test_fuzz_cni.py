"""Foreign bytes: the frame, the configuration, the environment. One clean answer, always."""

from __future__ import annotations

import json
import socket
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cni_plugin import frame, shim
from cni_plugin.errors import Refusal
from cni_plugin.skel import dispatch
from cni_plugin.types import NetConf, Result, parse_conf
from libtortie.errors import Malformed, TortieError, Unavailable

ESCAPED = "surrogateescape"
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0="), min_size=1, max_size=20)
BYTES = st.binary(max_size=50).map(lambda data: data.replace(b"\0", b"").decode(errors=ESCAPED))
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=50) | BYTES
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=15,
)
KEYS = [field.alias or name for name, field in NetConf.model_fields.items()]


class Refusing:
    """Accepts every call and fails at once: only the skeleton is under test."""

    def cmd_add(self, args: Any, conf: NetConf) -> Result:
        raise Unavailable("no")

    def cmd_del(self, args: Any, conf: NetConf) -> None: ...

    def cmd_check(self, args: Any, conf: NetConf) -> None: ...

    def cmd_gc(self, conf: NetConf) -> None: ...

    def cmd_status(self, conf: NetConf) -> None: ...


@given(st.dictionaries(NAMES, VALUES, max_size=8), st.binary(max_size=2000))
def test_a_request_survives_its_frame(env: dict[str, str], stdin: bytes) -> None:
    sent = frame.encode_request(env, stdin)
    assert frame.decode_request(sent[8:]) == frame.Request(env, stdin)


@given(st.binary(max_size=300))
@example(b"\xff\xff\xff\xff")
@example(b"\0\0\0\1=")
def test_any_request_body_is_a_request_or_malformed(body: bytes) -> None:
    try:
        frame.decode_request(body)
    except Malformed:
        return


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: b"TTR1" + b))
@example(b"TTR1\xff\xff\xff\xff")
@example(b"TTA1" + b"\0" * 8)
def test_any_stream_ends_in_a_request_or_an_error(data: bytes) -> None:
    for read in (frame.read_request, frame.read_response):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(5)
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            try:
                read(ours)
            except (Malformed, Unavailable):
                continue


@given(st.integers(0, 255), st.binary(max_size=500))
def test_an_answer_survives_its_frame(code: int, stdout: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frame.encode_response(code, stdout))
        assert frame.read_response(ours) == frame.Response(code, stdout)


@given(st.binary(max_size=500) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_stdin_is_a_configuration_or_one_refusal(stdin: bytes) -> None:
    try:
        parse_conf(stdin)
    except Refusal as error:
        assert 0 < len(str(error)) < 1000


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=10), JSON, max_size=8))
def test_any_values_under_our_keys(settings: dict[str, Any]) -> None:
    body = {"cniVersion": "1.1.0", "name": "net", **settings}
    try:
        conf = parse_conf(json.dumps(body).encode())
    except Refusal as error:
        assert 0 < len(str(error)) < 1000
        return
    assert conf.mtu >= 0
    assert conf.policy_setup_timeout_seconds >= 0


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "CNI_COMMAND": st.sampled_from(["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"])
            | VALUES,
            "CNI_CONTAINERID": st.just("c1") | VALUES,
            "CNI_NETNS": st.just("/run/netns/x") | VALUES,
            "CNI_IFNAME": st.just("eth0") | VALUES,
            "CNI_ARGS": st.just("K8S_POD_NAME=p;K8S_POD_NAMESPACE=n") | VALUES,
        },
    ),
    st.just(b'{"cniVersion":"1.1.0","name":"n"}') | st.binary(max_size=100),
)
def test_every_answer_is_json_with_a_code_or_success(env: dict[str, str], stdin: bytes) -> None:
    answer = dispatch(env, stdin, Refusing())
    if answer.code == 0:
        assert not answer.stdout or json.loads(answer.stdout)["cniVersion"]
        return
    body = json.loads(answer.stdout)
    assert answer.code == 1
    assert body["code"] in {1, 2, 4, 6, 7, 11}, "and never 999, which is a bug of ours"
    assert body["msg"]


@given(st.binary(max_size=200), st.binary(max_size=30))
def test_the_shims_guess_of_a_version_is_digits_and_dots(before: bytes, value: bytes) -> None:
    for stdin in (before, before + b'"cniVersion":"' + value + b'"'):
        assert set(shim.version_of(stdin)) <= set("0123456789.")
        json.loads(f'{{"cniVersion":"{shim.version_of(stdin)}"}}')


@given(st.text(max_size=50))
def test_refusals_are_ours(text: str) -> None:
    try:
        parse_conf(text.encode("utf-8", "surrogatepass"))
    except TortieError as error:
        assert isinstance(error, Refusal)
