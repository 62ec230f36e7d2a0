"""The kubeconfig that the plugin's fallback uses: all in one file, which the agent keeps fresh.

The host cannot read what a pod's agent has mounted (its token, its CA), so this file repeats it.
It says by its first line that it is ours; nobody else's kubeconfig is ever replaced.
"""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

from cni_plugin.durable import make_directory, only_writer, read_file, replace_file
from libtortie.errors import InvalidInput
from libtortie.kube.credentials import Credentials

_MARK = b"# Written by tortie, which keeps the token fresh: changes are lost.\n"
_NAME = "tortie"
MODE = 0o600


def render(credentials: Credentials) -> bytes:
    """A kubeconfig that says what these credentials say. Raises `InvalidInput` for a person's."""
    config = credentials.config
    if config.plugin is not None:
        raise InvalidInput(
            f"credentials of the program {config.plugin.command} cannot be kept for the plugin: "
            "give the agent a token or a certificate of its own"
        )
    ca, certificate, key = (base64.b64encode(pem).decode() for pem in credentials.tls_bytes)
    cluster = {
        "server": config.server,
        "certificate-authority-data": ca,
        "insecure-skip-tls-verify": config.insecure,
        "tls-server-name": config.tls_server_name,
    }
    user = {
        "token": credentials.token,
        "client-certificate-data": certificate,
        "client-key-data": key,
    }
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": _NAME,
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME}}],
        "clusters": [{"name": _NAME, "cluster": {k: v for k, v in cluster.items() if v}}],
        "users": [{"name": _NAME, "user": {k: v for k, v in user.items() if v}}],
    }
    return _MARK + json.dumps(body, indent=2).encode() + b"\n"  # JSON is YAML


def is_ours(content: bytes) -> bool:
    """Whether `render` made it."""
    return content.startswith(_MARK)


def keep(path: Path, credentials: Credentials) -> bool:
    """Make the file say what the credentials say; whether it had to be written.

    Raises `InvalidInput` for somebody else's file, OSError.
    """
    wanted = render(credentials)
    content = read_file(path)
    if content is not None and not is_ours(content):
        raise InvalidInput(f"{path} is not ours: move it away, or name another (cni_kubeconfig)")
    if content == wanted and stat.S_IMODE(path.stat().st_mode) == MODE:
        return False
    make_directory(path.parent, "cni_kubeconfig")
    with only_writer([path.parent], wait=False):
        replace_file(path, wanted, MODE)
    return True
