"""The commands of the README and of docs/policy.md, as they stand there, in the lab they start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab import control, names
from lab.cluster import until
from lab.objects import LabVMI
from lab.state import StateDir
from tests.fakes.doc_pages import PAGES, ROOT, Block, blocks, commands
from tests.fakes.running_lab import BUSY, Patience, assert_gone, launchers, when_free

pytestmark = pytest.mark.root

LAB = ROOT / ".venv" / "bin" / "lab"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SECONDS = 600.0
ON_NODE = """#!/bin/sh
PATH="{path}"
for word; do
    shift
    test -f "$word" && word=$(realpath "$word")
    set -- "$@" "$word"
done
exec {lab} exec {node} -- {program} "$@"
"""
WEB = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"selector": "app == 'web'", "ingress": [{"action": "Allow", "protocol": "TCP"}]},
}
KNP = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"podSelector": {}, "ingress": [{}]},
}


def lines_of(name: str) -> list[str]:
    """The lines of a page's one block that is run."""
    (page,) = [one for one in PAGES if one.name == name]
    (block,) = [one for one in blocks(page) if one.runs]
    assert isinstance(block, Block)
    (whole,) = commands(block)
    return whole.line.splitlines()


def launcher_of(vm: str) -> str:
    """The pod that a VM runs in, once it is one: what a shell would complete the name to."""
    found: list[str] = []

    def one() -> bool:
        pods = launchers(control.get(LabVMI, vm))
        found[:] = [pod.metadata.name for pod in pods if not pod.finished]
        return len(found) == 1

    until(one, f"VM {vm} does not run in one pod")
    return found[0]


class Reader:
    """Someone who types what is there, where it says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.where = folder, ROOT
        self.programs = folder / "bin"
        self.programs.mkdir()

    def program(self, name: str, script: str) -> None:
        """A program of the reader's."""
        path = self.programs / name
        path.write_text(script)
        path.chmod(0o755)

    def type(self, line: str) -> str:
        """One line, to its end; it must succeed."""
        patience = Patience()
        while True:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", line],
                cwd=self.where,
                env={**os.environ, "PATH": f"{self.programs}:{PATH}"},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            text = done.stdout + done.stderr
            if not done.returncode:
                return text
            assert any(one in text for one in BUSY), f"{line}\n{text}"
            patience.wait(text)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    state = StateDir(names.DEFAULT_STATE_DIR)
    try:
        yield Reader(tmp_path)
    finally:
        when_free(state, "down")
        assert_gone(state)


def test_the_readme_and_the_manual_of_policy(reader: Reader) -> None:
    lines = lines_of("README.md")
    *first, down = lines
    assert down.split()[:2] == [".venv/bin/lab", "down"]
    said: dict[str, str] = {}
    for line in first:
        typed = line
        if "virt-launcher-web-…" in line:
            typed = line.replace("virt-launcher-web-…", launcher_of("web"))
        said[line.split("#")[0].strip()] = reader.type(typed)
    assert "node1" in said[".venv/bin/lab status"]
    assert "10.65." in said[".venv/bin/lab exec tor -- ip route"]
    assert "10.65." in said[".venv/bin/lab exec node1 -- tortiectl ipam show --show-blocks"]
    _policy(reader)
    reader.where = ROOT
    reader.type(down)


def _policy(reader: Reader) -> None:
    """docs/policy.md, from node3, on which a pod `web` runs."""
    reader.type(f"{LAB} pod create web --node node3")
    for name in ("tortiectl", "nft"):
        reader.program(name, ON_NODE.format(lab=LAB, node="node3", program=name, path=PATH))
    reader.program("kubectl", f'#!/bin/sh\nPATH="{PATH}"\nexec {LAB} kubectl -- "$@"\n')
    reader.where = reader.folder
    (reader.folder / "policies.yaml").write_text(yaml.safe_dump(WEB))
    (reader.folder / "networkpolicy.yaml").write_text(yaml.safe_dump(KNP))
    said = {line.split("#")[0].strip(): reader.type(line) for line in lines_of("policy.md")}
    assert "Name:" in said["kubectl describe pod web"]
    end = time.monotonic() + SECONDS
    while "knp.default.web" not in reader.type("nft list table inet tortie"):
        assert time.monotonic() < end, said
        time.sleep(0.5)
