"""A kubeconfig for kubectl: one context for each user of the token file, the first one current."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lab.apiserver.auth import ANONYMOUS, User

CLUSTER = "lab"
_WILDCARDS = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}


def render(url: str, users: Mapping[str, User], authority: Path | None) -> dict[str, Any]:
    """The document. `users` is by token; `authority` is the certificate that proves the server
    (its own, when that is all there is)."""
    for wildcard, loopback in _WILDCARDS.items():
        url = url.replace(wildcard, loopback)
    cluster: dict[str, Any] = {"server": url}
    if authority is not None:
        cluster["certificate-authority"] = str(authority.absolute())
    named: dict[str, dict[str, Any]] = {}
    for token, user in users.items():
        named.setdefault(user.name, {"token": token})
    named = named or {ANONYMOUS: {}}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": cluster}],
        "users": [{"name": name, "user": user} for name, user in named.items()],
        "contexts": [
            {"name": name, "context": {"cluster": CLUSTER, "user": name}} for name in named
        ],
        "current-context": next(iter(named)),
    }


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Put it into place, whole, readable for the owner only (it holds tokens)."""
    temporary = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        yaml.safe_dump(dict(document), file, sort_keys=False)
    temporary.replace(path)
