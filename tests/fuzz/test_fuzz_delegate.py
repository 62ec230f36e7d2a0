"""Whatever another IPAM prints, and whatever a note of ours became, is an error of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_plugin.addresses import giver_of, recorded
from cni_plugin.child import Finished
from cni_plugin.delegate import Delegate
from cni_plugin.skel import CmdArgs
from libtortie.errors import TortieError
from libtortie.model.names import ANNOTATION_IPAM
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.cni_world import conf

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["10.0.0.2/24", "fd00::2/64", "0.0.0.0/0", "10.0.0.1"])
)
KEYS = st.sampled_from(
    [
        "ips",
        "ip4",
        "ip",
        "address",
        "routes",
        "dst",
        "gw",
        "dns",
        "code",
        "msg",
        "type",
        "cniVersion",
    ]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
ARGS = CmdArgs("c1", "/run/netns/x", "eth0")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a program."""
    program = tmp_path_factory.mktemp("bin") / "prog"
    program.touch()
    program.chmod(0o755)
    return str(program.parent)


def delegate(path: str, status: int, stdout: bytes) -> Delegate:
    def run(*_: object) -> Finished:
        return Finished(status, stdout, b"\xff")

    return Delegate(conf(ipam={"type": "prog"}, CNI_PATH=path), run, tuple)


@given(status=st.sampled_from([0, 1, -9]), value=VALUES)
def test_any_answer_is_addresses_or_an_error(path: str, status: int, value: Any) -> None:
    try:
        given_ = delegate(path, status, json.dumps(value).encode()).add(ARGS)
    except TortieError as error:
        assert len(str(error)) < 600
        assert str(error).isprintable()
    else:
        assert given_.addresses
        for verb in ("delete", "check"):
            getattr(delegate(path, 0, b"anything"), verb)(ARGS)


@given(status=st.sampled_from([0, 1]), stdout=st.binary(max_size=200))
def test_any_bytes_are_an_error(path: str, status: int, stdout: bytes) -> None:
    for verb in ("add", "delete", "check"):
        try:
            getattr(delegate(path, status, stdout), verb)(ARGS)
        except TortieError as error:
            assert str(error).isprintable()
    for call in (delegate(path, status, stdout).status, delegate(path, status, stdout).collect):
        try:
            call()
        except TortieError as error:
            assert str(error).isprintable()


@given(value=VALUES | st.text(max_size=50))
def test_any_note_is_a_giver_or_an_error(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    body = {
        "metadata": {"name": "n1-k8s-web-eth0", "annotations": {ANNOTATION_IPAM: text}},
        "spec": {"ipNetworks": ["10.0.0.2/32"]},
    }
    endpoint = WorkloadEndpoint.model_validate(body)
    try:
        giver = giver_of(endpoint)
        recorded(endpoint, giver.kind)
        giver.destinations(with_defaults=True)
    except TortieError as error:
        assert ANNOTATION_IPAM in str(error)
