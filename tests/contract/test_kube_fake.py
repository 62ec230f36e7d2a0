"""What only the fake has: objects put whole, and failures on order."""

from __future__ import annotations

import pytest

from libtortie.errors import NotFound, Unavailable
from libtortie.kube.objects import (
    Meta,
    MigrationState,
    OwnerRef,
    Pod,
    PodSpec,
    PodStatus,
    VirtualMachineInstance,
    VMIStatus,
)
from tests.fakes.kube import FakeKube


def test_views_are_put_and_read_whole() -> None:
    owner = OwnerRef(kind="VirtualMachineInstance", name="vm", uid="u-vmi", controller=True)
    pod = Pod(
        metadata=Meta(name="p", namespace="shop", uid="u-1", owner_references=(owner,)),
        spec=PodSpec(node_name="n1"),
        status=PodStatus.model_validate(
            {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
        ),
    )
    vmi = VirtualMachineInstance(
        metadata=Meta(name="vm", namespace="shop", uid="u-vmi"),
        status=VMIStatus(
            node_name="n1",
            active_pods={"u-1": "n1"},
            migration_state=MigrationState(migration_uid="m", completed=True),
        ),
    )
    fake = FakeKube(pod, vmi)
    for put in (pod, vmi):
        got = fake.get(type(put), put.metadata.name, "shop")
        version = got.metadata.resource_version
        assert int(version) > 0
        wanted = put.metadata.model_copy(update={"resource_version": version})
        assert got == put.model_copy(update={"metadata": wanted})


def test_dicts_are_put_too_and_keep_their_uid() -> None:
    fake = FakeKube()
    body = {"metadata": {"name": "p", "namespace": "shop"}, "status": {"phase": "Pending"}}
    fake.put(body, Pod)
    uid = fake.get(Pod, "p", "shop").metadata.uid
    fake.put({**body, "status": {"phase": "Failed"}}, Pod)
    again = fake.get(Pod, "p", "shop")
    assert again.finished
    assert again.metadata.uid == uid != ""
    with pytest.raises(TypeError):
        fake.put(body)
    fake.remove(Pod, "p", "shop")
    with pytest.raises(KeyError):
        fake.remove(Pod, "p", "shop")


def test_failures_hit_what_they_name_and_only_so_often() -> None:
    fake = FakeKube(Pod(metadata=Meta(name="p", namespace="shop")))
    fake.fail(Unavailable("away"), verb="get", plural="pods", times=2)
    assert len(fake.list(Pod)[0]) == 1
    for _ in range(2):
        with pytest.raises(Unavailable, match="away"):
            fake.get(Pod, "p", "shop")
    assert fake.get(Pod, "p", "shop").metadata.name == "p"
    fake.fail(Unavailable("away"), times=5)
    fake.heal()
    with pytest.raises(NotFound):
        fake.get(Pod, "q", "shop")
    assert fake.calls[0] == ("list", "pods")
