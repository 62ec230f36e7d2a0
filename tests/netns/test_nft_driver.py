"""How rules get into the kernel: by which way, when others commit too, and when it refuses."""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from typing import NoReturn, TypeVar

import pytest

from felix_shim.drivers import nftables
from felix_shim.drivers.nftables import Nftables
from felix_shim.drivers.nftables_expressions import NeedsNft
from felix_shim.host_settings import HostSettings
from felix_shim.nat_rules import NatSettings
from felix_shim.policy import NODE_CHAINS, PolicySet, policy_set
from felix_shim.policy_blame import RuleRefused
from felix_shim.policy_sets import Elements
from felix_shim.rules import DROP, InSet, Jump, Rule, SetKey, SetKind, Side
from felix_shim.surroundings import NodeRules, Surroundings
from libtortie.errors import KernelError
from libtortie.linux import nft_batch, nft_watch
from libtortie.linux.netns import Netns
from libtortie.linux.nft_batch import (
    BatchRefused,
    FateUnknown,
    GenerationMoved,
    NftSocket,
    read_generation,
)
from libtortie.linux.nft_wire import Message, chain_creation, chain_deletion
from libtortie.model.policy import PortRange
from libtortie.model.resources import IPPoolSpec
from tests.fakes.fresh_names import fresh_name
from tests.fakes.host_meaning import HostMeaning
from tests.fakes.host_worlds import PEER, UP_HEP, host_book
from tests.fakes.nft_monitor import NftMonitor, nft_monitor
from tests.fakes.policy_meaning import Meaning, Written
from tests.fakes.rule_changes import ENDPOINTS

pytestmark = pytest.mark.root

T = TypeVar("T")
SPACE = fresh_name("drv")
KEY = SetKey(SetKind.ADDRESSES, 4, "all()")
CHAINS = {**NODE_CHAINS, "pi-a": (Rule((InSet(Side.SOURCE, KEY),), DROP.verdict),), "pi-b": (DROP,)}
FIRST = PolicySet(ENDPOINTS[:1], chains=CHAINS, sets={KEY: Elements.of(["10.0.0.1"])})
SECOND = replace(FIRST, sets={KEY: Elements.of(["10.0.0.1", "10.0.0.2"])})
WRONG = replace(FIRST, chains={**CHAINS, "pi-b": (DROP, Rule((), Jump("absent")))})


def inside(work: Callable[[], T]) -> T:
    return Netns(deadline=120.0).call(f"/run/netns/{SPACE}", work)


def nft(*words: str) -> str:
    command = ["ip", "netns", "exec", SPACE, "nft", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def tables() -> str:
    """Everything with the handles, which are others after a replacement."""
    return nft("-a", "list", "table", "inet", "tortie")


def elements() -> str:
    return nft("list", "set", "inet", "tortie", f"{KEY.name}-0")


@pytest.fixture(autouse=True)
def namespace() -> Iterator[None]:
    subprocess.run(["ip", "netns", "add", SPACE], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], check=False, capture_output=True)


@pytest.fixture
def driver() -> Nftables:
    """With the first rules in the kernel, and known to be as it left them."""
    made = Nftables()
    for _ in range(2):
        inside(lambda: made.apply(FIRST))
    return made


@pytest.fixture
def heard() -> Iterator[NftMonitor]:
    with nft_monitor(SPACE) as monitor:
        yield monitor


def make_table(number: int) -> None:
    """Somebody else's commit."""
    nft(f"add table ip t{number}")


def before_commits(
    driver: Nftables, monkeypatch: pytest.MonkeyPatch, foreign: Callable[[int], None]
) -> list[int]:
    """Have something happen just before each transaction of ours; the list counts them."""
    count: list[int] = []

    class Late(NftSocket):
        def commit(self, batch: Sequence[Message], generation: int) -> int:
            count.append(len(count))
            foreign(len(count))
            return super().commit(batch, generation)

    monkeypatch.setattr(driver, "_socket", Late())
    return count


