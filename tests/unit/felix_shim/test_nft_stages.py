"""Sets with networks come before the rules that look into them, and leave nothing behind."""

from __future__ import annotations

from dataclasses import replace

from felix_shim.drivers.nftables_change import AddRule, OnElements, OnSet, Verb, stages, steps
from felix_shim.policy import NODE_CHAINS, PolicySet
from felix_shim.policy_compile import in_nets
from felix_shim.policy_sets import Elements, literal
from felix_shim.rules import DROP, Chain, InSet, Rule, SetKey, SetKind, Side

KEY = SetKey(SetKind.ADDRESSES, 4, "all()")
HOSTS = Elements.of(["10.0.0.1"])
NETS = Elements.of(["10.0.0.0/24"], interval=True)
OTHER = Elements.of(["10.0.1.0/24"], interval=True)


def state(found: Elements | None, *, chain: str = "pi-a") -> PolicySet:
    """A chain that looks into a set; without a set, one that does not."""
    matches = () if found is None else (InSet(Side.SOURCE, KEY),)
    sets = {} if found is None else {KEY: found}
    chains: dict[str, Chain] = {**NODE_CHAINS, chain: (Rule(matches, DROP.verdict),)}
    return PolicySet(chains=chains, sets=sets)


def test_a_set_of_hosts_comes_with_its_rules() -> None:
    before, after = state(None), state(HOSTS)
    assert stages(before, after) == (after,)


def test_a_set_with_networks_comes_before_its_rules() -> None:
    for before in (state(None), state(HOSTS)):
        first, second = stages(before, state(NETS))
        assert second == state(NETS)
        found = steps(before, first, "-0")
        assert [type(one) for one in found] == [OnSet, OnElements]
        assert all(one.verb is Verb.ADD for one in found if isinstance(one, OnSet | OnElements))
        rest = steps(first, second, "-0")
        assert any(isinstance(one, AddRule) for one in rest)
        assert not any(isinstance(one, OnSet) and one.verb is Verb.ADD for one in rest)
        gone = [one for one in rest if isinstance(one, OnSet)]
        assert len(gone) == len(before.sets), "the set of hosts goes with its last rules"


def test_networks_that_come_and_go_in_a_set_are_one_transaction() -> None:
    assert stages(state(NETS), state(OTHER)) == (state(OTHER),)
    assert stages(state(NETS), state(HOSTS)) == (state(HOSTS),)


def test_what_was_prepared_and_is_not_wanted_any_more_goes() -> None:
    """The rules were refused in between, or others came."""
    midway, _ = stages(state(None), state(NETS))
    (gone,) = steps(midway, state(None), "-0")
    assert isinstance(gone, OnSet)
    assert gone.verb is Verb.DELETE


def test_what_was_prepared_is_filled_anew_when_it_has_changed_since() -> None:
    midway, _ = stages(state(None), state(NETS))
    first, second = stages(midway, state(OTHER))
    verbs = [(type(one), one.verb) for one in steps(midway, first, "-0")
             if isinstance(one, OnSet | OnElements)]  # fmt: skip
    assert verbs == [(OnElements, Verb.DELETE), (OnElements, Verb.ADD)]
    assert not any(isinstance(one, OnSet) for one in steps(first, second, "-0"))


def test_a_rules_own_list_is_a_set_only_when_it_has_to_be() -> None:
    hosts = in_nets(Side.SOURCE, 4, ("10.0.0.1/32", "10.0.0.2/32"))
    assert not isinstance(hosts, InSet)
    assert not isinstance(in_nets(Side.SOURCE, 4, ("10.0.0.0/8",)), InSet)
    nets = in_nets(Side.SOURCE, 4, ("10.0.0.0/8", "11.0.0.1/32"))
    assert isinstance(nets, InSet)
    assert literal(nets.key) == Elements.of(["10.0.0.0/8", "11.0.0.1/32"], interval=True)
    assert nets.key == replace(nets.key), "the same list is the same set on every run"
