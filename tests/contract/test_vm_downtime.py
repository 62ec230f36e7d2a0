"""`tortiectl vm downtime` with an API server, and a kubectl that tells what it was asked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lab.apiserver import kubeconfig
from lab.apiserver.server import ApiServer
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Pod as LauncherPod
from libtortie.kube.objects import VirtualMachine, VirtualMachineInstance
from tests.fakes.kubernetes_store import kubernetes_api
from tests.unit.tortiectl.test_downtime_domjobinfo import LIBVIRT_9
from tortiectl.cli import main

KUBECTL = """#!/bin/sh
printf '%s\\n' "$@" > "{asked}"
cat "{answer}"
exit $(cat "{status}")
"""
SOCKET = "qemu+unix:///session?socket=/var/run/libvirt/virtqemud-sock"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as running:
        yield running


class Ctl:
    """tortiectl as a user on whose PATH is a kubectl of the test's."""

    def __init__(self, server: ApiServer, root: Path) -> None:
        self.client = HttpKubeClient(direct(server.url))
        self.config = root / "kubeconfig"
        kubeconfig.write(self.config, kubeconfig.render(server.url, {}, None))
        self.asked, self.answer, self.status = root / "asked", root / "answer", root / "status"
        self.programs = root / "bin"
        self.programs.mkdir()
        self.kubectl(LIBVIRT_9)

    def kubectl(self, answer: str, status: int = 0) -> None:
        self.answer.write_text(answer)
        self.status.write_text(str(status))
        script = self.programs / "kubectl"
        names = {"asked": self.asked, "answer": self.answer, "status": self.status}
        script.write_text(KUBECTL.format(**names))
        script.chmod(0o755)

    def __call__(self, *args: str, code: int = 0) -> Result:
        environ = {
            "KUBECONFIG": str(self.config),
            "DATASTORE_TYPE": "kubernetes",
            "PATH": f"{self.programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
        }
        done = CliRunner().invoke(main, args, env=environ, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done

    def vmi(self, name: str = "web", **status: Any) -> str:
        """A VMI; its UID."""
        meta = {"name": name, "namespace": "shop"}
        body = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": meta}
        made = self.client.create(VirtualMachineInstance, {**body, "spec": {}})
        patch = {"status": {"phase": "Running", "nodeName": "n2", **status}}
        self.client.patch(VirtualMachineInstance, name, "shop", patch, subresource="status")
        return made.metadata.uid

    def launcher(self, name: str, uid: str, node: str, phase: str = "Running") -> None:
        labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid}
        meta = {"name": name, "namespace": "shop", "labels": labels}
        body = {"metadata": meta, "spec": {"nodeName": node, "containers": [{"name": "compute"}]}}
        self.client.create(LauncherPod, body)
        patch = {"status": {"phase": phase}}
        self.client.patch(LauncherPod, name, "shop", patch, subresource="status")


MOVED = {"sourceNode": "n1", "targetNode": "n2", "targetPod": "target", "completed": True}


@pytest.fixture
def ctl(server: ApiServer, tmp_path: Path) -> Iterator[Ctl]:
    made = Ctl(server, tmp_path)
    yield made
    made.client.close()


def test_the_target_is_asked_although_the_source_still_says_running(ctl: Ctl) -> None:
    uid = ctl.vmi(migrationState=MOVED)
    ctl.launcher("source", uid, "n1")
    ctl.launcher("target", uid, "n2")
    ctl.launcher("failed", uid, "n2", "Failed")
    shown = ctl("vm", "downtime", "shop/web").output
    assert shown.startswith("shop/web: Incoming migration, completed, by libvirt\n")
    assert "downtime           338 ms" in shown
    asked = ctl.asked.read_text().splitlines()
    assert asked == [
        "--kubeconfig", str(ctl.config), "-n", "shop", "exec", "target", "-c", "compute", "--",
        "virsh", "-c", SOCKET, "domjobinfo", "--completed", "--keep-completed", "shop_web",
    ]  # fmt: skip


