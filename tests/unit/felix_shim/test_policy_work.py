"""How much is done for a change: what it changes, however much there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any

import pytest

from felix_shim import policy_book, surroundings
from felix_shim.drivers.nftables_change import AddRule, OnChain, OnElements, Step, Verb, steps
from felix_shim.endpoints import parse_endpoint
from felix_shim.events import Stored, Unstored
from felix_shim.failsafe import Failsafe
from felix_shim.host_rules import HostPlan, host_chains
from felix_shim.model import Endpoint
from felix_shim.policy import PolicySet
from felix_shim.policy_desk import PolicyDesk
from felix_shim.policy_order import Course, course_chains
from felix_shim.rules import Chain
from libtortie.datastore.port import Record
from libtortie.model.keys import Key, Kind, Resources
from libtortie.model.policy import PolicyId, PolicyRule
from libtortie.model.resources import WorkloadEndpoint
from tests.bench.policy_world import Size, remote_address
from tests.fakes.agent_world import NAMESPACE, NODE, RecordingLog
from tests.fakes.policy_worlds import resource

Said = Callable[[PolicyId], tuple[PolicyRule, ...]]
SIZE = Size(policies=100, remotes=1_000)
ENDPOINTS, POLICIES = Resources(Kind.WORKLOAD_ENDPOINT), Resources(Kind.NETWORK_POLICY)


class Node:
    """A desk with everything on it, and what the kernel was last given."""

    def __init__(self) -> None:
        self.desk = PolicyDesk(NODE, RecordingLog())
        self.locals: list[tuple[Key, Endpoint]] = []
        for record in SIZE.records():
            self.tell(record)
        self.before = PolicySet()
        self.changes()

    def tell(self, record: Record) -> None:
        scope = ENDPOINTS if isinstance(record.value, WorkloadEndpoint) else POLICIES
        self.desk.feed(Stored(scope, record))
        value = record.value
        if isinstance(value, WorkloadEndpoint) and value.spec.node == NODE:
            self.locals.append((record.key, parse_endpoint(value)))

    def changes(self) -> list[Step]:
        """What leads from the last rules to those of now."""
        before, self.before = self.before, self.desk.rules(self.locals)
        return list(steps(before, self.before, "-0"))

    @property
    def looked_at(self) -> int:
        book = self.desk.book
        return book.sets.index.looked_at + book._subjects.looked_at


@pytest.fixture(scope="module")
def whole() -> Node:
    return Node()


@pytest.fixture
def node(whole: Node) -> Iterator[Node]:
    """One for all: each test takes back what it did."""
    assert whole.changes() == []
    yield whole


@pytest.fixture
def courses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The chains of the courses that are worked out."""
    found: list[str] = []

    def told(
        wanted: Course, rules: Callable[[PolicyId], tuple[PolicyRule, ...]], log_prefix: str
    ) -> dict[str, Chain]:
        found.append(wanted.chain)
        return course_chains(wanted, rules, log_prefix)

    monkeypatch.setattr(policy_book, "course_chains", told)
    return found


def elements(found: list[Step]) -> list[tuple[Verb, tuple[str, ...]]]:
    assert all(isinstance(one, OnElements) for one in found), found
    return sorted((one.verb, one.texts) for one in found if isinstance(one, OnElements))


def test_a_label_that_moves_one_endpoint_moves_one_element(node: Node, courses: list[str]) -> None:
    address, before, looked = (remote_address(7),), node.before, node.looked_at
    node.tell(SIZE.remote(7, role=8))
    assert elements(node.changes()) == [(Verb.ADD, address), (Verb.DELETE, address)]
    assert node.looked_at - looked <= 10, "selectors that can be about it"
    after = node.before
    assert after.chains is before.chains and courses == []
    assert all(one is two for one, two in zip(before.endpoints, after.endpoints, strict=True))
    others = [key for key in after.sets if after.sets[key] is not before.sets[key]]
    assert len(others) == 2
    node.tell(SIZE.remote(7))
    assert len(node.changes()) == 2


