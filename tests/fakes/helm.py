"""The real Helm on the chart that is shipped."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(str(files("conf"))).parent
CHART = ROOT / "conf" / "chart" / "tortie"
HELM = ROOT / "build" / "helm"
KUBERNETES = "1.31.0"
DEADLINE = 180.0

Object = dict[str, Any]


def helm(*args: str, binary: Path = HELM) -> subprocess.CompletedProcess[str]:
    """What Helm says; it may fail."""
    return subprocess.run(
        [str(binary), *args], capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def values(*changes: str) -> list[str]:
    """Options for changes such as `bird.enabled=false` (values in JSON)."""
    return [f"--set-json={change}" for change in changes]


def rendered(*changes: str, binary: Path = HELM) -> list[Object]:
    """The objects of a release."""
    done = helm(
        "template",
        "tortie",
        str(CHART),
        "--namespace=kube-system",
        f"--kube-version={KUBERNETES}",
        *values(*changes),
        binary=binary,
    )
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def refused(*changes: str, namespace: str = "kube-system") -> str:
    """Why Helm does not render it."""
    done = helm("template", "tortie", str(CHART), f"--namespace={namespace}", *values(*changes))
    assert done.returncode != 0, f"rendered with {changes}"
    return done.stderr


def objects(text: str) -> list[Object]:
    """Of a manifest."""
    return [one for one in yaml.safe_load_all(text) if one is not None]


def only(kind: str, name: str, among: Iterable[Object]) -> Object:
    """The one object of that kind and name."""
    (found,) = [one for one in among if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def node_yaml(among: Iterable[Object]) -> str:
    """The agent's configuration of a release."""
    return str(only("ConfigMap", "tortie", among)["data"]["node.yaml"])


def conflist(among: Iterable[Object]) -> Object:
    """The network's configuration of a release."""
    found = json.loads(only("ConfigMap", "tortie", among)["data"]["10-tortie.conflist"])
    assert isinstance(found, dict)
    return found


def pods(among: Iterable[Object]) -> dict[str, Object]:
    """By workload, the pod that it makes."""
    kinds = ("DaemonSet", "Deployment")
    return {
        one["metadata"]["name"]: one["spec"]["template"] for one in among if one["kind"] in kinds
    }
