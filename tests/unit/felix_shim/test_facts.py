"""What the API's objects make of an endpoint, whatever order they come in."""

from __future__ import annotations

import itertools

import pytest

from felix_shim.endpoints import parse_endpoint
from felix_shim.events import Instance, Migration
from felix_shim.facts import VirtualMachines, derive, update
from felix_shim.migration import Facts
from felix_shim.model import Endpoint, Proof, Role
from libtortie.datastore.port import Record
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import NODE, endpoint_record, instance, migration


def endpoint(record: Record) -> Endpoint:
    assert isinstance(record.value, WorkloadEndpoint)
    return parse_endpoint(record.value)


TARGET = endpoint(endpoint_record("tgt", migration="m1"))
SOURCE = endpoint(endpoint_record("src"))


def facts(who: Endpoint, *objects: Migration | Instance) -> Facts:
    machines = VirtualMachines()
    for one in objects:
        machines.put(one)
    return derive(who, machines, NODE)


@pytest.mark.parametrize(
    "phase", ["", "Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running"]
)
def test_a_live_migration_makes_its_pod_the_target(phase: str) -> None:
    found = facts(TARGET, migration("m1", phase))
    assert (found.role, found.final, found.migration_uid) == (Role.TARGET, False, "m1")


@pytest.mark.parametrize(
    "job",
    [
        migration("m1", "Succeeded"),
        migration("m1", "Failed"),
        migration("m2"),
        migration("m1", vmi="another"),
        migration("m1", namespace="elsewhere"),
    ],
)
def test_any_other_migration_does_not(job: Migration) -> None:
    assert facts(TARGET, job).role is not Role.TARGET


def test_a_pod_that_is_no_launcher_is_no_target() -> None:
    record = endpoint_record("hp", migration="m1", labels={})
    assert isinstance(record.value, WorkloadEndpoint)
    labels = {**record.value.metadata.labels, "kubevirt.io": "hotplug-disk"}
    metadata = record.value.metadata.model_copy(update={"labels": labels})
    plain = parse_endpoint(record.value.model_copy(update={"metadata": metadata}))
    assert facts(plain, migration("m1")).role is Role.NONE


def test_the_migrations_own_status_names_the_source() -> None:
    assert facts(SOURCE, migration("m1", source="src")).role is Role.SOURCE
    assert facts(SOURCE, migration("m1", "Succeeded", source="src")).role is Role.SOURCE
    assert facts(SOURCE, migration("m1", "Failed", source="src")).role is Role.NONE
    assert facts(SOURCE, migration("m1", source="other")).role is Role.NONE


def test_the_vmi_names_the_source_of_a_live_migration_only() -> None:
    state = {"sourcePod": "src", "migrationUid": "m1"}
    vmi = instance(NODE, state=state)
    assert facts(SOURCE, migration("m1"), vmi).role is Role.SOURCE
    assert facts(SOURCE, migration("m2"), vmi).role is Role.NONE
    assert facts(SOURCE, vmi).role is Role.NONE


def test_a_target_that_settled_becomes_the_source_of_the_next_migration() -> None:
    found = facts(TARGET, migration("m1", "Succeeded", source="src"), migration("m2", source="tgt"))
    assert (found.role, found.final) == (Role.SOURCE, False)


def test_target_goes_before_source() -> None:
    found = facts(TARGET, migration("m1"), migration("m0", "Succeeded", source="tgt"))
    assert found.role is Role.TARGET


def test_no_migration_at_all_is_final() -> None:
    assert facts(SOURCE).final
    assert facts(SOURCE, migration("m1", "Failed")).final


@pytest.mark.parametrize(
    ("vmi", "proof"),
    [
        (None, Proof.UNKNOWN),
        (instance(""), Proof.UNKNOWN),
        (instance(NODE), Proof.HERE),
        (instance("n2"), Proof.ELSEWHERE),
        (instance(NODE, uid="another-run"), Proof.ELSEWHERE),
        (instance(NODE, pods={"uid-of-src": NODE}), Proof.HERE),
        (instance(NODE, pods={"uid-of-src": NODE, "uid-of-tgt": "n2"}), Proof.HERE),
        (instance(NODE, pods={"uid-of-new": NODE}), Proof.ELSEWHERE),
        (instance(NODE, pods={"uid-of-tgt": "n2"}), Proof.HERE),
    ],
)
def test_proof(vmi: Instance | None, proof: Proof) -> None:
    assert facts(SOURCE, *([vmi] if vmi else [])).proof is proof


def test_a_pod_that_is_no_vm_has_no_facts() -> None:
    pod = endpoint(endpoint_record("web", vm=False))
    assert facts(pod, migration("m1"), instance(NODE)) == Facts()


def test_order_plays_no_part() -> None:
    objects: list[Migration | Instance] = [
        migration("m1"),
        migration("m0", "Succeeded", source="src"),
        migration("m9", "Failed", source="tgt"),
        instance(NODE),
    ]
    wanted = facts(TARGET, *objects)
    assert all(facts(TARGET, *order) == wanted for order in itertools.permutations(objects))


def test_a_complete_list_forgets_the_rest() -> None:
    machines = VirtualMachines()
    machines.put(migration("m1"))
    machines.put(instance(NODE))
    assert machines.keep_migrations(frozenset()) == {("default", "vm1")}
    assert machines.migrations_in_sync and not machines.instances_in_sync
    assert derive(TARGET, machines, NODE).role is Role.NONE
    assert derive(TARGET, machines, NODE).proof is Proof.HERE
    machines.keep_instances(frozenset())
    assert derive(TARGET, machines, NODE).proof is Proof.UNKNOWN


