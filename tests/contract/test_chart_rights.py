"""The Deployment of the manifest, run as it says, with the rights that the manifest gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lab.apiserver.server import ApiServer
from tests.fakes.helm import ROOT, Object, objects, pods
from tests.fakes.kubernetes_store import kubernetes_api
from tests.fakes.node_process import DEADLINE, until
from tests.fakes.ports import free_ports

RELEASE = objects((ROOT / "conf" / "tortie.yaml").read_text())
ACCOUNT = "system:serviceaccount:kube-system:tortie-controllers"
TOKEN = "0123456789"
RBAC = "rbac.authorization.k8s.io"


def plural(kind: str) -> str:
    return f"{kind.lower()}s"


@pytest.fixture
def guarded() -> Iterator[ApiServer]:
    """An API of a node and a pod, with the manifest's rights and no others."""
    with kubernetes_api() as open_api:
        for name, namespace in (("nodes", ""), ("pods", "kube-system")):
            kind = open_api.api.kind("", "v1", name)
            open_api.api.create(kind, namespace, {"metadata": {"name": "some"}, "spec": {}})
        for one in RELEASE:
            group, _, version = one["apiVersion"].rpartition("/")
            if group == RBAC:
                kind = open_api.api.kind(group, version, plural(one["kind"]))
                open_api.api.create(kind, one["metadata"].get("namespace", ""), one)
        with ApiServer(tokens={TOKEN: ACCOUNT}, authorization="RBAC", api=open_api.api) as server:
            yield server


def container() -> Object:
    (found,) = pods(RELEASE)["tortie-controllers"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def start(server: ApiServer, port: int) -> subprocess.Popen[str]:
    """The container's command; where the API is comes from the environment, for want of a pod."""
    spec = container()
    assert spec["command"] == ["tortie-controllers", "gc"]
    (given,) = [one["containerPort"] for one in spec["ports"]]
    args = [one.replace(f"={given}", f"={port}") for one in spec["args"]]
    environ = {one["name"]: one["value"] for one in spec["env"]}
    where = {"K8S_API_ENDPOINT": server.url, "K8SAPITOKEN": TOKEN}
    return subprocess.Popen(
        [sys.executable, "-m", "controllers.cli", "gc", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ, **where},
    )


def passes(probe: str, port: int) -> bool:
    """Whether a probe of the container succeeds; the image has the `python3` that it names."""
    (given,) = [one["containerPort"] for one in container()["ports"]]
    program, *args = container()[probe]["exec"]["command"]
    assert program == "python3"
    words = [one.replace(f":{given}/", f":{port}/") for one in args]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, timeout=DEADLINE, check=False
    )
    return done.returncode == 0


def test_an_instance_leads_makes_a_pass_and_is_ready(guarded: ApiServer) -> None:
    (port,) = free_ports(1)
    process = start(guarded, port)
    try:
        until("it is ready", lambda: passes("readinessProbe", port))
        assert passes("livenessProbe", port)
        assert passes("startupProbe", port)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert out.startswith("pass: ")
    assert "cannot" not in err, "no right is missing"
    assert "given up" in err


def test_every_pod_has_an_account_that_is_made_or_none() -> None:
    made = {one["metadata"]["name"] for one in RELEASE if one["kind"] == "ServiceAccount"}
    for name, pod in pods(RELEASE).items():
        spec: Any = pod["spec"]
        account = spec.get("serviceAccountName")
        assert account in made or spec.get("automountServiceAccountToken") is False, name