def test_a_pod_that_comes_is_one_element_of_each_of_its_sets(node: Node) -> None:
    record = SIZE.remote(SIZE.remotes)
    node.tell(record)
    address = (remote_address(SIZE.remotes),)
    assert elements(node.changes()) == [(Verb.ADD, address), (Verb.ADD, address)]
    node.desk.feed(Unstored(ENDPOINTS, record.key))
    assert elements(node.changes()) == [(Verb.DELETE, address), (Verb.DELETE, address)]


def test_an_endpoint_like_another_brings_its_own_chains_and_elements(
    node: Node, courses: list[str]
) -> None:
    record = SIZE.local(SIZE.apps, app=3)
    node.tell(record)
    found = node.changes()
    assert courses == [], "it goes the other's ways"
    assert len([one for one in found if isinstance(one, OnChain)]) == 2
    assert len([one for one in found if isinstance(one, AddRule)]) == 7
    assert all(len(one.texts) == 1 for one in found if isinstance(one, OnElements))
    node.desk.feed(Unstored(ENDPOINTS, record.key))
    node.locals.pop()
    node.changes()


def test_a_policy_that_changes_is_worked_out_for_those_it_selects(
    node: Node, courses: list[str]
) -> None:
    before = SIZE.policy(5)
    spec: dict[str, Any] = {
        "order": 5,
        "selector": f"app == 'a{5 % SIZE.apps}'",
        "types": ["Ingress"],
        "ingress": [{"action": "Deny"}],
    }
    changed = resource(Kind.NETWORK_POLICY, "p5", spec, namespace=NAMESPACE)
    node.tell(Record(before.key, changed, "2"))
    found = node.changes()
    rules = [one for one in found if isinstance(one, AddRule)]
    assert {one.chain for one in rules} == {"pi-np/default/p5"}
    assert len(set(courses)) <= 3, "of one endpoint in ten"
    node.tell(before)
    node.changes()


def test_the_nodes_own_rules_are_worked_out_when_they_may_be_others(
    node: Node, courses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def told(placed: Mapping[str, HostPlan], failsafe: Failsafe) -> dict[str, Chain]:
        made.append(len(placed))
        return host_chains(placed, failsafe)

    monkeypatch.setattr(surroundings, "host_chains", told)
    spec = {"node": NODE, "interfaceName": "*"}
    host = resource(Kind.HOST_ENDPOINT, "h", spec, labels={"app": "a5"})
    scope = Resources(Kind.HOST_ENDPOINT)
    node.desk.feed(Stored(scope, Record(host.key, host, "1")))
    came = [one.name for one in node.changes() if isinstance(one, OnChain)]
    assert "host-in" in came and made == [1]
    courses.clear()
    node.tell(SIZE.remote(7, role=8))
    assert len(elements(node.changes())) == 2
    changed = SIZE.policy(6)  # of another app's
    node.desk.feed(Unstored(POLICIES, changed.key))
    node.changes()
    assert made == [1] and not [one for one in courses if one.startswith("ch")]
    for record in (changed, SIZE.remote(7)):
        node.tell(record)
    node.desk.feed(Unstored(scope, host.key))
    node.changes()
    assert made == [1, 0]


def test_hosts_come_into_a_set_with_networks_at_their_own_cost(node: Node) -> None:
    """And one that lies in a network is no element."""
    netset = resource(
        Kind.NETWORK_SET,
        "far",
        {"nets": ["192.0.2.0/24", f"{ip_address(remote_address(1_999))}/31"]},
        labels={"crowd": "yes"},
        namespace=NAMESPACE,
    )
    scope = Resources(Kind.NETWORK_SET)
    node.desk.feed(Stored(scope, Record(netset.key, netset, "1")))
    node.changes()
    for number, count in ((1_999, 1), (2_000, 1), (2_001, 2)):
        record = SIZE.remote(number)
        node.tell(record)
        came = elements(node.changes())
        assert came == [(Verb.ADD, (remote_address(number),))] * count
        node.desk.feed(Unstored(ENDPOINTS, record.key))
        assert len(node.changes()) == count
    node.desk.feed(Unstored(scope, netset.key))
    node.changes()
