"""The commands of docs/install.md, as they stand there, against an API server.

The workloads' controllers are played by a hook: the server runs none. Helm 4 would apply on the
server's side, which this server does not; all else is as documented.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.apiserver import kubeconfig
from lab.apiserver.server import ApiServer
from tests.fakes.helm import DEADLINE, HELM, ROOT

TEXT = (ROOT / "docs" / "install.md").read_text()
(CLUSTER,) = (
    part for part in re.split("^## ", TEXT, flags=re.MULTILINE) if part.startswith("On a cluster")
)
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", CLUSTER, re.MULTILINE | re.DOTALL)
WRAPPER = """#!/bin/sh
[ "$1" = install ] && set -- "$@" --server-side=false
exec {helm} "$@"
"""
Body = dict[str, Any]


def rolled_out(verb: str, resource: str, new: Body, old: Body | None) -> Body:
    """What a controller would report of a workload once all of its pods are there."""
    if verb != "delete" and resource in ("daemonsets.apps", "deployments.apps"):
        count = new["spec"].get("replicas", 1)
        new["status"] = {
            "observedGeneration": 1 << 20,
            **dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), count),
            **dict.fromkeys(
                ("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"), count
            ),
        }
    return new


@pytest.fixture
def environ(tmp_path: Path) -> Any:
    """A shell's, with kubectl, Helm and a kubeconfig."""
    helm = tmp_path / "bin" / "helm"
    helm.parent.mkdir()
    helm.write_text(WRAPPER.format(helm=HELM))
    helm.chmod(0o755)
    with ApiServer() as server:
        server.api.hooks.append(rolled_out)
        server.api.create(server.api.kind("", "v1", "nodes"), "", {"metadata": {"name": "n1"}})
        lease = {"metadata": {"name": "tortie-controllers"}, "spec": {"holderIdentity": "a"}}
        leases = server.api.kind("coordination.k8s.io", "v1", "leases")
        server.api.create(leases, "kube-system", lease)
        config = tmp_path / "kubeconfig"
        kubeconfig.write(config, kubeconfig.render(server.url, server.tokens.users(), None))
        path = f"{helm.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield {**os.environ, "PATH": path, "KUBECONFIG": str(config), "HOME": str(tmp_path)}


def test_they_do_what_is_said(environ: dict[str, str]) -> None:
    said = []
    for block in BLOCKS:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout)
    whole = "\n".join(said)
    assert 'daemon set "tortie-node" successfully rolled out' in whole
    assert 'deployment "tortie-controllers" successfully rolled out' in whole
    assert '"policy_setup_timeout_seconds": 20' in whole
    assert "10.0.0.1" in whole
    assert "vxlan_mode: Always" in whole
    assert 'release "tortie" uninstalled' in whole


def test_the_values_that_are_documented_exist() -> None:
    values = (ROOT / "conf" / "chart" / "tortie" / "values.yaml").read_text()
    for name in re.findall(r"^\| (`[^|]*`)", CLUSTER, re.MULTILINE):
        for value in re.findall(r"`([a-zA-Z.0-9]+)`", name):
            assert f"{value.rpartition('.')[2]}:" in values, value
