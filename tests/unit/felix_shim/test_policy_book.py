"""What the policies come to: closed when in doubt, and work in proportion to the change."""

from __future__ import annotations

from ipaddress import ip_network

from felix_shim.policy_book import PolicyBook, Ways
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.policy import ANY, Item, PolicyId, Profile
from tests.fakes.packets import TCP, Packet
from tests.fakes.policy_meaning import Written
from tests.fakes.policy_worlds import PODS, item_of, key_of, policy_of
from tests.fakes.rule_machine import RuleMachine

WEB, DB = PODS[0], PODS[1]
PACKET = Packet(DB.addresses[0], WEB.addresses[0], TCP, 1024, 80)
ALLOW_DB = Written(
    "allow-db",
    {"selector": "app == 'web'", "ingress": [{"action": "Allow", "source": {"selector": "all()"}}]},
    "red",
)
BROKEN = Written("broken", {"selector": "app == 'web'", "ingress": [{"action": "Maybe"}]}, "red")


def book_with(*policies: Written) -> PolicyBook:
    book = PolicyBook()
    for pod in (WEB, DB):
        book.put_item(key_of(pod), item_of(pod))
        book.put_local(key_of(pod), item_of(pod))
    for policy in policies:
        book.put_policy(policy_of(policy))
    return book


def lets_in(book: PolicyBook, packet: Packet = PACKET) -> bool:
    rules = book.rules()
    return RuleMachine(rules.chains, rules.sets).allows(rules.ways[key_of(WEB)].ingress, packet)


def test_without_a_policy_the_namespaces_profile_allows() -> None:
    assert lets_in(book_with())


def test_an_unknown_profile_allows_nothing() -> None:
    book = book_with()
    book.put_local(key_of(WEB), Item(profiles=("mine",)))
    assert not lets_in(book)
    book.put_profile(Profile("mine", ingress=ANY))
    assert lets_in(book)
    book.remove_profile("mine")
    assert not lets_in(book)


def test_a_policy_that_cannot_be_obeyed_closes_those_it_selects() -> None:
    book = book_with(ALLOW_DB, BROKEN)
    rules = book.rules()
    assert rules.ways[key_of(WEB)] == Ways()
    assert not lets_in(book)
    assert rules.ways[key_of(DB)] != Ways(), "others are left alone"
    assert [(one.endpoint, str(one.policy)) for one in rules.closed] == [
        (key_of(WEB), "NetworkPolicy red/broken")
    ]
    assert rules.closed[0].problem.startswith("spec.ingress.0.action: ")
    book.remove_policy(policy_of(BROKEN).id)
    assert lets_in(book)
    assert book.rules().closed == ()


def test_what_the_kernel_refuses_is_closed_until_it_says_something_else() -> None:
    book = book_with(ALLOW_DB)
    policy = policy_of(ALLOW_DB)
    assert any("allow-db" in name for name in book.own_chains()[policy.id])
    book.refuse(policy.id, "nft: no")
    assert not lets_in(book)
    book.put_policy(policy)
    assert not lets_in(book), "the same policy again"
    book.put_policy(policy_of(Written("allow-db", {**ALLOW_DB.spec, "order": 7}, "red")))
    assert lets_in(book)


def test_a_profile_that_is_gone_is_refused_no_more() -> None:
    book = book_with()
    book.put_profile(Profile("kns.red", ingress=ANY))
    book.refuse(PolicyId("kns.red", "", "Profile"), "nft: no")
    assert not lets_in(book)
    book.remove_profile("kns.red")
    assert lets_in(book)


def test_an_address_that_two_endpoints_have_stays_while_one_has_it() -> None:
    """A VM's pods on both sides of its migration; the source's DEL comes after the target's ADD."""
    twin = ResourceKey(Kind.WORKLOAD_ENDPOINT, "twin", "red")
    book = book_with(ALLOW_DB)
    book.put_item(twin, item_of(DB))
    assert lets_in(book)
    book.remove_item(key_of(DB))
    assert lets_in(book)
    book.remove_item(twin)
    assert not lets_in(book)


def test_an_endpoint_may_change_labels_and_addresses_at_once() -> None:
    book = book_with(ALLOW_DB)
    moved = Item((("projectcalico.org/namespace", "blue"),), (), (ip_network("10.65.0.9/32"),))
    book.put_item(key_of(DB), moved)
    assert not lets_in(book)
    book.put_item(key_of(DB), item_of(DB))
    assert lets_in(book)
    elements = next(iter(book.rules().sets.values())).texts
    assert elements == {str(pod.addresses[0]) for pod in (WEB, DB)} or all(
        ":" in text for text in elements
    )


def crowd(book: PolicyBook, policies: int, pods: int) -> None:
    """Policies for groups of pods, and the pods of as many other nodes."""
    for number in range(pods):
        key = ResourceKey(Kind.WORKLOAD_ENDPOINT, f"far-{number}", "red")
        book.put_item(key, far(number, number % policies))
    for number in range(policies):
        source = {"selector": f"group == 'g{number}'"}
        rule = {"action": "Allow", "source": source}
        book.put_policy(
            policy_of(Written(f"p{number}", {"selector": "all()", "ingress": [rule]}, "red"))
        )


def far(number: int, group: int) -> Item:
    labels = {"group": f"g{group}", "projectcalico.org/namespace": "red"}
    address = ip_network((0x0A420000 + number, 32))
    return Item(tuple(sorted(labels.items())), ("kns.red",), (address,))


def test_a_label_change_costs_what_it_changes() -> None:
    """One of 2,000 endpoints moves from one set to another: two sets, and few comparisons."""
    book = book_with()
    crowd(book, policies=100, pods=2000)
    before = book.rules()
    looked_at = book.sets.index.looked_at
    book.put_item(ResourceKey(Kind.WORKLOAD_ENDPOINT, "far-7", "red"), far(7, 8))
    after = book.rules()
    changed = [key for key in after.sets if after.sets[key] is not before.sets[key]]
    assert sorted(key.selector.split("'")[-2] for key in changed) == ["g7", "g8"]
    assert book.sets.index.looked_at - looked_at <= 4
    assert after.chains is before.chains
    assert after.ways is before.ways


def test_a_new_endpoint_of_a_known_kind_brings_no_new_chains() -> None:
    book = book_with()
    crowd(book, policies=50, pods=10)
    before = book.rules()
    key = ResourceKey(Kind.WORKLOAD_ENDPOINT, "near", "red")
    book.put_local(key, item_of(WEB))
    after = book.rules()
    assert after.chains == before.chains
    assert after.ways[key] == after.ways[key_of(WEB)]
