"""While host policies change, no packet is wrongly dropped and none wrongly let in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any

import pytest

from felix_shim.drivers.nftables import Nftables
from felix_shim.policy import EndpointPolicy, PolicySet, policy_set
from libtortie.errors import KernelError
from tests.fakes.datagram_probe import FAR, inside, probe, two_spaces
from tests.fakes.host_meaning import HostMeaning
from tests.fakes.host_worlds import UP_HEP, host_rules
from tests.fakes.policy_meaning import Meaning, NetSet, Written

pytestmark = pytest.mark.root

ALLOWED, DENIED = 7801, 7802
ROUNDS, AT_LEAST = 20, 500


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    with two_spaces() as made:
        yield made


def allow(**rule: Any) -> dict[str, Any]:
    return {"action": "Allow", "protocol": "UDP", **rule}


def rules(number: int, flags: dict[str, Any]) -> PolicySet:
    """The allowed port is allowed in ever other ways; about the other one many things are said."""
    port = {"ports": [ALLOWED]}
    ways = (
        allow(destination=port),
        allow(destination=port, source={"selector": "app == 'far'"}),
        allow(destination={"ports": [f"{ALLOWED}:{ALLOWED}"], "notPorts": [DENIED]}),
    )
    spec: dict[str, Any] = {"applyOnForward": True, "ingress": [ways[number % 3]], **flags}
    other = {"order": 3, "ingress": [allow(destination={"ports": [80 + number % 5]})]}
    if number % 5:
        other["applyOnForward"] = True
    nets = (f"{FAR}/32", "10.9.0.0/16") if number % 2 else (f"{FAR}/32",)
    meaning = Meaning(
        (),
        (Written("way", {"order": 5, **spec}), Written("other", other)),
        (NetSet("", "far", nets, {"app": "far"}),),
    )
    return policy_set([], rules=host_rules(HostMeaning(meaning, (UP_HEP,))))


@pytest.mark.parametrize("flags", [{}, {"doNotTrack": True}, {"preDNAT": True}], ids=str)
def test_no_packet_is_wrongly_dropped_or_let_in(
    spaces: tuple[str, str], flags: dict[str, Any]
) -> None:
    """By differences, by agents that start over, and by transactions that are refused.

    The policy's kind stays: a packet that was tracked when `doNotTrack` came to be meets no policy
    that allows it at the stages that are left.
    """
    here, far = spaces
    driver = Nftables()
    inside(here, lambda: driver.apply(rules(0, flags)))
    good, bad = probe(here, far, ALLOWED), probe(here, far, DENIED)
    broken = replace(
        rules(1, flags),
        endpoints=(EndpointPolicy("calitta", "nonsense", (ip_address("10.65.0.2"),)),),
    )

    def refused() -> None:
        with pytest.raises(KernelError):
            Nftables().apply(broken)

    with good.running(), bad.running():
        for number in itertools.count():
            if number >= ROUNDS and min(good.sent, bad.sent) > AT_LEAST:
                break
            wanted = rules(number, flags)
            inside(here, partial(driver.apply, wanted))
            if number % 3 == 0:
                inside(here, partial(Nftables().apply, wanted))
            if number % 10 == 0:
                inside(here, refused)
    assert good.received == good.sent
    assert bad.received == 0