def test_a_difference_needs_no_nft_and_touches_only_what_differs(
    driver: Nftables, heard: NftMonitor
) -> None:
    driver._binary = "/nonexistent"
    generation = inside(read_generation)
    inside(lambda: driver.apply(SECOND))
    assert driver.ready() and inside(read_generation) == generation + 1, "one transaction"
    one = heard.wait(lambda _: True, 0, 60.0)
    assert one.elements == {f"{KEY.name}-0": 1} and sum(one.kinds.values()) == 2
    assert "10.0.0.2" in elements()
    inside(lambda: driver.apply(FIRST))
    assert "10.0.0.2" not in elements()


def of_the_node(number: int) -> PolicySet:
    """Workloads' rules, a host endpoint's, and those of `natOutgoing`, all others each time."""
    hep = replace(UP_HEP, labels={"app": f"a{number}"})
    spec = {"applyOnForward": True, "selector": "has(app)", "ingress": [{"action": "Deny"}]}
    policies = (Written("deny", spec),) if number % 2 else ()
    pool = IPPoolSpec(cidr=f"10.{number}.0.0/16", nat_outgoing=True)
    settings = HostSettings(nat=NatSettings(ports=PortRange(1024, 2000 + number)))
    around = Surroundings(settings, (PortRange(9199, 9199),), frozenset(PEER), (pool,))
    policed = host_book(HostMeaning(Meaning((), policies), (hep,))).rules()
    return policy_set(ENDPOINTS[number % 2 :][:1], rules=NodeRules().added_to(policed, around))


def test_floating_addresses_and_source_prefixes_come_and_go_as_differences(
    driver: Nftables,
) -> None:
    """They are nft's to say; the kernel ends up with what it has when all is said anew."""
    (one,) = FIRST.endpoints
    own, outer = ip_address("10.65.0.1"), ip_address("192.0.2.1")
    known = replace(one, floating=((own, outer),))
    other = replace(
        one,
        floating=((own, ip_address("192.0.2.2")),),
        source_prefixes=(ip_network("198.51.100.0/24"), ip_network("2001:db8::/64")),
    )
    wider = replace(other, source_prefixes=(ip_network("198.51.0.0/16"),))
    for endpoint in (known, other, wider, one, other, known):
        desired, generation = replace(SECOND, endpoints=(endpoint,)), inside(read_generation)
        inside(partial(driver.apply, desired))
        assert inside(read_generation) == generation + 1, "one transaction"
        found = without_tags(nft("list", "ruleset"))
        inside(partial(Nftables().apply, desired))
        assert without_tags(nft("list", "ruleset")) == found
        for _ in range(2):
            inside(partial(driver.apply, desired))


