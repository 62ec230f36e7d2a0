"""Which launcher pod runs a VM: by where its guest is, never by age or order."""

from __future__ import annotations

from typing import Any

import pytest

from libtortie.errors import Conflict, NotFound
from tests.fakes.vm_cluster import launcher, vmi
from tortiectl.kubevirt.launchers import active_launcher, launchers_of
from tortiectl.kubevirt.objects import VMI, Pod

WEB = vmi("web", 1, "n2")


def pod(suffix: str, node: str, phase: str = "Running", **meta: Any) -> Pod:
    body = launcher(WEB, suffix, node)
    body["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", **meta}
    body["status"]["phase"] = phase
    return Pod.model_validate(body)


def instance(**status: Any) -> VMI:
    return VMI.model_validate({**WEB, "status": {**WEB["status"], **status}})


GOING = {"deletionTimestamp": "2026-01-01T00:01:00Z"}


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((pod("old", "n1"),), id="a source that lingers"),
        pytest.param((pod("new", "n3"),), id="a target that waits"),
        pytest.param((pod("x", "n2", "Failed"), pod("y", "n2", "Succeeded")), id="finished"),
        pytest.param((pod("x", "n2", "Pending"),), id="not started"),
        pytest.param((pod("x", "n2", **GOING),), id="being deleted"),
    ],
)
def test_the_one_where_the_guest_is(others: tuple[Pod, ...]) -> None:
    own = pod("own", "n2")
    for pods in ((own, *others), (*others, own)):
        assert active_launcher(instance(), pods) is own


def test_the_only_one_counts_although_it_is_being_deleted() -> None:
    going = pod("own", "n2", **GOING)
    assert active_launcher(instance(), [going]) is going


def test_the_target_that_kubevirt_names_wins() -> None:
    state = {"targetNode": "n2", "targetPod": "virt-launcher-web-two"}
    pods = [pod("one", "n2"), pod("two", "n2")]
    found = active_launcher(instance(migrationState=state), pods)
    assert found.metadata.name == "virt-launcher-web-two"


def test_two_that_may_be_it_are_named() -> None:
    with pytest.raises(Conflict, match="virt-launcher-web-one, virt-launcher-web-two"):
        active_launcher(instance(), [pod("two", "n2"), pod("one", "n2")])
    with pytest.raises(NotFound, match="no running launcher pod on node n2"):
        active_launcher(instance(), [pod("one", "n1")])


def test_names_that_share_a_label_are_told_apart_by_uid() -> None:
    """A label holds 63 characters: two VMs' launchers may have the same."""
    other = vmi("w" * 70, 2, "n2")
    stranger = Pod.model_validate(launcher(other))
    elsewhere = pod("own", "n2", namespace="another")
    assert launchers_of(instance(), [stranger, elsewhere]) == []
