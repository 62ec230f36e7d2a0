"""The rule model as netlink messages: every kind of it, and what only `nft` can say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import pytest

from felix_shim.drivers.nftables_change import (
    AddRule,
    Commands,
    OnChain,
    OnElements,
    OnSet,
    Step,
    Verb,
    steps,
)
from felix_shim.drivers.nftables_endpoint import SETS
from felix_shim.drivers.nftables_expressions import NeedsNft, merged
from felix_shim.drivers.nftables_messages import Batch, batch
from felix_shim.drivers.nftables_rules import SetSpec, rule_text
from felix_shim.policy import PolicySet
from felix_shim.policy_sets import Elements
from felix_shim.rules import (
    ConnState,
    Goto,
    HasState,
    InNets,
    InSet,
    IsIcmp,
    IsProtocol,
    IsVersion,
    Jump,
    Log,
    Masquerade,
    Match,
    OnLink,
    OnPort,
    Plain,
    Rule,
    SetKey,
    SetKind,
    Side,
    Verdict,
    Way,
)
from libtortie.linux.nft_wire import DELELEM, NEWELEM, NEWRULE, NEWSET
from libtortie.model.policy import PortRange

KEY = SetKey(SetKind.ADDRESSES, 4, "all()")
WITH_SET = PolicySet(sets={KEY: Elements()})
MATCHES: tuple[Match, ...] = (
    IsVersion(6),
    IsProtocol(6, negated=True),
    InNets(Side.SOURCE, 4, ("10.0.0.0/8", "192.0.2.1")),
    InSet(Side.DESTINATION, KEY),
    OnPort(Side.DESTINATION, (PortRange(1, 2), PortRange(4, 4))),
    IsIcmp(8),
    HasState((ConnState.RELATED,)),
    OnLink(Way.IN, "eth0"),
)
VERDICTS: tuple[Verdict, ...] = (Plain.ACCEPT, Jump("a"), Goto("b"), Log("c"), Masquerade())


def made(*some: Step, after: PolicySet = WITH_SET) -> Batch:
    return batch(some, after, "-0")


def test_the_kinds_below_are_all_there_are() -> None:
    """A kind that is added to the rule model comes here, to `rule_changes.py`, and to netlink."""
    assert {type(one) for one in MATCHES} == set(get_args(Match))
    assert {type(one) for one in VERDICTS} == set(get_args(Verdict))


@pytest.mark.parametrize("match", MATCHES, ids=lambda one: type(one).__name__)
def test_every_kind_of_match_is_said(match: Match) -> None:
    rule = Rule((match,), Plain.DROP)
    assert rule_text(rule, WITH_SET.sets, "-0")
    assert NEWRULE in [one.kind for one in made(AddRule("c", rule)).messages]


@pytest.mark.parametrize("verdict", [*VERDICTS, *Plain], ids=str)
def test_every_kind_of_verdict_is_said(verdict: Verdict) -> None:
    (message,) = made(AddRule("c", Rule((), verdict))).messages
    assert message.kind == NEWRULE


@pytest.mark.parametrize("spec", SETS, ids=lambda one: one.name)
def test_every_set_can_be_declared(spec: SetSpec) -> None:
    (message,) = made(OnSet(Verb.ADD, spec)).messages
    assert message.kind == NEWSET


@dataclass(frozen=True, slots=True)
class IsBlue:
    """A match that nobody has taught to speak netlink."""


ODD: Any = IsBlue()


@pytest.mark.parametrize(
    "step",
    [
        AddRule("c", Rule((ODD,), Plain.DROP)),
        AddRule("c", Rule((), ODD)),
        AddRule("c", Rule((InNets(Side.SOURCE, 4, ("fd00::/64", "::1")),), Plain.DROP)),
        AddRule("c", Rule((InNets(Side.SOURCE, 4, ("x",)),), Plain.DROP)),
        AddRule("c", Rule((OnPort(Side.SOURCE, (PortRange(0, 65536),)),), Plain.DROP)),
        AddRule("c", Rule((IsProtocol(256),), Plain.DROP)),
        AddRule("c", Rule((OnLink(Way.IN, "longer-than-a-link"),), Plain.DROP)),
        AddRule("c", Rule((OnLink(Way.IN, "*"),), Plain.DROP)),
        AddRule("c", Rule((), Masquerade("fd00::1"))),
        AddRule("c" * 70_000, Rule((), Plain.DROP)),
        OnSet(Verb.ADD, SetSpec("inet", "s", ("mark",))),
        OnElements(Verb.ADD, SetSpec("inet", "s", ("ether_addr",)), ("02:00",)),
        OnElements(Verb.ADD, SetSpec("inet", "s", ("ifname",)), ('"longer-than-an-interface"',)),
        OnElements(Verb.ADD, SetSpec("inet", "s", ("ipv4_addr", "inet_proto")), ("10.0.0.1",)),
        OnElements(Verb.ADD, SetSpec("inet", "s", ("ipv4_addr",), interval=True), ("fd00::/8",)),
        OnElements(
            Verb.ADD,
            SetSpec("inet", "s", ("ifname", "ipv4_addr"), interval=True),
            ('"cali1" . 10.0.0.0/8',),
        ),
        Commands(("add map inet tortie m { type ipv4_addr : ipv4_addr; }",)),
        OnElements(Verb.ADD, SetSpec("odd", "s", ("ipv4_addr",)), ("10.0.0.1",)),
    ],
    ids=lambda step: str(step)[:60],
)
def test_what_messages_cannot_say_is_left_to_nft(step: Step) -> None:
    with pytest.raises(NeedsNft):
        made(step)


def test_a_refused_message_tells_the_chain_of_its_rule() -> None:
    rule = Rule((InNets(Side.SOURCE, 4, ("10.0.0.1", "10.0.0.3")),), Plain.DROP)
    found = made(OnChain(Verb.ADD, "a"), AddRule("a", rule), AddRule("b", rule))
    chains = [found.chain_at(place) for place in range(len(found.messages))]
    assert chains == ["", "a", "a", "a", "b", "b", "b"], "its anonymous set, the elements, itself"
    assert found.chain_at(None) == ""


def test_many_elements_go_in_messages_that_fit() -> None:
    spec = SetSpec("inet", "s", ("ipv4_addr",))
    texts = tuple(f"10.0.{number // 250}.{number % 250}" for number in range(10_000))
    for verb, kind in ((Verb.ADD, NEWELEM), (Verb.DELETE, DELELEM)):
        found = made(OnElements(verb, spec, texts))
        assert {one.kind for one in found.messages} == {kind}
        assert max(len(one.body) for one in found.messages) < 1 << 16
        assert sum(len(one.body) for one in found.messages) > 16 * len(texts), "an element each"


def test_intervals_that_touch_are_one() -> None:
    assert merged([(0, 1), (2, 5), (4, 4), (7, 9)]) == [(0, 5), (7, 9)]


def test_no_change_is_no_message() -> None:
    assert made(*steps(WITH_SET, PolicySet(sets=dict(WITH_SET.sets)), "-0")).messages == ()
