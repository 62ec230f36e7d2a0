"""What a runtime does out of order: repeats, races, late and needless calls, by real processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.called_node import HANDLE, Answer, CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CalledNode]:
    made = CalledNode(tmp_path, fresh_name("cr"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def has_policy(node: CalledNode, pod: str, container: str) -> bool:
    """Whether the agent says that this sandbox's policy is in force."""
    return (node.status(pod) or {}).get("containerID") == container


def has_one_route(node: CalledNode, pod: str) -> bool:
    """Whether its address has the normal route and no other."""
    return node.metrics(pod) == [1024]


def at_once(node: CalledNode, *calls: tuple[str, str, str, str]) -> list[Answer]:
    """Calls (verb, pod, container, program) that run beside each other."""
    running = [
        node.begin(verb, pod, container, program=program) for verb, pod, container, program in calls
    ]
    return [node.finish(process) for process in running]


def test_a_del_before_any_add_and_one_without_its_namespace_each_twice(node: CalledNode) -> None:
    node.world.put_pod("web")
    node.world.put_vm()
    node.world.put_launcher("virt-launcher-db-1")
    before = node.left()
    for pod in ("web", "virt-launcher-db-1", "nobody-knows"):
        for netns in ("", "/run/netns/tt-never-was"):
            for _ in range(2):
                node.done("DEL", pod, f"c-{pod}", netns=netns)
    node.rest(before)
    for pod in ("web", "virt-launcher-db-1"):
        node.done("ADD", pod, "c1")
        node.remove_sandbox("c1")
        for _ in range(2):
            node.done("DEL", pod, "c1", netns="/run/netns/tt-never-was")
    ((handle, active, alternate),) = node.owners().values()
    assert (handle, active, alternate) == (HANDLE, "", ""), "the VM's address is the VM's"
    assert (node.endpoints(), node.metrics("web")) == ({}, [])


def test_two_adds_of_one_sandbox_at_once_have_one_result(node: CalledNode) -> None:
    """By the agent, and by the agent and the fallback beside it."""
    node.world.put_pod("web")
    node.done("ADD", "web", "c0")
    node.done("DEL", "web", "c0")
    before = node.emptied("web")
    for number, other in enumerate(["tortie", "tortie-cni", "tortie-cni"]):
        container = f"c{number}"
        one, two = at_once(
            node, ("ADD", "web", container, "tortie"), ("ADD", "web", container, other)
        )
        assert one == two
        assert one.status == 0
        assert list(node.owners()) == [one.address]
        at_once(node, ("DEL", "web", container, "tortie"), ("DEL", "web", container, other))
        node.rest(before)


def test_two_pods_of_one_vm_at_once_one_wins(node: CalledNode) -> None:
    node.world.put_vm()
    pods = ["virt-launcher-db-1", "virt-launcher-db-2"]
    for pod in pods:
        node.world.put_launcher(pod)
    for other in ("tortie", "tortie-cni"):
        calls = [("ADD", pods[0], "c1", "tortie"), ("ADD", pods[1], "c2", other)]
        answers = at_once(node, *calls)
        codes = [answer.code for answer in answers]
        assert sorted(codes) == [0, 103], answers
        winner, loser = codes.index(0), codes.index(103)
        message = answers[loser].body["msg"]
        assert pods[winner] in message
        assert "\n" not in message
        address = answers[winner].address
        assert node.owners() == {address: (HANDLE, pods[winner], "")}
        assert node.endpoints() == {pods[winner]: f"c{winner + 1}"}
        until("one route", partial(has_one_route, node, pods[winner]))
        assert node.metrics(pods[loser]) == []
        assert node.host_name(pods[loser]) not in str(node.left()["links"])
        for number, pod in enumerate(pods, 1):
            node.done("DEL", pod, f"c{number}")
        assert node.owners() == {address: (HANDLE, "", "")}, "the VM's address is the VM's"


@pytest.mark.parametrize("gone", [False, True], ids=["namespace there", "namespace gone"])
def test_a_late_del_of_an_old_sandbox_hurts_nobody(node: CalledNode, gone: bool) -> None:
    node.world.put_pod("web")
    node.world.put_vm()
    node.world.put_launcher("virt-launcher-db-1")
    for pod, prefix in (("web", "w"), ("virt-launcher-db-1", "v")):
        old = node.done("ADD", pod, f"{prefix}1")
        if gone:
            node.remove_sandbox(f"{prefix}1")
        new = node.done("ADD", pod, f"{prefix}2")
        until("its policy", partial(has_policy, node, pod, f"{prefix}2"))
        until("its route alone", partial(has_one_route, node, pod))
        late = f"/run/netns/{node.name}-{prefix}1"
        answers = at_once(node, *[("DEL", pod, f"{prefix}1", "tortie")] * 3) if not gone else []
        answers += [node.call("DEL", pod, f"{prefix}1", netns=late) for _ in range(2)]
        assert [answer.status for answer in answers] == [0] * len(answers)
        assert node.metrics(pod) == [1024]
        assert node.endpoints()[pod] == f"{prefix}2"
        assert has_policy(node, pod, f"{prefix}2")
        assert node.done("ADD", pod, f"{prefix}2") == new
        assert (new.address == old.address) is (prefix == "v")
        holder = node.owners()[new.address]
        assert holder[1] == pod
    assert len(node.owners()) == 2, "the first sandbox of the ordinary pod has no address left"
