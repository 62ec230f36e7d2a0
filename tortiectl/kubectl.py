"""The user's kubectl, for what needs the API's streams (`exec`): built here, run here.

It talks to the same server with the same identity as the rest of the command. Credentials that are
in no kubeconfig are given in one of its own that only this user can read and that is removed after;
none is ever an argument, which others could see.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from libtortie.errors import InvalidInput, NotFound, Unavailable
from libtortie.kube.config import KubeConfig, Material

SECONDS = 60.0
_NAME = "tortiectl"


def exec_command(namespace: str, pod: str, container: str, command: Sequence[str]) -> list[str]:
    """Arguments of kubectl that run a command in a container. Pure."""
    return ["-n", namespace, "exec", pod, "-c", container, "--", *command]


def run(config: KubeConfig, arguments: Sequence[str], *, seconds: float = SECONDS) -> str:
    """What kubectl prints. Raises `NotFound` without kubectl, `Unavailable` when it fails."""
    program = shutil.which("kubectl")
    if program is None:
        raise NotFound("there is no kubectl in PATH: install it, or give the text with --file")
    with _access(config) as options:
        try:
            done = subprocess.run(
                [program, *options, *arguments],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"kubectl did not end in {seconds:.0f} s") from error
        except OSError as error:
            raise Unavailable(f"{program}: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
        raise Unavailable(f"kubectl {' '.join(arguments[2:4])}: {said}")
    return done.stdout.decode("utf-8", "replace")


@contextmanager
def _access(config: KubeConfig) -> Iterator[list[str]]:
    """Options that say where and who."""
    if config.origin is not None:
        chosen = ["--context", config.origin.context] if config.origin.context else []
        yield ["--kubeconfig", str(config.origin.path), *chosen]
        return
    with tempfile.TemporaryDirectory(prefix="tortiectl-") as directory:
        path = Path(directory) / "kubeconfig"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            yaml.safe_dump(document(config), file)
        yield ["--kubeconfig", str(path)]


def document(config: KubeConfig) -> dict[str, Any]:
    """A kubeconfig of one server and one identity. Pure but for files that it names."""
    if config.token_file is not None and config.token:
        raise InvalidInput("the API has a token and a token file: one of them")
    cluster: dict[str, Any] = {"server": config.server}
    user: dict[str, Any] = {}
    if config.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if config.tls_server_name:
        cluster["tls-server-name"] = config.tls_server_name
    _put(cluster, "certificate-authority", config.ca)
    _put(user, "client-certificate", config.client_cert)
    _put(user, "client-key", config.client_key)
    if config.token_file is not None:
        user["tokenFile"] = str(config.token_file)
    elif config.token:
        user["token"] = config.token
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _NAME, "user": user}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
        "current-context": _NAME,
    }


def _put(body: dict[str, Any], key: str, material: Material | None) -> None:
    if material is None:
        return
    if material.path is not None:
        body[key] = str(material.path)
    else:
        body[f"{key}-data"] = base64.b64encode(material.data).decode()
