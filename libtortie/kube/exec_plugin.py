"""Credentials from a program: client-go's exec credential plugins (cloud logins, OIDC).

The program is the kubeconfig owner's and runs as this user. What it answers is kept in memory until
it expires, so that one command asks (and a person is prompted) once. What it prints on standard
error is a person's to read: it goes there where there is a terminal, else into the error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libtortie.errors import InvalidInput, first_line
from libtortie.model.times import parse_rfc3339

SECONDS = 60.0
"""How long a program may take; a person may have to look for a phone."""
EARLY = 10.0
"""Seconds before its end at which an answer is not used any more."""
API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
MODES = ("Never", "IfAvailable", "Always")


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A kubeconfig's `exec`. `base` is where the kubeconfig is."""

    command: str
    base: Path
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    provide_cluster_info: bool = False
    install_hint: str = ""
    mode: str = "IfAvailable"


@dataclass(frozen=True, slots=True)
class Obtained:
    """What a program gave. `expires` is wall-clock seconds; None: never."""

    token: str = field(default="", repr=False)
    cert: bytes = b""
    key: bytes = field(default=b"", repr=False)
    expires: float | None = None


_KNOWN: dict[tuple[ExecPlugin, str], Obtained] = {}
_LOCK = threading.Lock()


def parse(body: Mapping[str, Any], where: str, base: Path) -> ExecPlugin:
    """A kubeconfig's `exec`. Raises `InvalidInput` naming the field."""
    version, command = body.get("apiVersion"), body.get("command")
    if version not in API_VERSIONS:
        raise InvalidInput(f"{where}: exec: apiVersion {version!r} is none of {API_VERSIONS}")
    if not isinstance(command, str) or not command:
        raise InvalidInput(f"{where}: exec: command is missing")
    args, env = body.get("args") or [], body.get("env") or []
    if not isinstance(args, list) or not all(isinstance(one, str) for one in args):
        raise InvalidInput(f"{where}: exec: args is not a list of strings")
    if not isinstance(env, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in env
    ):
        raise InvalidInput(f"{where}: exec: env is not a list of name and value")
    mode = body.get("interactiveMode") or "IfAvailable"
    if mode not in MODES:
        raise InvalidInput(f"{where}: exec: interactiveMode {mode!r} is none of {MODES}")
    return ExecPlugin(
        command,
        base,
        version,
        tuple(args),
        tuple((one["name"], str(one.get("value", ""))) for one in env),
        bool(body.get("provideClusterInfo")),
        str(body.get("installHint") or ""),
        mode,
    )


def obtain(plugin: ExecPlugin, cluster: Mapping[str, Any], *, fresh: bool = False) -> Obtained:
    """Credentials, remembered or (`fresh`, or when they expire) new. Raises `InvalidInput`.

    `cluster` is what the program may be told of the server.
    """
    known_as = (plugin, str(cluster.get("server", "")))
    with _LOCK:
        known = _KNOWN.get(known_as)
        if known is None or fresh or not is_current(known.expires):
            known = _KNOWN[known_as] = _run(plugin, cluster)
        return known


def is_current(expires: float | None) -> bool:
    """Whether an answer may still be used."""
    return expires is None or time.time() < expires - EARLY


def _run(plugin: ExecPlugin, cluster: Mapping[str, Any]) -> Obtained:
    interactive = plugin.mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if plugin.mode == "Always" and not interactive:
        raise InvalidInput(f"exec plugin {plugin.command} has to ask, and there is no terminal")
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = dict(cluster)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environ = {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        done = subprocess.run(
            [_found(plugin), *plugin.args],
            env=environ,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if interactive else subprocess.PIPE,
            timeout=None if interactive else SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidInput(f"exec plugin {plugin.command}: not done after {SECONDS:g} s") from error
    except OSError as error:
        raise InvalidInput(f"exec plugin {plugin.command}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr or b"").decode(errors="replace").strip().splitlines()
        why = f": {said[-1]}" if said else ""
        raise InvalidInput(f"exec plugin {plugin.command}: status {done.returncode}{why}")
    return _answer(plugin, done.stdout)


def _found(plugin: ExecPlugin) -> str:
    """The program: on the path, or with a `/` beside the kubeconfig. Raises `InvalidInput`."""
    if "/" in plugin.command:
        return str(plugin.base / plugin.command)
    found = shutil.which(plugin.command)
    if found is None:
        hint = f": {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise InvalidInput(f"exec plugin {plugin.command}: there is no such program{hint}")
    return found


def _answer(plugin: ExecPlugin, data: bytes) -> Obtained:
    """What was printed. Its text, in which a secret may be, is never part of the error."""
    where = f"exec plugin {plugin.command}"
    try:
        body = json.loads(data)
        status = body["status"]
        version, kind = body["apiVersion"], body["kind"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{where}: its answer is no ExecCredential with a status") from error
    if (version, kind) != (plugin.api_version, "ExecCredential") or not isinstance(status, dict):
        raise InvalidInput(f"{where}: its answer is no ExecCredential of {plugin.api_version}")
    token = str(status.get("token") or "").strip()
    cert = str(status.get("clientCertificateData") or "").encode()
    key = str(status.get("clientKeyData") or "").encode()
    if not token and not cert:
        raise InvalidInput(f"{where}: its answer has neither a token nor a certificate")
    if bool(cert) != bool(key):
        raise InvalidInput(f"{where}: a certificate needs a key, and the reverse")
    if any(not "!" <= character <= "~" for character in token):
        raise InvalidInput(f"{where}: its token holds a character that no header can carry")
    end = status.get("expirationTimestamp")
    try:
        expires = parse_rfc3339(str(end)).timestamp() if end else None
    except ValueError as error:
        raise InvalidInput(f"{where}: expirationTimestamp: {first_line(error)}") from error
    return Obtained(token, cert, key, expires)
