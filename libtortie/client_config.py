"""Where datastore and API are for a tool: its file, the environment, this node's own file.

A configuration file that is there is all that counts (calicoctl's rule). Without one, two
questions are answered apart, each by the first that says something: which datastore (environment,
node.yaml, the agent's default file if it is there, else Kubernetes) and which API (environment,
node.yaml). Nothing is silently dropped: an unknown or doubled key is an error, and so is a key of
calicoctl's that this program could not honour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libtortie.access import (
    NODE_FILE,
    Access,
    kubeconfig_in,
    parse_yaml,
    present,
    read_access,
    text_of,
)
from libtortie.datastore.crd_names import group_named
from libtortie.datastore.open import SQLITE_PATH, DatastoreConfig
from libtortie.errors import InvalidInput
from libtortie.kube.config import KubeConfig, Material, direct, in_cluster, proxy_of
from libtortie.wording import DEFAULT_CONFIG, is_text, meant

KUBERNETES, SQLITE, ETCD = "kubernetes", "sqlite", "etcdv3"
TYPES = (SQLITE, ETCD, KUBERNETES)

REFUSED = {
    "kubeconfigInline": "use kubeconfig",
    "k8sDisableNodePoll": "nodes are not polled",
    "k8sClientQPS": "calls are not throttled",
    "k8sClientBurst": "calls are not throttled",
    "usePodCIDR": "pod CIDRs are not used for addresses",
    "etcdDiscoverySrv": "name the endpoints",
    **dict.fromkeys(("etcdKey", "etcdCert", "etcdCACert"), "name the file that holds it"),
}
"""calicoctl's keys that mean nothing here, and why."""

VARIABLES = {
    "datastoreType": "DATASTORE_TYPE",
    "sqlitePath": "TORTIE_SQLITE_PATH",
    "sqliteShared": "TORTIE_SQLITE_SHARED",
    "etcdEndpoints": "ETCD_ENDPOINTS",
    "etcdUsername": "ETCD_USERNAME",
    "etcdPassword": "ETCD_PASSWORD",
    "etcdCACertFile": "ETCD_CA_CERT_FILE",
    "etcdCertFile": "ETCD_CERT_FILE",
    "etcdKeyFile": "ETCD_KEY_FILE",
    "kubeconfig": "KUBECONFIG",
    "k8sAPIEndpoint": "K8S_API_ENDPOINT",
    "k8sAPIToken": "K8SAPITOKEN",
    "k8sCAFile": "K8S_CA_FILE",
    "k8sCertFile": "K8S_CERT_FILE",
    "k8sKeyFile": "K8S_KEY_FILE",
    "k8sInsecureSkipTLSVerify": "K8S_INSECURE_SKIP_TLS_VERIFY",
    "k8sCurrentContext": "K8S_CURRENT_CONTEXT",
    "calicoAPIGroup": "CALICO_API_GROUP",
}
"""Key of the file → variable; `CALICO_<variable>` beats the bare name, as for calicoctl."""

_ETCD_KEYS = tuple(key for key in VARIABLES if key.startswith("etcd"))
_SRV = "ETCD_DISCOVERY_SRV"
_DATASTORE_KEYS = ("datastoreType", "sqlitePath", "sqliteShared", *_ETCD_KEYS)
_NO_KUBECONFIG = "no kubeconfig is configured that could have it"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class Spec(BaseModel):
    """`spec` of the configuration file; the environment fills the same fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    datastore_type: str = Field(default="", alias="datastoreType")
    sqlite_path: str = Field(default="", alias="sqlitePath")
    sqlite_shared: bool = Field(default=False, alias="sqliteShared")
    etcd_endpoints: str = Field(default="", alias="etcdEndpoints")
    etcd_username: str = Field(default="", alias="etcdUsername")
    etcd_password: str = Field(default="", alias="etcdPassword", repr=False)
    etcd_ca_cert_file: str = Field(default="", alias="etcdCACertFile")
    etcd_cert_file: str = Field(default="", alias="etcdCertFile")
    etcd_key_file: str = Field(default="", alias="etcdKeyFile")
    kubeconfig: str = ""
    api_endpoint: str = Field(default="", alias="k8sAPIEndpoint")
    api_token: str = Field(default="", alias="k8sAPIToken", repr=False)
    ca_file: str = Field(default="", alias="k8sCAFile")
    cert_file: str = Field(default="", alias="k8sCertFile")
    key_file: str = Field(default="", alias="k8sKeyFile")
    insecure: bool = Field(default=False, alias="k8sInsecureSkipTLSVerify")
    context: str = Field(default="", alias="k8sCurrentContext")
    api_group: str = Field(default="", alias="calicoAPIGroup")


class Document(BaseModel):
    """The configuration file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    api_version: Literal["projectcalico.org/v3"] = Field(alias="apiVersion")
    kind: Literal["CalicoAPIConfig"]
    metadata: dict[str, Any] | None = None
    spec: Spec = Spec()


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The answer. `kube` reads credentials, so it is asked only when the API is needed; a datastore
    in Kubernetes is there."""

    datastore: DatastoreConfig
    kube: Callable[[], KubeConfig | None]
    source: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the machine has: variables and well-known files."""

    environ: Mapping[str, str]
    node_file: Path = NODE_FILE
    default_config: Path = Path(DEFAULT_CONFIG)
    default_sqlite: Path = SQLITE_PATH


