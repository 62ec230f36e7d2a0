"""The chart's init container: its command, with the chart's own configuration, on a node's tree.

The bundle that it brings along is `test_bundle`'s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.certificates import Authority
from tests.fakes.helm import conflist, node_yaml, pods, rendered

ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
WITHIN = f"""set -e
mount -t tmpfs tmpfs /run
mkdir -p {ACCOUNT}
mount --bind "$1" {ACCOUNT}
shift
exec "$@"
"""
"""A pod's view of its service account, in a mount namespace of its own."""


def init_container(release: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = pods(release)["tortie-node"]["spec"]["initContainers"]
    return dict(found)


def test_it_installs_what_the_chart_says(tmp_path: Path) -> None:
    release = rendered()
    container = init_container(release)
    assert container["command"] == ["tortiectl", "node", "install"]
    places = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert places["/etc/tortie"] == "config"
    host = tmp_path / "host"
    for path in places:
        if path.startswith("/host/"):
            (tmp_path / path[1:]).mkdir(parents=True)
    (tmp_path / "node.yaml").write_text(node_yaml(release))
    (tmp_path / "10-tortie.conflist").write_text(json.dumps(conflist(release)))
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("t0ken")
    (account / "ca.crt").write_bytes(Authority(tmp_path).cert.read_bytes())
    args = [
        one.replace("=/host", f"={host}").replace("=/etc/tortie-cni/", f"={tmp_path}/")
        for one in container["args"]
        if not one.startswith(("--bundle", "--keep"))
    ]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", WITHIN, "sh", str(account), sys.executable, "-m",
         "tortiectl.cli", "node", "install", "-c", str(tmp_path / "node.yaml"), *args],
        env={"NODENAME": "n1", "KUBERNETES_SERVICE_HOST": "10.96.0.1",
             "KUBERNETES_SERVICE_PORT": "443", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    installed = json.loads((host / "etc/cni/net.d/10-tortie.conflist").read_text())
    (plugin,) = installed["plugins"]
    (wished,) = conflist(release)["plugins"]
    assert {key: plugin[key] for key in wished} == wished
    assert {one.name for one in (host / "opt/cni/bin").iterdir()} == {"tortie", "tortie-ipam"}
    written = yaml.safe_load((host / "var/lib/tortie/cni-kubeconfig").read_text())
    assert written["clusters"][0]["cluster"]["server"] == "https://10.96.0.1:443"
    assert written["users"][0]["user"]["token"] == "t0ken"
