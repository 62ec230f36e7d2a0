"""Where the API server is and how we prove who we are: kubeconfig, in-cluster, direct.

Promises: what is given is either honoured or refused by name (basic auth, impersonation, proxies
that do not speak HTTP); relative paths are relative to the kubeconfig; secrets never appear in
`repr` or in an error. Files are named here and read by `credentials`, so that rotation is seen.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from libtortie.errors import InvalidInput
from libtortie.files import read_bytes, read_text
from libtortie.kube import exec_plugin
from libtortie.kube.exec_plugin import ExecPlugin

T = TypeVar("T")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_USER_REFUSED = {
    "auth-provider": "auth-provider plugins",
    "username": "basic authentication",
    "password": "basic authentication",
    "as": "impersonation",
    "as-uid": "impersonation",
    "as-groups": "impersonation",
    "as-user-extra": "impersonation",
}


@dataclass(frozen=True, slots=True)
class Material:
    """PEM bytes given inline, or the file that holds them."""

    data: bytes = field(default=b"", repr=False)
    path: Path | None = None

    def read(self) -> bytes:
        """The bytes. Raises `InvalidInput` when the file cannot be read."""
        return self.data if self.path is None else read_file(self.path)


@dataclass(frozen=True, slots=True)
class Origin:
    """The kubeconfig (and the context asked for; empty: its current one) a config came from.

    `more` are files that were merged into the first, in their order.
    """

    path: Path
    context: str = ""
    more: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class KubeConfig:
    """One server and one identity."""

    server: str
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    ca: Material | None = None
    client_cert: Material | None = None
    client_key: Material | None = field(default=None, repr=False)
    insecure: bool = False
    tls_server_name: str = ""
    namespace: str = ""
    origin: Origin | None = None
    plugin: ExecPlugin | None = None
    proxy: str = ""
    """`http://host:port` of a proxy; empty: none."""

    def files(self) -> tuple[Path, ...]:
        """Every file whose change means: read again."""
        materials = (self.ca, self.client_cert, self.client_key)
        paths = [m.path for m in materials if m is not None and m.path is not None]
        if self.token_file is not None:
            paths.append(self.token_file)
        if self.origin is not None:
            paths += [self.origin.path, *self.origin.more]
        return tuple(paths)


def direct(server: str, token: str = "") -> KubeConfig:
    """A server by URL, with a bearer token or none. Raises `InvalidInput`."""
    return KubeConfig(server=_server(server, "server"), token=_token(token, "token"))


def in_cluster(
    environ: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT
) -> KubeConfig:
    """The service account of the pod we run in. Raises `InvalidInput` outside of a pod."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise InvalidInput(
            "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
        )
    token_file = directory / "token"
    if not read_word(token_file):
        raise InvalidInput(f"{token_file} is empty")
    namespace = directory / "namespace"
    bracketed = f"[{host}]" if ":" in host else host
    return KubeConfig(
        server=_server(f"https://{bracketed}:{port}", "KUBERNETES_SERVICE_HOST"),
        token_file=token_file,
        ca=Material(path=directory / "ca.crt"),
        namespace=read_word(namespace) if namespace.exists() else "",
    )


def load_kubeconfig(path: Path | str, context: str = "", more: Sequence[Path] = ()) -> KubeConfig:
    """Read one context of a kubeconfig (default: its current one). Raises `InvalidInput`.

    Of several files (`more`) the first that names something decides, as kubectl has it; those
    that are not there are passed over, unless none is.
    """
    path = Path(path)
    files = [path, *more]
    there = [one for one in files if one.exists()] if more else files
    documents = {one: _parse(one) for one in there or files[:1]}
    current = (_text(doc, "current-context", str(one)) for one, doc in documents.items())
    name = context or next(filter(None, current), "")
    contexts = _named(documents, "contexts", "context")
    if not name:
        known = ", ".join(sorted(contexts)) or "none"
        raise InvalidInput(f"{path}: no current-context; its contexts are: {known}")
    chosen, file = _pick(contexts, name, "context", path)
    where = f"{file}: context {name!r}"
    cluster_name = _text(chosen, "cluster", where)
    clusters = _named(documents, "clusters", "cluster")
    cluster, file = _pick(clusters, cluster_name, "cluster", path)
    config = _cluster(cluster, f"{file}: cluster {cluster_name!r}", file.parent)
    user_name = _text(chosen, "user", where)
    if user_name:
        user, file = _pick(_named(documents, "users", "user"), user_name, "user", path)
        config = _identity(config, user, f"{file}: user {user_name!r}", file.parent)
    origin = Origin(path, context, tuple(more))
    return replace(config, namespace=_text(chosen, "namespace", where), origin=origin)


def reread(config: KubeConfig) -> KubeConfig:
    """The same choice from the same kubeconfig as it is now; other kinds are unchanged."""
    if config.origin is None:
        return config
    origin = config.origin
    found = load_kubeconfig(origin.path, origin.context, origin.more)
    return found if found.proxy else replace(found, proxy=config.proxy)


def read_file(path: Path) -> bytes:
    """A credential file's bytes. Raises `InvalidInput` naming it."""
    return _read(path, read_bytes)


def read_word(path: Path) -> str:
    """What a file says but for the space around it. Raises `InvalidInput` naming the file."""
    return _read(path, read_text).strip()


def _read(path: Path, how: Callable[[Path], T]) -> T:
    try:
        return how(path)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