def client_config(path: str, context: str, around: Surroundings) -> ClientConfig:
    """The configuration in force; `path` is `-c`'s, `context` is `--context`'s, either may be "".

    Raises `InvalidInput` naming file, variable or key.
    """
    file = Path(path) if path else around.default_config
    if path or present(file):
        spec = _with_context(parse_file(text_of(file), str(file)), context)
        kind = spec.datastore_type or _kind_of(spec) or KUBERNETES
        return ClientConfig(
            _datastore(kind, spec, str(file)),
            lambda: _proxied(_kube(spec, kind, around.environ), around.environ),
            str(file),
        )
    spec = _with_context(parse_environment(around.environ), context)
    return _without_file(spec, around)


def parse_file(text: str, where: str) -> Spec:
    """The configuration in YAML (or JSON) text. Raises `InvalidInput` naming file and key."""
    data = parse_yaml(text, where)
    if not isinstance(data, dict):
        raise InvalidInput(f"{where}: want a mapping with apiVersion, kind and spec")
    spec = data.get("spec")
    if spec is None:
        data.pop("spec", None)
    for key in spec if isinstance(spec, dict) else ():
        if key in REFUSED:
            raise InvalidInput(f"{where}: spec.{key} is not supported: {REFUSED[key]}")
    try:
        return _checked(Document.model_validate(data).spec, where)
    except ValidationError as error:
        raise InvalidInput(f"{where}: {_explained(error)}") from None


def parse_environment(environ: Mapping[str, str]) -> Spec:
    """What the environment says. Raises `InvalidInput` naming the variable."""
    fields: dict[str, Any] = {}
    for key, name in VARIABLES.items():
        variable = next((v for v in (f"CALICO_{name}", name) if environ.get(v)), "")
        if not variable:
            continue
        value: Any = environ[variable]
        if not is_text(value):
            raise InvalidInput(f"{variable}: not UTF-8")
        if isinstance(Spec.model_fields[_field(key)].default, bool):
            value = _BOOLEANS.get(value.lower())
            if value is None:
                raise InvalidInput(f"{variable}: want true or false")
        fields[key] = value
    if (fields.get("datastoreType") or (ETCD if "etcdEndpoints" in fields else "")) != ETCD:
        for key in _ETCD_KEYS:  # another program's, e.g. of an etcd that runs here
            fields.pop(key, None)
        if environ.get(_SRV) and "datastoreType" not in fields:
            raise InvalidInput(f"{_SRV} is not supported: {REFUSED['etcdDiscoverySrv']}")
    if fields.get("datastoreType", KUBERNETES) != KUBERNETES or "etcdEndpoints" in fields:
        fields.pop("calicoAPIGroup", None)
    return _checked(Spec.model_validate(fields), "environment")


def _without_file(spec: Spec, around: Surroundings) -> ClientConfig:
    """Environment, then the node's own file."""
    node = read_access(around.node_file)
    if node is None and present(around.default_sqlite):
        node = Access(sqlite_path=str(around.default_sqlite))  # an agent without a file of its own
    own_api = bool(spec.kubeconfig or spec.api_endpoint)
    if spec.model_fields_set & {_field(key) for key in _DATASTORE_KEYS}:
        kind = spec.datastore_type or _kind_of(spec) or SQLITE
        datastore, source = _datastore(kind, spec, "environment"), "environment"
    elif node is not None:
        datastore, source = node.datastore(), str(around.node_file)
    else:
        datastore, source = _datastore(KUBERNETES, spec, "environment"), "environment"
    if own_api or node is None:
        return ClientConfig(
            datastore,
            lambda: _proxied(_kube(spec, datastore.type, around.environ), around.environ),
            source,
        )
    return ClientConfig(datastore, lambda: _kube_of_node(node, spec.context), source)


def _kube_of_node(node: Access, context: str) -> KubeConfig | None:
    if not context:
        return node.kube()
    if not node.kubeconfig:
        raise InvalidInput(f"context {context}: {_NO_KUBECONFIG}")
    return kubeconfig_in(node.kubeconfig, context)


def _kind_of(spec: Spec) -> str:
    """The datastore that the settings are of, as calicoctl guesses."""
    if spec.etcd_endpoints:
        return ETCD
    return SQLITE if spec.sqlite_path else ""


