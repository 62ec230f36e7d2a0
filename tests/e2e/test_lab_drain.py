"""A node with ten VMs of three eviction strategies is emptied by the real kubectl.

`tortiectl node drain-plan` says before what will become of each, its `--watch` follows and judges,
and VMs that migrate lose no connection.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import control, seed
from lab.children import Child
from lab.cluster import until
from lab.measure import guest_ip, start_stream
from lab.objects import LabMigration, LabVM, LabVMI
from lab.stream import StreamReport
from tests.fakes.lab_vms import address_of
from tests.fakes.running_lab import Lab, allocation, assert_settled, start

pytestmark = pytest.mark.root

HARD, SOFT, NONE = "LiveMigrate", "LiveMigrateIfPossible", "None"
VMS = {
    **{f"drain-hard{n}": (HARD, True) for n in range(4)},
    **{f"drain-soft{n}": (SOFT, True) for n in range(2)},
    **{f"drain-bound{n}": (SOFT, False) for n in range(2)},
    **{f"drain-none{n}": (NONE, True) for n in range(2)},
}
"""Eviction strategy, and whether the bridge may move: the annotation that KubeVirt wants."""
MOVING = [name for name, (strategy, movable) in VMS.items() if movable and strategy != NONE]
FATE = {name: "migrates" if name in MOVING else "restarts" for name in VMS}
OTHERS = {"node2", "node3"}


def body(name: str, strategy: str, *, movable: bool) -> dict[str, Any]:
    found = seed.vm_body(name, control.NAMESPACE, "node1", {"app": name})
    template = found["spec"]["template"]
    template["spec"]["evictionStrategy"] = strategy
    if not movable:
        template["metadata"]["annotations"] = {}
    return found


def create(made: dict[str, Any]) -> None:
    control.with_client(lambda client: client.create(LabVM, made))


@contextmanager
def running(lab: Lab, vms: dict[str, tuple[str, bool]]) -> Iterator[None]:
    """VMs on node1; afterwards they and their addresses are gone."""
    for name, (strategy, movable) in vms.items():
        create(body(name, strategy, movable=movable))
    for name in vms:
        control.await_vm(name)
    addresses = [address_of(name) for name in vms]
    yield
    lab.kubectl("delete", "vm", *vms)
    until(lambda: not any(control.find(LabVMI, name) for name in vms), "instances are left")
    until(lambda: not any(allocation(lab, one) for one in addresses), "addresses are not free")


def plan_of(lab: Lab, *options: str, ok: bool = True) -> str:
    return lab.cli("exec", "node2", "--", "tortiectl", "node", "drain-plan", *options, ok=ok)


def survived(stream: Child) -> bool:
    report: dict[str, Any] = stream.ask()
    return StreamReport(**report).survived


def test_a_node_is_emptied_as_the_plan_said(lab: Lab, tmp_path: Path) -> None:
    story = tmp_path / "watch.txt"
    with ExitStack() as stack:
        stack.enter_context(running(lab, VMS))
        before = {name: control.get(LabVMI, name) for name in VMS}
        assert {vmi.status.node_name for vmi in before.values()} == {"node1"}
        plan = json.loads(plan_of(lab, "node1", "-o", "json"))
        steps = {step["vm"].partition("/")[2]: step for step in plan["steps"]}
        assert {name: step["fate"] for name, step in steps.items()} == FATE
        assert not plan["blocked"]
        command = shlex.split(plan_of(lab, "node1").strip().splitlines()[-1])
        streams = {name: start_stream(lab.state, guest_ip(before[name])) for name in MOVING}
        for stream in streams.values():
            stack.callback(stream.close)
        follow = ["exec", "node2", "--", "tortiectl", "node", "drain-plan", "node1", "--watch"]
        watch = start(lab.state, *follow, output=story)
        stack.callback(watch.wait)
        stack.callback(watch.kill)
        until(lambda: "node node1 is schedulable" in story.read_text(), "nobody watches")
        stack.callback(lab.kubectl, "uncordon", "node1")
        assert command[0] == "kubectl"
        words = lab.kubectl(*command[1:], "--timeout=280s")
        assert "node/node1 drained" in words
        assert watch.wait(120) == 0, story.read_text()
        for name in VMS:
            judge(lab, name, before[name], set(steps[name]["targets"]))
        assert {name: survived(stream) for name, stream in streams.items()} == dict.fromkeys(
            MOVING, True
        )
    told = story.read_text()
    assert "node node1 is empty" in told
    assert "not the plan" not in told
    for name in VMS:
        assert f"default/{name}: " + ("migrated to" if name in MOVING else "ended") in told


def judge(lab: Lab, name: str, before: LabVMI, targets: set[str]) -> None:
    """It is where it should be, as the instance it should be, with the address it had."""
    if name in MOVING:
        after = control.get(LabVMI, name)
        assert after.metadata.uid == before.metadata.uid
        assert after.status.node_name in targets
    else:
        after = control.await_vm(name, besides=before.metadata.uid)
    assert after.status.node_name in OTHERS
    assert guest_ip(after) == guest_ip(before)
    assert_settled(lab, name, guest_ip(after))
    jobs = [one for one in control.listing(LabMigration) if one.spec.vmi_name == name]
    assert len(jobs) == (name in MOVING)


def test_a_vm_that_would_hold_up_a_drain_is_named_before(lab: Lab) -> None:
    """As kubectl finds out: it asks for ever."""
    with running(lab, {"drain-stuck": (HARD, False)}):
        said = plan_of(lab, "node1", ok=False)
        assert "default/drain-stuck" in said
        assert "blocks" in said
        assert "does not use masquerade" in said
        try:
            words = lab.kubectl("drain", "node1", "--force", "--timeout=6s", ok=False)
        finally:
            lab.kubectl("uncordon", "node1")
        assert "drain-stuck is configured with an eviction strategy but is not live" in words
        assert control.get(LabVMI, "drain-stuck").status.node_name == "node1"