def _parse(path: Path) -> Mapping[str, Any]:
    """YAML to a mapping. The parser's own message may quote secrets: only its place is told."""
    place = ""
    import yaml  # it takes time, and only a kubeconfig needs it

    from libtortie import go_yaml

    try:
        document = go_yaml.load(read_file(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}" if mark is not None else ""
        document = None
    except (yaml.YAMLError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        raise InvalidInput(f"{path} is not a kubeconfig (YAML mapping){place}")
    kind = document.get("kind", "Config")
    if kind != "Config":
        raise InvalidInput(f"{path}: kind is {kind!r}, not 'Config'")
    return document


_Named = dict[str, tuple[Mapping[str, Any], Path]]


def _named(documents: Mapping[Path, Mapping[str, Any]], plural: str, singular: str) -> _Named:
    """`contexts`, `clusters` or `users`: name to body and file; the first of a name wins, as
    kubectl's."""
    found: _Named = {}
    for path, document in documents.items():
        entries = document.get(plural) or []
        if not isinstance(entries, list):
            raise InvalidInput(f"{path}: {plural} is not a list")
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise InvalidInput(f"{path}: an entry of {plural} has no name")
            body = entry.get(singular) or {}
            if not isinstance(body, dict):
                raise InvalidInput(f"{path}: {singular} {entry['name']!r} is not a mapping")
            found.setdefault(entry["name"], (body, path))
    return found


def _pick(found: _Named, name: str, what: str, path: Path) -> tuple[Mapping[str, Any], Path]:
    """One entry by name. Raises `InvalidInput` naming those there are."""
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise InvalidInput(f"{path}: no {what} {name!r}; there are: {known}")
    return found[name]


def _cluster(body: Mapping[str, Any], where: str, base: Path) -> KubeConfig:
    """Server and trust."""
    insecure = body.get("insecure-skip-tls-verify", False)
    if not isinstance(insecure, bool):
        raise InvalidInput(f"{where}: insecure-skip-tls-verify is not true or false")
    ca = _material(body, "certificate-authority", where, base)
    if insecure and ca is not None:
        raise InvalidInput(f"{where}: a certificate authority and insecure-skip-tls-verify")
    return KubeConfig(
        server=_server(_text(body, "server", where), where),
        ca=ca,
        insecure=insecure,
        tls_server_name=_text(body, "tls-server-name", where),
        proxy=proxy_of(_text(body, "proxy-url", where), f"{where}: proxy-url"),
    )


def proxy_of(url: str, where: str) -> str:
    """A proxy's URL. Raises `InvalidInput` for one that does not speak plain HTTP."""
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidInput(f"{where}: {url!r} is not a URL") from error
    if parts.scheme != "http" or not parts.hostname:
        raise InvalidInput(f"{where}: proxies are http://host:port; others are not supported")
    return url.rstrip("/")


def _identity(config: KubeConfig, body: Mapping[str, Any], where: str, base: Path) -> KubeConfig:
    """Token (a file beats an inline one, as in kubectl) and client certificate."""
    _refuse(body, _USER_REFUSED, where)
    cert = _material(body, "client-certificate", where, base)
    key = _material(body, "client-key", where, base)
    if (cert is None) != (key is None):
        raise InvalidInput(f"{where}: a client certificate needs a client key, and the reverse")
    token_file = _text(body, "tokenFile", where)
    run = body.get("exec")
    if run is not None and not isinstance(run, dict):
        raise InvalidInput(f"{where}: exec is not a mapping")
    if run and (token_file or body.get("token") or cert is not None):
        raise InvalidInput(f"{where}: exec, and other credentials: give one")
    return replace(
        config,
        token="" if token_file else _token(_text(body, "token", where), where),
        token_file=base / token_file if token_file else None,
        client_cert=cert,
        client_key=key,
        plugin=exec_plugin.parse(run, where, base) if run else None,
    )


def _refuse(body: Mapping[str, Any], refused: Mapping[str, str], where: str) -> None:
    """Name what we would otherwise silently ignore."""
    for key, what in refused.items():
        if body.get(key):
            raise InvalidInput(f"{where}: {what} ({key}) are not supported")


def _material(body: Mapping[str, Any], key: str, where: str, base: Path) -> Material | None:
    """`<key>-data` (base64) or `<key>` (file); inline wins, as in kubectl."""
    inline = _text(body, f"{key}-data", where)
    if inline:
        try:
            return Material(data=base64.b64decode(inline, validate=True))
        except (binascii.Error, ValueError) as error:
            raise InvalidInput(f"{where}: {key}-data is not base64") from error
    name = _text(body, key, where)
    return Material(path=base / name) if name else None


def _text(body: Mapping[str, Any], key: str, where: str) -> str:
    """A string field, empty when absent. Its value is never part of the error."""
    value = body.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(f"{where}: {key} is not a string")
    return value


def _token(value: str, where: str) -> str:
    """A bearer token that fits in a header line."""
    token = value.strip()
    if any(not "!" <= character <= "~" for character in token):
        raise InvalidInput(f"{where}: the token holds a character that no header can carry")
    return token


def _server(url: str, where: str) -> str:
    """`http(s)://host[:port][/prefix]` without a trailing slash."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"{where}: {url!r} is not a URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidInput(f"{where}: server {url!r} is not http(s)://host[:port]")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidInput(f"{where}: the server URL may hold a host, a port and a path only")
    return url.rstrip("/")