def _datastore(kind: str, spec: Spec, where: str) -> DatastoreConfig:
    if kind not in TYPES:
        known = ", ".join(TYPES)
        raise InvalidInput(f"{where}: unknown datastore type: {kind} (known are {known})")
    if kind != SQLITE and (spec.sqlite_path or spec.sqlite_shared):
        raise InvalidInput(f"{where}: sqlitePath and sqliteShared are for datastoreType sqlite")
    if kind != ETCD and any(getattr(spec, _field(key)) for key in _ETCD_KEYS):
        raise InvalidInput(f"{where}: the keys etcd... are for datastoreType etcdv3")
    if kind != KUBERNETES and spec.api_group:
        raise InvalidInput(f"{where}: calicoAPIGroup is for datastoreType kubernetes")
    return DatastoreConfig(
        type=kind,
        sqlite_path=Path(spec.sqlite_path) if spec.sqlite_path else SQLITE_PATH,
        shared=spec.sqlite_shared,
        etcd_endpoints=spec.etcd_endpoints,
        etcd_ca_cert_file=spec.etcd_ca_cert_file,
        etcd_cert_file=spec.etcd_cert_file,
        etcd_key_file=spec.etcd_key_file,
        etcd_username=spec.etcd_username,
        etcd_password=spec.etcd_password,
        calico_api_group=_group(spec.api_group, where),
    )


def _group(text: str, where: str) -> str:
    """The API group that is named. Raises `InvalidInput`."""
    try:
        return group_named(text).value if text else ""
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None


def _kube(spec: Spec, kind: str, environ: Mapping[str, str]) -> KubeConfig | None:
    """The API as configured; only for the Kubernetes datastore also where kubectl would look."""
    if spec.kubeconfig:
        return kubeconfig_in(spec.kubeconfig, spec.context)
    if spec.api_endpoint:
        made = direct(spec.api_endpoint, spec.api_token)
        return replace(
            made,
            ca=_material(spec.ca_file),
            client_cert=_material(spec.cert_file),
            client_key=_material(spec.key_file),
            insecure=spec.insecure,
        )
    if kind != KUBERNETES:
        if spec.context:
            raise InvalidInput(f"context {spec.context}: {_NO_KUBECONFIG}")
        return None
    at_home = Path(environ.get("HOME", "/")) / ".kube" / "config"
    return kubeconfig_in(at_home, spec.context) if present(at_home) else in_cluster(environ)


def _proxied(config: KubeConfig | None, environ: Mapping[str, str]) -> KubeConfig | None:
    """With the environment's proxy, where the kubeconfig names none: as kubectl and curl do.

    A loopback address is never asked for by way of a proxy. Raises `InvalidInput`.
    """
    if config is None or config.proxy:
        return config
    parts = urlsplit(config.server)
    name = f"{parts.scheme}_proxy"
    variable = next((v for v in (name.upper(), name) if environ.get(v)), "")
    host = parts.hostname or ""
    exempt = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if not variable or is_loopback(host) or is_exempt(host, exempt):
        return config
    return replace(config, proxy=proxy_of(environ[variable], variable))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_exempt(host: str, exempt: str) -> bool:
    """Whether NO_PROXY names a host: itself, a domain it is in, a network, or `*`."""
    for one in filter(None, (part.strip().lower() for part in exempt.split(","))):
        if one == "*" or host == one.lstrip(".") or host.endswith("." + one.lstrip(".")):
            return True
        try:
            if ip_address(host) in ip_network(one, strict=False):
                return True
        except ValueError:
            continue
    return False


def _material(path: str) -> Material | None:
    return Material(path=Path(path)) if path else None


def _checked(spec: Spec, where: str) -> Spec:
    """Refuse combinations in which one key would be ignored."""
    direct_only = {
        "k8sAPIToken": spec.api_token,
        "k8sCAFile": spec.ca_file,
        "k8sCertFile": spec.cert_file,
        "k8sKeyFile": spec.key_file,
        "k8sInsecureSkipTLSVerify": spec.insecure,
    }
    if spec.kubeconfig and spec.api_endpoint:
        raise InvalidInput(f"{where}: give kubeconfig or k8sAPIEndpoint, not both")
    for key, value in direct_only.items():
        if value and not spec.api_endpoint:
            raise InvalidInput(f"{where}: {key} needs k8sAPIEndpoint")
    if bool(spec.cert_file) != bool(spec.key_file):
        raise InvalidInput(f"{where}: k8sCertFile and k8sKeyFile belong together")
    if spec.insecure and spec.ca_file:
        raise InvalidInput(f"{where}: give k8sCAFile or k8sInsecureSkipTLSVerify, not both")
    if spec.context and spec.api_endpoint:
        raise InvalidInput(f"{where}: a context is of a kubeconfig; there is k8sAPIEndpoint")
    return spec


def _with_context(spec: Spec, context: str) -> Spec:
    if not context:
        return spec
    return _checked(spec.model_copy(update={"context": context}), "--context")


def _field(alias: str) -> str:
    return next(n for n, f in Spec.model_fields.items() if (f.alias or n) == alias)


def _explained(error: ValidationError) -> str:
    """One problem, named by key; values are not repeated, one of them is a token."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = [f.alias or n for model in (Spec, Document) for n, f in model.model_fields.items()]
        return f"unknown key {where}{meant(str(first['loc'][-1]), known)}"
    return f"{where}: {first['msg']}"
