"""The runbook, line by line: every command that the lab can serve does what the page says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import control
from lab.cluster import until
from lab.objects import LabVMI
from tests.fakes.doc_commands import Command, commands_of
from tests.fakes.lab_vms import address_of
from tests.fakes.running_lab import Lab, call, traces

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "conf" / "examples"
PAGE = (ROOT / "docs" / "runbook.md").read_text()
MODEL = "Haswell-noTSX"
POOL = IPv4Network("10.66.0.0/16")
CPU = (
    f"cpu-model.node.kubevirt.io/{MODEL}=true",
    f"cpu-model-migration.node.kubevirt.io/{MODEL}=true",
)


def claims() -> list[dict[str, Any]]:
    """What CDI makes of the DataVolumes: the lab has no CDI, and no disks."""
    found = []
    for volume in yaml.safe_load_all((EXAMPLES / "disks.yaml").read_text()):
        storage = volume["spec"]["storage"]
        claim = {**storage, "resources": storage["resources"]}
        found.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": volume["metadata"],
                "spec": claim,
            }
        )
    return found


class Reader:
    """Someone who reads the page and types what is in it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder
        self.said: dict[str, str] = {}

    def do(self, command: Command) -> None:
        done = self._run(command.words)
        text = done.stdout + done.stderr
        line = " ".join(command.words)
        assert done.returncode == command.status, f"{line}: {text}"
        assert command.says in text, f"{line}: {text}"
        self.said[line] = text

    def _run(self, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        program, *arguments = [self._here(word) for word in words]
        if program == "kubectl":
            return call(self._lab.state, "kubectl", "--", *arguments)
        assert program == "tortiectl"
        return call(self._lab.state, "exec", "node1", "--", "tortiectl", *arguments)

    def _here(self, word: str) -> str:
        if not word.startswith("conf/examples/"):
            return word
        if not word.endswith("disks.yaml"):
            return str(ROOT / word)
        made = self._folder / "claims.yaml"
        made.write_text(yaml.safe_dump_all(claims()))
        return str(made)


@pytest.fixture
def reader(lab: Lab, tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        lab.kubectl("label", "node", "--all", *CPU)
        stack.callback(lab.kubectl, "delete", "vm", "--all", "--timeout=120s")
        yield Reader(lab, tmp_path)


def test_the_runbook_does_what_it_says(lab: Lab, reader: Reader) -> None:
    for command in commands_of(PAGE):
        if command.words[:3] == ("kubectl", "delete", "vm"):
            assert IPv4Address(address_of("web")) in POOL
            assert control.get(LabVMI, "scratch").status.node_name == "node3"
        reader.do(command)
    said = reader.said
    assert said["tortiectl cpu-models --common"] == f"{MODEL}\n"
    assert "Succeeded" in said["kubectl get vmim"]
    assert "Enabled" in said["tortiectl ipam show --show-configuration"]
    assert "restarts" in said["tortiectl node drain-plan node3"]
    until(lambda: not traces(lab, "web") + traces(lab, "scratch"), "something of the VMs is left")


def test_the_page_has_commands() -> None:
    """Which of its blocks are run, tests/unit/test_docs_blocks.py watches."""
    assert len(list(commands_of(PAGE))) > 15