def test_json_records_and_pictures(ctl: Ctl, tmp_path: Path) -> None:
    uid = ctl.vmi(migrationState=MOVED)
    ctl.launcher("target", uid, "n2")
    rows = [{"vm": "web", "phase": "Succeeded", "network_downtime_ms": 4.1}]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"migrations": rows}))
    for name in ("plot.svg", "plot.html"):
        done = ctl(
            "vm", "downtime", "web", "-n", "shop", "-o", "json", "--records", str(report),
            "--plot", str(tmp_path / name),
        )  # fmt: skip
        found = json.loads(done.stdout)
        assert (found["vm"], found["downtime_ms"], found["total_time_ms"]) == (
            "shop/web",
            338,
            6531,
        )
        assert (found["network_downtime_ms"], found["iterations"]) == (4.1, 3)
        assert "the network&#39;s own: 4.1 ms" in (tmp_path / name).read_text()


def test_two_pods_that_may_be_it_are_named_not_chosen_from(ctl: Ctl) -> None:
    uid = ctl.vmi(migrationState={**MOVED, "targetPod": ""})
    ctl.launcher("one", uid, "n2")
    ctl.launcher("two", uid, "n2")
    shown = ctl("vm", "downtime", "shop/web", code=1).output
    assert "several running launcher pods on node n2: one, two" in shown


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "has not migrated since it was started"),
        ({**MOVED, "failed": True, "failureReason": "out of memory"}, "failed (out of memory)"),
        ({"targetNode": "n2"}, "is migrating to n2 now"),
        (MOVED, "has no running launcher pod on node n2"),
    ],
)
def test_a_vm_without_a_finished_migration(ctl: Ctl, state: dict[str, Any], words: str) -> None:
    ctl.vmi(migrationState=state)
    assert words in ctl("vm", "downtime", "shop/web", code=1).output


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ("Job type:         None\n", 0, "libvirt has no finished job of this domain"),
        ("", 1, "kubectl exec target: exit status 1"),
    ],
)
def test_what_the_container_answers(ctl: Ctl, answer: str, status: int, words: str) -> None:
    uid = ctl.vmi(migrationState=MOVED)
    ctl.launcher("target", uid, "n2")
    ctl.kubectl(answer, status)
    assert words in ctl("vm", "downtime", "shop/web", code=1).output


def test_no_vm_no_vmi_and_no_kubevirt(ctl: Ctl, server: ApiServer) -> None:
    assert (
        "there is no VM and no VMI shop/gone" in ctl("vm", "downtime", "shop/gone", code=1).output
    )
    body = {"metadata": {"name": "off", "namespace": "shop"}, "spec": {}}
    ctl.client.create(VirtualMachine, body)
    status = {"status": {"printableStatus": "Stopped"}}
    ctl.client.patch(VirtualMachine, "off", "shop", status, subresource="status")
    shown = ctl("vm", "downtime", "shop/off", code=1).output
    assert "VM shop/off has no VMI: it does not run (Stopped)" in shown
    server.api.catalogue.hide("kubevirt.io")
    assert "no KubeVirt: " in ctl("vm", "downtime", "shop/web", code=1).output


def test_files_need_nobody(ctl: Ctl, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.write_text(LIBVIRT_9.replace("Completed", "Failed"))
    assert "failed, by libvirt" in ctl("vm", "downtime", "-f", str(saved), code=2).output
    assert not ctl.asked.exists()
    assert "nowhere: No such file" in ctl("vm", "downtime", "-f", "nowhere", code=1).output
    shown = ctl("vm", "downtime", "-f", str(saved), "--plot", "x.png", code=1).output
    assert "want a name that ends in .svg or .html" in shown
    forecast = ctl("vm", "forecast", "-f", str(saved), "--dirty-rate", "10Mi", "-o", "json")
    assert json.loads(forecast.stdout)["converges"] is True
    assert "--memory is needed" in ctl("vm", "forecast", "--bandwidth", "1Gi", code=1).output
