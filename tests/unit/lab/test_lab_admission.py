"""KubeVirt's webhooks in the lab's API server: what they refuse, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from lab import rendering, seed
from lab.admission import Admission
from lab.apiserver.api import Api
from lab.apiserver.errors import ApiError, Json
from lab.apiserver.subresources import create_below
from tests.fakes.lab_world import launcher, vmi

EVICTION = 'admission webhook "virt-launcher-eviction-interceptor.kubevirt.io" denied the request: '
CREATION = 'admission webhook "migration-create-validator.kubevirt.io" denied the request: '
MARKED = 'Eviction triggered evacuation of VMI "default/vm"'


@pytest.fixture
def api() -> Api:
    found = Api()
    found.bootstrap()
    found.hooks.append(Admission(found))
    return found


def kubevirt(api: Api, plural: str) -> Any:
    return api.kind("kubevirt.io", "v1", plural)


def put_vmi(
    api: Api, *, strategy: str = "LiveMigrate", movable: bool = True, **status: Any
) -> None:
    """A running instance on node1."""
    kind = kubevirt(api, "virtualmachineinstances")
    body = seed.vmi_body("vm", "default", "", {})
    body["spec"]["evictionStrategy"] = strategy or None
    api.create(kind, "default", body)
    verdict: Json = {"type": "LiveMigratable", "status": "True" if movable else "False"}
    if not movable:
        verdict |= {"reason": "DisksNotLiveMigratable", "message": "no"}
    found = {"phase": "Running", "nodeName": "node1", "conditions": [verdict], **status}
    api.patch(kind, "default", "vm", {"status": found}, subresource="status")


def put_pod(
    api: Api, *, where: str = "node1", phase: str = "Running", hotplug: bool = False
) -> str:
    """A launcher (or attachment) pod of the instance; returns its name."""
    kind = api.kind("", "v1", "pods")
    body = rendering.launcher_body(vmi(), None)
    if hotplug:
        body = rendering.attachment_body(vmi(), launcher("pod-1", "node1"))
    del body["metadata"]["ownerReferences"]
    body["spec"]["nodeName"] = where
    name = api.create(kind, "default", body)["metadata"]["name"]
    api.patch(kind, "default", name, {"status": {"phase": phase}}, subresource="status")
    return str(name)


def evict(api: Api, name: str, **options: Any) -> str:
    """Evict a pod: empty when it was let through, else the denial, whose code is checked."""
    body = {"metadata": {"name": name, "namespace": "default"}, **options}
    kind = api.kind("", "v1", "pods")
    eviction = kind.subresource("eviction")
    assert eviction is not None
    try:
        create_below(api, kind, ("default", name), eviction, body, dry_run=False)
    except ApiError as error:
        assert error.code == 429
        assert error.reason == "TooManyRequests"
        assert error.message.startswith(EVICTION)
        return error.message.removeprefix(EVICTION)
    return ""


def mark(api: Api) -> str:
    found = api.get(kubevirt(api, "virtualmachineinstances"), "default", "vm")
    return str(found["status"].get("evacuationNodeName", ""))


def test_an_eviction_marks_the_instance_once(api: Api) -> None:
    put_vmi(api)
    name = put_pod(api)
    assert evict(api, name) == MARKED
    assert mark(api) == "node1"
    assert evict(api, name) == f"Evacuation in progress: {MARKED}"


def test_a_dry_run_marks_nothing(api: Api) -> None:
    put_vmi(api)
    assert evict(api, put_pod(api), deleteOptions={"dryRun": ["All"]}) == MARKED
    assert mark(api) == ""


@pytest.mark.parametrize(
    ("strategy", "movable", "answer"),
    [
        ("LiveMigrate", True, MARKED),
        (
            "LiveMigrate",
            False,
            "VMI vm is configured with an eviction strategy but is not live-migratable",
        ),
        ("LiveMigrateIfPossible", True, MARKED),
        ("LiveMigrateIfPossible", False, ""),
        ("External", True, MARKED),
        ("External", False, MARKED),
        ("None", True, ""),
        ("", True, ""),
    ],
)
def test_an_eviction_strategy_decides(api: Api, strategy: str, movable: bool, answer: str) -> None:
    put_vmi(api, strategy=strategy, movable=movable)
    assert evict(api, put_pod(api)) == answer
    assert mark(api) == ("node1" if answer == MARKED else "")


def test_a_target_is_not_evicted(api: Api) -> None:
    put_vmi(api)
    assert evict(api, put_pod(api, where="node2")) == "Eviction request for target Pod"
    assert mark(api) == ""


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_launcher_may_go(api: Api, phase: str) -> None:
    put_vmi(api)
    assert evict(api, put_pod(api, phase=phase)) == ""


def test_an_attachment_pod_is_kept_with_its_instance(api: Api) -> None:
    put_vmi(api, strategy="")
    name = put_pod(api, hotplug=True)
    assert evict(api, name) == (
        f"cannot evict hotplug pod: {name} associated with running vmi: vm in namespace default"
    )


def test_other_pods_and_launchers_of_nobody_may_go(api: Api) -> None:
    pods = api.kind("", "v1", "pods")
    api.create(pods, "default", seed.pod_body("plain", "default", "node1"))
    assert evict(api, "plain") == ""
    assert evict(api, put_pod(api)) == ""


def migrate(api: Api, vm: str = "vm", name: str = "job") -> str:
    """Ask for a migration: empty when it was let in, else the denial, whose code is checked."""
    kind = kubevirt(api, "virtualmachineinstancemigrations")
    body = seed.migration_body(name, "default", vm, node="", annotations={})
    try:
        api.create(kind, "default", body)
    except ApiError as error:
        assert error.code == 400
        assert error.message.startswith(CREATION)
        return error.message.removeprefix(CREATION)
    return ""


def test_a_migration_is_let_in_with_label_and_finalizer(api: Api) -> None:
    put_vmi(api)
    assert migrate(api) == ""
    kind = kubevirt(api, "virtualmachineinstancemigrations")
    meta = api.get(kind, "default", "job")["metadata"]
    assert meta["labels"] == {"kubevirt.io/vmi-name": "vm"}
    assert meta["finalizers"] == ["kubevirt.io/migrationJobFinalize"]


def test_migrations_are_refused_in_kubevirts_words(api: Api) -> None:
    assert migrate(api) == 'the VMI "default/vm" does not exist'
    put_vmi(api, movable=False)
    assert migrate(api) == ("Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: no")


def test_a_final_instance_does_not_migrate(api: Api) -> None:
    put_vmi(api, phase="Failed")
    assert migrate(api) == "Cannot migrate VMI in finalized state."


def test_one_migration_at_a_time(api: Api) -> None:
    put_vmi(api)
    assert migrate(api) == ""
    kind = kubevirt(api, "virtualmachineinstancemigrations")
    uid = api.get(kind, "default", "job")["metadata"]["uid"]
    assert migrate(api, name="other") == (
        f"in-flight migration detected. Active migration job ({uid}) is currently already in"
        " progress for VMI vm."
    )
    api.patch(kind, "default", "job", {"status": {"phase": "Failed"}}, subresource="status")
    assert migrate(api, name="other") == ""


def test_an_instance_of_the_docs_gets_what_it_leaves_out(api: Api) -> None:
    kind = kubevirt(api, "virtualmachineinstances")
    spec = {"domain": {"devices": {}, "resources": {"requests": {"memory": "64M"}}}}
    api.create(kind, "default", {"metadata": {"name": "tiny"}, "spec": spec})
    found = api.get(kind, "default", "tiny")
    assert found["metadata"]["finalizers"] == ["foregroundDeleteVirtualMachine"]
    assert found["spec"]["networks"] == [{"name": "default", "pod": {}}]
    assert found["spec"]["domain"]["devices"]["interfaces"] == [{"name": "default", "bridge": {}}]
    assert found["spec"]["domain"]["resources"] == {"requests": {"memory": "64M"}}
    bare = {"domain": {"devices": {"autoattachPodInterface": False}}}
    api.create(kind, "default", {"metadata": {"name": "bare"}, "spec": bare})
    assert api.get(kind, "default", "bare")["spec"] == bare


def test_nonsense_is_refused_and_no_bug(api: Api) -> None:
    kind = kubevirt(api, "virtualmachineinstancemigrations")
    with pytest.raises(ApiError, match="unreadable fields: spec") as caught:
        api.create(kind, "default", {"metadata": {"name": "x"}, "spec": "nonsense"})
    assert caught.value.code == 400