@pytest.mark.parametrize("way", ["messages", "nft"])
def test_a_difference_of_the_nodes_own_rules_is_one_transaction(
    way: str, driver: Nftables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together with that of workloads', whichever way it goes; before it, new sets of networks."""
    if way == "nft":
        monkeypatch.setattr(nftables, "batch", _cannot_say)
    else:
        driver._binary = "/nonexistent"
    for number, count in enumerate((2, 1, 1)):
        generation = inside(read_generation)
        inside(partial(driver.apply, of_the_node(number)))
        assert inside(read_generation) == generation + count
        ours = without_tags(nft("-s", "list", "ruleset"))
        assert any("masquerade" in line for line in ours)
        assert any(f"10.{number}.0.0" in line for line in ours)
    clean = Nftables()
    inside(partial(clean.apply, of_the_node(2)))
    assert without_tags(nft("-s", "list", "ruleset")) == ours


def _cannot_say(*_: object) -> NoReturn:
    raise NeedsNft("nobody has taught us")


def test_anothers_commit_in_between_is_waited_out(
    driver: Nftables, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tables()
    count = before_commits(
        driver, monkeypatch, lambda number: make_table(number) if number < 3 else None
    )
    inside(lambda: driver.apply(SECOND))
    assert len(count) == 3
    inside(lambda: driver.apply(FIRST))
    assert tables() == before, "no rule was replaced"


def test_anothers_change_of_our_rules_in_between_is_not_built_upon(
    driver: Nftables, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = Nftables()

    def tamper(_: int) -> None:
        nft("flush chain inet tortie pi-b")

    before_commits(driver, monkeypatch, tamper)
    inside(lambda: driver.apply(SECOND))
    assert driver.ready()
    assert "counter" in nft("list", "chain", "inet", "tortie", "pi-b")
    ours = without_tags(nft("-s", "list", "table", "inet", "tortie"))
    inside(lambda: clean.apply(SECOND))
    assert without_tags(nft("-s", "list", "table", "inet", "tortie")) == ours


def commit(batch: Sequence[Message], generation: int) -> int:
    """By a socket of its own."""
    sock = NftSocket()
    try:
        return sock.commit(batch, generation)
    finally:
        sock.close()


def without_tags(text: str) -> list[str]:
    return sorted(re.sub(r"-[0-9](?= |$)", "-0", line) for line in text.splitlines())


def test_who_commits_all_the_time_does_not_keep_ours_out(
    driver: Nftables, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = before_commits(driver, monkeypatch, make_table)
    inside(lambda: driver.apply(SECOND))
    assert 1 < len(count) <= nftables._ATTEMPTS
    assert driver.ready() and "10.0.0.2" in nft("list", "ruleset")


@pytest.mark.parametrize("known", [True, False], ids=["difference", "whole"])
def test_a_refused_rule_is_named_and_the_old_ones_stay(known: bool, driver: Nftables) -> None:
    before = tables()
    again = driver if known else Nftables()
    with pytest.raises(RuleRefused) as caught:
        inside(lambda: again.apply(WRONG))
    assert caught.value.chain == "pi-b"
    assert not again.ready()
    assert tables() == before
    inside(lambda: again.apply(SECOND))
    assert again.ready() and "10.0.0.2" in nft("list", "ruleset")


def test_after_a_refusal_the_next_difference_is_one_again(
    driver: Nftables, heard: NftMonitor
) -> None:
    with pytest.raises(RuleRefused):
        inside(lambda: driver.apply(WRONG))
    inside(lambda: driver.apply(SECOND))
    one = heard.wait(lambda _: True, 0, 60.0)
    assert heard.commits == [one]
    assert one.elements == {f"{KEY.name}-0": 1}


def test_what_is_refused_twice_is_tried_whole(
    driver: Nftables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if we were wrong about what the kernel has."""

    def refuse(*_: object) -> int:
        raise BatchRefused(errno.EINVAL, 1)

    by_text = replace(FIRST, chains={**CHAINS, "pi-c": (DROP,)})
    with monkeypatch.context() as patched:
        patched.setattr(driver._socket, "commit", refuse)
        inside(lambda: driver.apply(by_text))
    assert driver.ready() and "pi-c" in tables(), "nft can what we cannot"
    driver._applied = by_text  # it knows nothing of what it has just done
    nft("delete chain inet tortie pi-c")
    driver._generation = inside(read_generation)
    inside(lambda: driver.apply(FIRST))
    assert driver.ready() and "pi-c" not in tables()


def test_an_nft_that_crashes_leaves_nobody_sure(
    driver: Nftables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> str:
        raise nftables._Crashed("nft was ended by signal 6")

    with monkeypatch.context() as patched:
        patched.setattr(driver, "_run", crash)
        with pytest.raises(RuleRefused):
            inside(lambda: driver.apply(WRONG))
    inside(lambda: driver.apply(SECOND))
    assert driver.ready() and "10.0.0.2" in nft("list", "ruleset")


def test_a_lost_answer_is_cleared_up(driver: Nftables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was done or not: the rules are what they are to be afterwards."""

    def lost(sock: object, count: int) -> None:
        raise FateUnknown("no buffer space")

    with monkeypatch.context() as patched:
        patched.setattr(nft_batch, "_await", lost)
        inside(lambda: driver.apply(SECOND))
    assert driver.ready() and "10.0.0.2" in nft("list", "ruleset")
    inside(lambda: driver.apply(FIRST))
    assert "10.0.0.2" not in nft("list", "ruleset")


def test_when_others_commit_more_than_can_be_heard_ours_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nft_watch, "_ROOM", 1)
    driver = Nftables()
    inside(lambda: driver.apply(FIRST))
    before = tables()
    inside(lambda: driver.apply(FIRST))
    assert tables() == before
    many = "; ".join(f"add chain ip other c{number}" for number in range(300))
    nft(f"add table ip other; {many}; flush chain inet tortie pi-b")
    inside(lambda: driver.apply(FIRST))
    assert driver.ready() and "counter" in nft("list", "chain", "inet", "tortie", "pi-b")


def test_others_commits_are_none_of_our_business(driver: Nftables) -> None:
    before = tables()
    for number in range(5):
        make_table(number)
        inside(lambda: driver.apply(FIRST))
    nft("delete table ip t0; add table bridge tortie-too; add chain bridge tortie-too x")
    inside(lambda: driver.apply(FIRST))
    assert tables() == before


@pytest.mark.parametrize(
    "change",
    [
        "delete element inet tortie from-endpoints-0 { cali1 }",
        "add rule inet tortie forward accept",
        "flush chain inet tortie pi-a",
        "add set inet tortie mine { type ipv4_addr; }",
        "delete table arp tortie",
        "flush table inet tortie",
        "flush ruleset",
    ],
)
def test_whatever_another_changes_of_ours_is_put_right(change: str, driver: Nftables) -> None:
    before = nft("-s", "list", "ruleset")
    nft(change)
    make_table(1)
    nft("delete table ip t1")
    inside(lambda: driver.apply(FIRST))
    assert without_tags(nft("-s", "list", "ruleset")) == without_tags(before)


def test_deleted_tables_come_back(driver: Nftables) -> None:
    before = nft("list", "ruleset")
    nft("flush", "ruleset")
    inside(lambda: driver.apply(FIRST))
    assert nft("list", "ruleset") == before


# -- one transaction ---------------------------------------------------------------------------


def test_of_a_refused_transaction_nothing_is_done_and_the_message_is_named(
    driver: Nftables,
) -> None:
    messages = [
        chain_creation("inet", "tortie", "new"),
        chain_deletion("inet", "tortie", "absent"),
        chain_deletion("inet", "tortie", "pi-a"),
    ]

    def work() -> None:
        generation = read_generation()
        with pytest.raises(BatchRefused) as caught:
            commit(messages, generation)
        assert (caught.value.code, caught.value.index) == (errno.ENOENT, 1)
        assert read_generation() == generation

    inside(work)
    assert "chain new" not in nft("list", "ruleset")


def test_a_transaction_for_another_generation_is_refused(driver: Nftables) -> None:
    def work() -> None:
        generation = read_generation()
        for wrong in (generation - 1, generation + 1):
            with pytest.raises(GenerationMoved):
                commit([chain_creation("inet", "tortie", "new")], wrong)
        assert read_generation() == generation
        assert commit([], generation) == generation
        after = commit([chain_creation("inet", "tortie", "new")], generation)
        assert after == read_generation() == generation + 1

    inside(work)


def test_a_large_transaction_is_one_too() -> None:
    """More than a socket's buffer holds by default, and more answers than it can take."""
    nft("add table inet tortie")

    def work() -> None:
        generation = read_generation()
        many = [chain_creation("inet", "tortie", f"c{number}") for number in range(20_000)]
        assert commit(many, generation) == generation + 1
        gone = [chain_deletion("inet", "tortie", f"x{number}") for number in range(20_000)]
        with pytest.raises(BatchRefused) as caught:
            commit(gone, generation + 1)
        assert caught.value.index == 0

    inside(work)


def test_without_the_right_to_it_is_a_kernel_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, protocol: int = 0) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(nft_batch, "open_socket", refused)
    with pytest.raises(KernelError, match="not permitted"):
        read_generation()
    with pytest.raises(KernelError, match="not permitted"):
        commit([chain_creation("inet", "tortie", "c")], 1)
