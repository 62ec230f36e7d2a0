"""CPU models of nodes: in common and best first, host models and what only one node has."""

from __future__ import annotations

import pytest

from tests.fakes.vm_cluster import node_labels
from tortiectl.kubevirt.compare import common_models, compare, runs_vms
from tortiectl.kubevirt.cpu import Needs, Wish, needs
from tortiectl.kubevirt.models import best_first

SKYLAKE = (
    "Broadwell", "Broadwell-IBRS", "Broadwell-noTSX", "Broadwell-noTSX-IBRS", "Haswell",
    "Haswell-IBRS", "Haswell-noTSX", "Haswell-noTSX-IBRS", "IvyBridge", "IvyBridge-IBRS",
    "Nehalem", "Nehalem-IBRS", "Penryn", "SandyBridge", "SandyBridge-IBRS", "Skylake-Client",
    "Skylake-Client-IBRS", "Skylake-Client-noTSX-IBRS", "Westmere", "Westmere-IBRS",
)  # fmt: skip
HASWELL = (
    "Haswell-noTSX", "Haswell-noTSX-IBRS", "IvyBridge", "IvyBridge-IBRS", "Nehalem",
    "Nehalem-IBRS", "Penryn", "SandyBridge", "SandyBridge-IBRS", "Westmere", "Westmere-IBRS",
)  # fmt: skip


def labels(host: str, models: tuple[str, ...], required: str, features: str = "") -> dict[str, str]:
    found = {"kubevirt.io/schedulable": "true", f"host-model-cpu.node.kubevirt.io/{host}": "true"}
    for name in models:
        found[f"cpu-model.node.kubevirt.io/{name}"] = "true"
        found[f"cpu-model-migration.node.kubevirt.io/{name}"] = "true"
    found[f"cpu-model-migration.node.kubevirt.io/{host}"] = "true"
    for name in required.split():
        found[f"host-model-required-features.node.kubevirt.io/{name}"] = "true"
    for name in (required + " " + features).split():
        found[f"cpu-feature.node.kubevirt.io/{name}"] = "true"
    return found


NODES = {
    "old": labels("Haswell-noTSX-IBRS", HASWELL, "abm arat f16c ibpb"),
    "new": labels("Skylake-Client-IBRS", (*SKYLAKE, "Haswell-noTSX-IBRS"), "clflushopt ibpb pdcm",
                  "abm arat f16c"),
}  # fmt: skip


def test_models_that_all_can_run_the_best_first() -> None:
    assert common_models(NODES) == [
        "Haswell-noTSX-IBRS", "Haswell-noTSX", "IvyBridge-IBRS", "IvyBridge", "SandyBridge-IBRS",
        "SandyBridge", "Westmere-IBRS", "Westmere", "Nehalem-IBRS", "Nehalem", "Penryn",
    ]  # fmt: skip
    assert common_models({}) == []
    assert common_models({**NODES, "amd": {}}) == []


@pytest.mark.parametrize(
    "ordered",
    [
        ("GraniteRapids", "SapphireRapids", "Icelake-Server", "Cascadelake-Server-noTSX",
         "Skylake-Server-IBRS", "Skylake-Server-noTSX-IBRS", "Skylake-Server", "Broadwell"),
        ("EPYC-Turin", "EPYC-Genoa", "EPYC-Milan", "EPYC-Rome", "EPYC-IBPB", "EPYC", "Opteron_G5",
         "Opteron_G1"),
        ("SapphireRapids-v2", "SapphireRapids-v1", "SapphireRapids", "kvm64", "qemu32"),
        ("NovaLake", "DiamondRapids"),
    ],
)  # fmt: skip
def test_best_first(ordered: tuple[str, ...]) -> None:
    assert best_first(reversed(ordered)) == list(ordered)


def test_host_models_and_what_only_one_node_requires() -> None:
    new, old = compare(NODES)
    assert (old.node, old.host_model, old.only_here) == (
        "old", "Haswell-noTSX-IBRS", ("abm", "arat", "f16c"),
    )  # fmt: skip
    assert (new.node, new.host_model, new.only_here) == (
        "new", "Skylake-Client-IBRS", ("clflushopt", "pdcm"),
    )  # fmt: skip
    assert (old.targets, old.reason) == (("new",), "")
    assert new.targets == ()
    assert (
        new.reason
        == "the nearest, old, lacks label cpu-feature.node.kubevirt.io/clflushopt and 2 more"
    )


def test_an_obsolete_host_model_is_no_target() -> None:
    twins = {"a": dict(NODES["old"]), "b": dict(NODES["old"])}
    assert [one.targets for one in compare(twins)] == [("b",), ("a",)]
    twins["b"]["node-labeller.kubevirt.io/obsolete-host-model"] = "true"
    first, second = compare(twins)
    assert first.reason == "the nearest, b, its host model is obsolete"
    assert second.targets == ("a",)


def test_nodes_without_kubevirt_are_none() -> None:
    assert not runs_vms({"kubernetes.io/hostname": "control"})
    assert not runs_vms({"kubevirt.io/schedulable": "false"})
    assert runs_vms(node_labels())
    assert compare({"bare": {}})[0].reason.startswith("the node has no host-model-cpu label")


def test_labels_that_say_false_do_not_count() -> None:
    false = dict.fromkeys(NODES["old"], "false")
    assert common_models({"a": false}) == []


def test_a_second_migration_goes_by_the_labels_of_the_pod() -> None:
    pod = {"cpu-model-migration.node.kubevirt.io/Haswell": "true", "kubernetes.io/arch": "amd64"}
    wanted = needs(Wish("host-model"), NODES["new"], pod)
    assert wanted == Needs((("cpu-model-migration.node.kubevirt.io/Haswell", "true"),))


def test_features_of_a_named_model() -> None:
    wish = Wish("Haswell", {"vmx": "require", "pcid": "", "hle": "forbid", "rtm": "optional"})
    wanted = needs(wish, {"cpu-vendor.node.kubevirt.io/Intel": "true"}, {})
    assert [key for key, _ in wanted.labels] == [
        "cpu-feature.node.kubevirt.io/pcid",
        "cpu-feature.node.kubevirt.io/vmx",
        "cpu-model.node.kubevirt.io/Haswell",
        "cpu-vendor.node.kubevirt.io/Intel",
    ]
    assert wanted.without == ("cpu-feature.node.kubevirt.io/hle",)
    assert wanted.missing({"cpu-feature.node.kubevirt.io/hle": "true"})[-1].startswith("has label")
