"""`tortiectl cpu-models` against an API server: exactly what it prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.apiserver.server import ApiServer
from tests.fakes.kubernetes_store import put_object
from tests.fakes.vm_api import vm_api
from tests.fakes.vm_ctl import Ctl
from tests.unit.tortiectl.test_cpu_models import NODES


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with vm_api() as running:
        control = {"kubernetes.io/hostname": "control"}
        for name, labels in {**NODES, "twin": NODES["old"], "control": control}.items():
            put_object(running, "nodes", {"metadata": {"name": name, "labels": labels}})
        yield running


@pytest.fixture
def ctl(server: ApiServer, tmp_path: Path) -> Ctl:
    return Ctl(server, tmp_path)


def test_common_models_one_a_line_best_first(ctl: Ctl) -> None:
    shown = ctl("cpu-models", "--common").stdout
    assert shown.splitlines() == [
        "Haswell-noTSX-IBRS", "Haswell-noTSX", "IvyBridge-IBRS", "IvyBridge", "SandyBridge-IBRS",
        "SandyBridge", "Westmere-IBRS", "Westmere", "Nehalem-IBRS", "Nehalem", "Penryn",
    ]  # fmt: skip
    assert ctl("cpu-models", "new", "--common").stdout.splitlines()[0] == "Skylake-Client-IBRS"


def test_host_models_a_line_a_node(ctl: Ctl) -> None:
    assert ctl("cpu-models", "--host-model").stdout == (
        "new Skylake-Client-IBRS clflushopt,pdcm\n"
        "old Haswell-noTSX-IBRS -\n"
        "twin Haswell-noTSX-IBRS -\n"
    )
    assert ctl("cpu-models", "--host-model", "old", "new").stdout == (
        "old Haswell-noTSX-IBRS abm,arat,f16c\nnew Skylake-Client-IBRS clflushopt,pdcm\n"
    )
    assert ctl("cpu-models", "--host-model", "old").stdout == "old Haswell-noTSX-IBRS -\n"


def test_both_with_the_reason(ctl: Ctl) -> None:
    shown = ctl("cpu-models").stdout
    assert shown.startswith("Common named models, best first: Haswell-noTSX-IBRS, ")
    assert "nowhere: the nearest, old, lacks label cpu-feature.node.kubevirt.io/" in shown
    assert "LiveMigratable does not consider CPUs" in shown
    document = json.loads(ctl("cpu-models", "-o", "json").stdout)
    assert [one["targets"] for one in document["nodes"]] == [[], ["new", "twin"], ["new", "old"]]


def test_refusals(ctl: Ctl, server: ApiServer) -> None:
    assert "either --common or" in ctl("cpu-models", "--common", "--host-model", code=1).output
    shown = ctl("cpu-models", "newer", code=1).output
    assert "there is no node newer; nodes are control, new, old, twin" in shown
    done = ctl("cpu-models", "new", "control", "--common", code=2)
    assert done.stdout == ""
    assert "no named model can run on all of these nodes" in done.stderr
    for name in (*NODES, "twin"):
        body = {"metadata": {"name": name, "labels": {}}}
        put_object(server, "nodes", body)
    assert "no node has KubeVirt's labels" in ctl("cpu-models", code=1).output
