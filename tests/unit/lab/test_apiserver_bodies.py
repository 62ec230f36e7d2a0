"""Bodies: schemas of Calico's kinds, and Kubernetes' protobuf."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.apiserver import protobuf
from lab.apiserver.errors import ApiError
from lab.apiserver.kinds import CALICO_V3, KINDS
from lab.apiserver.schema import FieldValidation, conform

Json = dict[str, Any]
POOLS = next(k for k in KINDS if (k.group, k.kind) == (CALICO_V3, "IPPool"))
CONFIG = next(k for k in KINDS if k.kind == "IPAMConfiguration")


def pool(**spec: Any) -> Json:
    return {
        "apiVersion": POOLS.api_version,
        "kind": "IPPool",
        "metadata": {"name": "pool"},
        "spec": {"cidr": "10.65.0.0/16", **spec},
    }


def test_defaults_are_stored() -> None:
    found = conform(POOLS, pool(nodeSelector=None), None, None)
    assert found["spec"] == {
        "cidr": "10.65.0.0/16",
        "vxlanMode": "Never",
        "ipipMode": "Never",
        "nodeSelector": "all()",
        "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic",
    }
    found["spec"]["allowedUses"].append("x")
    assert conform(POOLS, pool(), None, None)["spec"]["allowedUses"] == ["Workload", "Tunnel"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"vxlanMode": "Sometimes"},
            'spec.vxlanMode: Unsupported value: "Sometimes": supported values: "Never", "Always", '
            '"CrossSubnet"',
        ),
        (
            {"blockSize": "26"},
            'spec.blockSize: Invalid value: "string": spec.blockSize in body must be of type '
            'integer: "string"',
        ),
        ({"blockSize": True}, 'spec.blockSize in body must be of type integer: "boolean"'),
        ({"disabled": None}, 'spec.disabled in body must be of type boolean: "null"'),
        (
            {"blockSize": 129},
            "spec.blockSize: Invalid value: 129: spec.blockSize in body should be less than or "
            "equal to 128",
        ),
        ({"blockSize": -1}, "spec.blockSize in body should be greater than or equal to 0"),
        ({"nodeSelector": "x" * 1025}, "spec.nodeSelector: Too long: may not be more than 1024"),
        (
            {"allowedUses": ["Workload"] * 11},
            "spec.allowedUses: Too many: 11: must have at most 10",
        ),
        ({"allowedUses": ["Toys"]}, 'spec.allowedUses[0]: Unsupported value: "Toys"'),
        ({"allowedUses": "Workload"}, "spec.allowedUses in body must be of type array"),
    ],
)
def test_refusals(spec: Json, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        conform(POOLS, pool(**spec), None, None)
    assert caught.value.code == 422
    assert text in caught.value.message
    assert caught.value.message.startswith('IPPool.projectcalico.org "pool" is invalid: ')
    assert caught.value.details["causes"][0]["field"].startswith("spec.")


def test_several_refusals_come_together() -> None:
    body = pool(vxlanMode="x", ipipMode="y")
    del body["spec"]["cidr"]
    with pytest.raises(ApiError) as caught:
        conform(POOLS, body, None, None)
    assert "is invalid: [spec.cidr: Required value, spec.vxlanMode: " in caught.value.message
    assert len(caught.value.details["causes"]) == 3


def test_what_is_missing_altogether() -> None:
    with pytest.raises(ApiError, match="spec: Required value"):
        conform(POOLS, {"apiVersion": "a", "kind": "b", "metadata": {"name": "p"}}, None, None)


def test_fixed_fields() -> None:
    old = pool(blockSize=26)
    assert conform(POOLS, pool(blockSize=26, disabled=True), old, None)["spec"]["disabled"]
    for changed in (pool(blockSize=27), pool(cidr="10.0.0.0/8", blockSize=26)):
        with pytest.raises(ApiError, match="Value is immutable"):
            conform(POOLS, changed, old, None)


def test_unknown_fields() -> None:
    body = pool(natOutging=True)
    body["extra"] = 1
    wish = FieldValidation("Warn")
    assert "natOutging" not in conform(POOLS, body, None, wish)["spec"]
    assert wish.warnings == ['unknown field "extra"', 'unknown field "spec.natOutging"']
    silent = FieldValidation("Ignore")
    conform(POOLS, body, None, silent)
    assert silent.warnings == []
    with pytest.raises(ApiError, match=r'strict decoding error: unknown field "extra", ') as caught:
        conform(POOLS, body, None, FieldValidation("Strict"))
    assert caught.value.code == 400


def test_the_one_name_of_the_ipam_configuration() -> None:
    body = {**pool(), "metadata": {"name": "other"}, "spec": {}}
    with pytest.raises(ApiError, match=r'metadata.name: Invalid value: "other": must be "default"'):
        conform(CONFIG, body, None, None)
    body["metadata"]["name"] = "default"
    assert conform(CONFIG, body, None, None)["spec"]["autoAllocateBlocks"] is True


# --- protobuf ----------------------------------------------------------------------------------


def piece(number: int, data: bytes) -> bytes:
    """A length-delimited field of at most 127 bytes and a number below 16."""
    return bytes([number << 3 | 2, len(data)]) + data


def envelope(api: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\0" + piece(1, piece(1, api.encode()) + piece(2, kind.encode())) + piece(2, raw)


def test_a_message() -> None:
    meta = (
        piece(1, b"own") + piece(2, b"") + piece(8, b"") + piece(11, piece(1, b"a") + piece(2, b""))
    )
    rules = piece(1, b"get") + piece(1, b"list") + piece(2, b"") + piece(3, b"pods")
    raw = piece(1, meta) + piece(2, rules) + piece(15, b"new") + b"\x78\x05"
    assert protobuf.decode(envelope("rbac.authorization.k8s.io/v1", "Role", raw)) == {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "own", "labels": {"a": ""}},
        "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}],
    }


def test_numbers_and_times() -> None:
    options = b"\x08\x00" + piece(2, piece(1, b"u")) + b"\x18\x01" + piece(5, b"All")
    assert protobuf.decode(envelope("v1", "DeleteOptions", options)) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "orphanDependents": True,
        "dryRun": ["All"],
    }
    negative = b"\x08" + b"\xff" * 9 + b"\x01"
    found = protobuf.decode(envelope("v1", "DeleteOptions", negative))
    assert found["gracePeriodSeconds"] == -1
    meta = piece(8, b"\x08\x80\x94\xeb\xdc\x03")
    found = protobuf.decode(envelope("v1", "Namespace", piece(1, meta)))
    assert found["metadata"] == {"creationTimestamp": "2001-09-09T01:46:40Z"}


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"k8s\0\x0a",
        b"k8s\0\x0a\x7f",
        b"k8s\0\x0b",
        b"k8s\0" + b"\xff" * 11,
        b"k8s\0\x08\x01",
        envelope("v1", "Namespace", b"\x08\x01"),
        envelope("v1", "Namespace", piece(1, piece(1, b"\xff"))),
        envelope("v1", "DeleteOptions", piece(1, b"x")),
    ],
)
def test_what_is_no_message(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        protobuf.decode(raw)
    assert caught.value.code in (400, 415)


def test_kinds_without_a_table_are_415() -> None:
    with pytest.raises(ApiError, match="protobuf of apps/v1 Deployment") as caught:
        protobuf.decode(envelope("apps/v1", "Deployment", b""))
    assert caught.value.code == 415


@given(st.binary(max_size=60), st.sampled_from(sorted(protobuf.MESSAGES)))
def test_any_bytes_end_in_an_object_or_an_error(raw: bytes, key: tuple[str, str]) -> None:
    try:
        found = protobuf.decode(envelope(*key, raw))
    except ApiError as error:
        assert error.code == 400
    else:
        assert (found["apiVersion"], found["kind"]) == key