@pytest.mark.parametrize("phase", ["Scheduling", "Running", "Succeeded", "Failed"])
@pytest.mark.parametrize("witness", ["migration", "vmi", "vmi, migration deleted"])
def test_a_pod_beside_which_another_is_named_is_refused(phase: str, witness: str) -> None:
    job = migration("m1", phase, source="src", target="real" if witness == "migration" else "")
    state = {"migrationUid": "m1", "targetPod": "real"} if witness != "migration" else {}
    here = instance(NODE, state=state, pods={"uid-of-src": NODE, "uid-of-tgt": NODE})
    objects = [here] if witness.endswith("deleted") else [job, here]
    found = facts(TARGET, *objects)
    assert (found.role, found.refused, found.proof) == (Role.NONE, True, Proof.ELSEWHERE)
    assert found.migration_uid == ""
    assert not facts(SOURCE, *objects).refused
    assert facts(SOURCE, *objects).proof is Proof.HERE


def test_a_pod_that_is_named_and_one_that_nobody_names_are_targets() -> None:
    named = instance("n0", state={"migrationUid": "m1", "targetPod": "tgt"})
    assert facts(TARGET, migration("m1"), named).role is Role.TARGET
    assert facts(TARGET, migration("m1", target="tgt")).role is Role.TARGET
    before = instance("n0", state={"migrationUid": "m0", "targetPod": "x", "sourcePod": "y"})
    found = facts(TARGET, migration("m1"), before)
    assert (found.role, found.refused) == (Role.TARGET, False), "an earlier migration's hand-off"


def test_a_vmi_of_another_run_names_nobody() -> None:
    stranger = instance("n0", uid="run-0", state={"migrationUid": "m1", "targetPod": "real"})
    assert facts(TARGET, migration("m1"), stranger).role is Role.TARGET


def test_the_label_alone_makes_no_target() -> None:
    """Only the pod that got IPAM's seat at ADD has the annotation."""
    label = {"kubevirt.io/migrationJobUID": "m1"}
    rival = endpoint(endpoint_record("rival", labels=label))
    assert facts(rival, migration("m1")).role is Role.NONE


def test_a_would_be_target_that_took_no_part_in_the_last_hand_off_has_not_the_vm() -> None:
    state = {"migrationUid": "m2", "sourcePod": "src", "targetPod": "real"}
    pods = dict.fromkeys(["uid-of-src", "uid-of-real", "uid-of-tgt"], NODE)
    here = instance(NODE, state=state, pods=pods)
    assert facts(TARGET, here).proof is Proof.ELSEWHERE
    assert facts(SOURCE, here).proof is Proof.HERE


HAND_OFF = {"migrationUid": "m2", "sourcePod": "gone", "targetPod": "src", "targetNode": NODE}


def test_of_two_pods_of_the_vms_node_the_last_hand_off_says_which_has_it() -> None:
    """A to B to A, and A's first pod lingers."""
    pods = dict.fromkeys(["uid-of-src", "uid-of-old"], NODE)
    here = instance(NODE, state={**HAND_OFF, "sourceNode": "n2"}, pods=pods)
    assert facts(SOURCE, here).proof is Proof.HERE
    assert facts(endpoint(endpoint_record("old")), here).proof is Proof.ELSEWHERE


@pytest.mark.parametrize(
    ("ended", "holder"),
    [({}, "src"), ({"completed": True}, "tgt"), ({"completed": True, "failed": True}, "src")],
)
def test_of_source_and_target_on_one_node_the_ended_hand_off_says_which(
    ended: dict[str, bool], holder: str
) -> None:
    state = {
        "migrationUid": "m1",
        "sourcePod": "src",
        "targetPod": "tgt",
        "sourceNode": NODE,
        "targetNode": NODE,
        **ended,
    }
    for pod in (SOURCE, TARGET):
        wanted = Proof.HERE if pod.id.pod == holder else Proof.ELSEWHERE
        assert facts(pod, instance(NODE, state=state)).proof is wanted


@pytest.mark.parametrize(
    ("phase", "failed", "proof"),
    [
        ("Succeeded", False, Proof.ELSEWHERE),
        ("Succeeded", True, Proof.HERE),
        ("Running", False, Proof.HERE),
    ],
)
def test_an_instance_that_was_sent_to_another_cluster_is_not_where_it_was(
    phase: str, failed: bool, proof: Proof
) -> None:
    sent = instance(NODE, state={"migrationUid": "m1", "sourcePod": "src", "failed": failed})
    status = sent.status.model_copy(update={"phase": phase})
    assert facts(SOURCE, sent.model_copy(update={"status": status})).proof is proof


def test_the_word_that_proof_rests_on_is_the_last_hand_off_or_another_run() -> None:
    assert facts(SOURCE, instance(NODE)).word == ""
    assert facts(SOURCE, instance(NODE, state={"migrationUid": "m3"})).word == "m3"
    assert facts(SOURCE, instance(NODE, uid="another-run")).word == "another-run"


def test_until_the_instances_are_listed_the_old_proof_and_its_word_hold() -> None:
    before = Facts(proof=Proof.ELSEWHERE, word="m0")
    machines = VirtualMachines(migrations_in_sync=True)
    found = update(before, SOURCE, machines, NODE)
    assert (found.proof, found.word) == (Proof.ELSEWHERE, "m0")
    machines.instances_in_sync = True
    assert update(before, SOURCE, machines, NODE).proof is Proof.UNKNOWN
