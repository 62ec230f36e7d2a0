"""What nft's listing of a chain says was dropped."""

from __future__ import annotations

import json

import pytest

from felix_shim.drivers.nftables_counters import ForgedFrames, dropped
from libtortie.errors import KernelError


def listing(*rules: object) -> str:
    return json.dumps({"nftables": [{"metainfo": {}}, *({"rule": {"expr": r}} for r in rules)]})


def test_only_what_drops_is_counted() -> None:
    counter = {"counter": {"packets": 7, "bytes": 700}}
    passed = [{"match": {}}, {"counter": {"packets": 5, "bytes": 1}}, {"return": None}]
    assert dropped(listing(passed, [counter, {"drop": None}])) == 7
    assert dropped(listing()) == 0


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"nftables": 1}', listing(1)])
def test_what_is_no_listing(text: str) -> None:
    with pytest.raises(KernelError, match="listing of a chain is none"):
        dropped(text)


def test_an_nft_that_cannot_be_run() -> None:
    with pytest.raises(KernelError, match="cannot run /none"):
        ForgedFrames(binary="/none").read()
    with pytest.raises(KernelError):
        ForgedFrames(binary="/bin/false").read()
