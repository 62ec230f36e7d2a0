"""Which test routes a node announces because its Node says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any

import pytest

from felix_shim.bgp_model import Canary
from felix_shim.bird_canary import canaries_of
from libtortie.model.bgp_canary import ANNOTATION
from libtortie.model.times import rfc3339

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
POOLS = (ip_network("10.65.0.0/16"),)
GOOD = {"cidr": "198.51.100.7/32", "metric": 512, "until": rfc3339(NOW + timedelta(minutes=2))}


def asked(text: str) -> tuple[tuple[Canary, ...], list[str]]:
    problems: list[str] = []
    return canaries_of({ANNOTATION: text}, POOLS, NOW, problems), problems


def test_an_address_of_documentation_or_of_a_pool() -> None:
    for cidr in ("198.51.100.7/32", "10.65.3.3/32", "2001:db8::7/128"):
        found, problems = asked(json.dumps(GOOD | {"cidr": cidr}))
        assert found == (Canary(ip_network(cidr), 512),)
        assert problems == []


@pytest.mark.parametrize("seconds", [-1, 0, 601, 86400])
def test_it_ends_by_itself_and_is_never_long(seconds: int) -> None:
    until = rfc3339(NOW + timedelta(seconds=seconds))
    assert asked(json.dumps(GOOD | {"until": until})) == ((), [])


@pytest.mark.parametrize(
    "change",
    [
        {"cidr": "0.0.0.0/0"},
        {"cidr": "198.51.100.0/24"},
        {"cidr": "8.8.8.8/32"},
        {"cidr": "fe80::1%eth0/128"},
        {"cidr": "198.51.100.7/32 blackhole; }"},
        {"metric": 0},
        {"metric": True},
        {"metric": "512; }"},
        {"metric": 1 << 31},
        {"until": "soon"},
        {"until": None},
    ],
)
def test_what_is_no_canary_is_named(change: dict[str, Any]) -> None:
    found, problems = asked(json.dumps(GOOD | change))
    assert found == ()
    (problem,) = problems
    assert problem.startswith(f"annotation {ANNOTATION} is not obeyed: ")


@pytest.mark.parametrize("text", ["{", "[]", "3", '"x"', "{}", "[" * 100_000])
def test_nonsense_is_named_too(text: str) -> None:
    found, problems = asked(text)
    assert found == ()
    assert len(problems) == 1


def test_nothing_asked_is_nothing() -> None:
    assert canaries_of({}, POOLS, NOW, []) == ()
