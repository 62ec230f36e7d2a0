"""What comes in and what goes out: the network configuration, and results for every CNI version.

`parse_conf` is the only reader of standard input. It answers hostile input with one message that
names the key and what to write instead; it never echoes more of the input than a short value.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from cni_plugin import foreign_json
from cni_plugin.errors import IncompatibleVersion, InvalidConfig, Undecodable, UnsupportedField
from cni_plugin.sections import (
    OWN_IPAM,
    ContainerSettings,
    DataplaneOptions,
    DNSConf,
    FeatureControl,
    IPAMConf,
    KubernetesConf,
    PolicyConf,
    RuntimeConf,
    Strict,
    absolute,
)
from libtortie.datastore.crd_names import Group, group_named
from libtortie.datastore.open import DatastoreType
from libtortie.errors import InvalidInput
from libtortie.linux.port import IPInterface
from libtortie.model.ipam import IPAddress

SUPPORTED_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CURRENT_VERSION = "1.1.0"
OLDEST_VERSION = "0.2.0"
"""What a configuration without `cniVersion` means, for every verb alike (as in Calico)."""

MAX_STDIN = 2 << 20
VALID_ATTACHMENTS = ("cni.dev/valid-attachments", "cni.dev/attachments")
"""GC's list under its name in CNI 1.1, and the one libcni 1.2.0 used before it was corrected."""

OWN_TYPES = ("tortie", "calico")
"""Values of `type` that mean this plugin, by its own name or by the one it stands in for."""

_NETWORK_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_PROGRAM = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")


class NetConf(Strict):
    """The network configuration of one call, validated.

    `policy_setup_timeout_seconds` 0 does not wait. `mtu` 0 means: found out on the node.
    `delegated` is the `ipam.type` of another program, empty where addresses are ours to give;
    `raw` is the configuration as it came, for that program, and `plugin_dirs` where to find it.
    """

    cni_version: str = Field(default=OLDEST_VERSION, alias="cniVersion")
    name: str
    type: str = "tortie"
    nodename: str = ""
    nodename_file: str = ""
    nodename_file_optional: bool = False
    hostname: str = ""
    mtu: int = Field(default=0, ge=0, le=65535)
    require_mtu_file: bool = False
    num_queues: int = Field(default=1, le=4096)
    device_type: Literal["", "veth", "netkit"] = ""
    datastore_type: str = ""
    sqlite_path: str = "/var/lib/tortie/tortie.db"
    sqlite_shared: bool = False
    etcd_endpoints: str = ""
    etcd_authority: str = ""
    etcd_scheme: Literal["", "http", "https"] = ""
    etcd_ca_cert_file: str = ""
    etcd_cert_file: str = ""
    etcd_key_file: str = ""
    etcd_username: str = ""
    etcd_password: str = Field(default="", repr=False)
    kubernetes: KubernetesConf | None = None
    calico_api_group: str = ""
    qps: float = Field(default=0, ge=0, allow_inf_nan=False)
    burst: int = Field(default=0, ge=0)
    policy: PolicyConf | None = None
    ipam: IPAMConf = IPAMConf()
    ipam_lock_file: str = ""
    include_default_routes: bool = False
    container_settings: ContainerSettings = ContainerSettings()
    feature_control: FeatureControl = FeatureControl()
    readiness_gates: tuple[str, ...] = ()
    dns: DNSConf = DNSConf()
    dataplane_options: DataplaneOptions = DataplaneOptions()
    policy_setup_timeout_seconds: float = Field(default=0, ge=0, le=120, allow_inf_nan=False)
    policy_setup_on_timeout: Literal["continue", "fail"] = "continue"
    endpoint_status_dir: str = "/run/tortie/endpoint-status"
    agent_socket: str = "/run/tortie/cni.sock"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_file_path: str = ""
    log_file_max_size: int = Field(default=100, ge=1)
    log_file_max_age: int = Field(default=30, ge=1)
    log_file_max_count: int = Field(default=10, ge=1)
    runtime: RuntimeConf = Field(default=RuntimeConf(), alias="runtimeConfig")
    prev_result: dict[str, Any] | None = Field(default=None, alias="prevResult")
    valid_attachments: tuple[tuple[str, str], ...] | None = Field(
        default=None, alias="cni.dev/valid-attachments"
    )
    delegated: str = Field(default="", init=False)
    raw: Mapping[str, Any] = Field(default={}, repr=False, init=False)
    plugin_dirs: tuple[str, ...] = Field(default=(), init=False)

    @field_validator("name")
    @classmethod
    def _is_network_name(cls, value: str) -> str:
        if not _NETWORK_NAME.fullmatch(value) or len(value) > 63:
            raise ValueError(
                "want 1 to 63 of letters, digits, '_', '.', '-', a letter or digit first"
            )
        if "vmi" in value.split(".")[1:]:
            raise ValueError("'.vmi' in it would make handles of containers read like VMs'")
        return value

    @field_validator("datastore_type")
    @classmethod
    def _is_datastore(cls, value: str) -> str:
        known = get_args(DatastoreType)
        if value and value not in known:
            raise ValueError(f"known datastore types are {', '.join(known)}")
        return value

    @field_validator("calico_api_group")
    @classmethod
    def _is_group(cls, value: str) -> str:
        try:
            return group_named(value).value if value else ""
        except InvalidInput as error:
            raise ValueError(f"want one of {', '.join(Group)}") from error

    @model_validator(mode="after")
    def _has_an_api(self) -> Self:
        if self.datastore == "kubernetes" and self.kubernetes is None:
            raise ValueError("datastore_type kubernetes needs a `kubernetes` section")
        if self.calico_api_group and self.datastore != "kubernetes":
            raise ValueError("calico_api_group is for datastore_type kubernetes")
        return self

    _paths = field_validator(
        "nodename_file",
        "sqlite_path",
        "etcd_ca_cert_file",
        "etcd_cert_file",
        "etcd_key_file",
        "ipam_lock_file",
        "endpoint_status_dir",
        "agent_socket",
        "log_file_path",
    )(absolute)

    @field_validator("num_queues")
    @classmethod
    def _at_least_one(cls, value: int) -> int:
        return max(value, 1)

    @field_validator("log_level", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        """Calico's own texts (`Info`, `WARNING`) mean the same."""
        text = value.lower() if isinstance(value, str) else value
        return {"": "info", "warn": "warning"}.get(text, text) if isinstance(text, str) else text

    @field_validator("readiness_gates")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            parts = urlsplit(text)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("want http:// or https:// URLs")
        return value

    @field_validator("valid_attachments", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        if not isinstance(value, list):
            raise ValueError('want a list of {"containerID": "...", "ifname": "..."}')
        pairs = []
        for item in value:
            if not (isinstance(item, dict) and item.get("containerID") and item.get("ifname")):
                raise ValueError('every item needs "containerID" and "ifname"')
            pairs.append((item["containerID"], item["ifname"]))
        return tuple(pairs)

    @model_validator(mode="after")
    def _ranges_are_pools(self) -> Self:
        if not self.delegated:
            self.runtime.ranges()
        return self

    @property
    def datastore(self) -> str:
        """The datastore's type: as given, else etcd, else Kubernetes, where they are configured."""
        if self.datastore_type:
            return self.datastore_type
        if self.etcd_endpoints:
            return "etcdv3"
        return "kubernetes" if self.kubernetes else "sqlite"

    @property
    def api(self) -> KubernetesConf | None:
        """How the API server is reached: the `kubernetes` section, else what `policy` says."""
        if self.kubernetes or self.policy is None or not self.policy.k8s_api_root:
            return self.kubernetes
        return KubernetesConf(k8s_api_root=self.policy.k8s_api_root)

    @property
    def is_foreign(self) -> bool:
        """Whether another plugin asks our IPAM for addresses: the configuration is that one's."""
        return self.type not in OWN_TYPES


def peek_version(stdin: bytes) -> str:
    """The configuration's `cniVersion` if we speak it, else the current one; never raises."""
    if len(stdin) <= MAX_STDIN:
        try:
            version = foreign_json.loads(stdin)["cniVersion"]
        except (ValueError, TypeError, KeyError):
            return CURRENT_VERSION
        if version in SUPPORTED_VERSIONS:
            return str(version)
    return CURRENT_VERSION


def parse_conf(stdin: bytes, path: str = "") -> NetConf:
    """The configuration on standard input (CNI spec, section 1); `path` is CNI_PATH.

    A network's calls bring the same again and again. Nobody changes what is returned.
    Raises `Undecodable`, `IncompatibleVersion`, `UnsupportedField` or `InvalidConfig`.
    """
    return (_parsed_before if len(stdin) <= _REMEMBERED else _parsed)(stdin, path)


_REMEMBERED = 1 << 14
"""Bytes of a configuration that is remembered; a larger one has a result in it."""


@functools.lru_cache(maxsize=16)
def _parsed_before(stdin: bytes, path: str) -> NetConf:
    return _parsed(stdin, path)


def _parsed(stdin: bytes, path: str) -> NetConf:
    data = _object(stdin)
    version = data.get("cniVersion") or OLDEST_VERSION
    if version not in SUPPORTED_VERSIONS:
        raise IncompatibleVersion(
            f"cniVersion {short(version)} is not supported; use one of "
            + ", ".join(SUPPORTED_VERSIONS)
        )
    _require_known(data)
    fields = {key: value for key, value in data.items() if key in _KNOWN and value is not None}
    fields["cniVersion"] = version
    for alias in VALID_ATTACHMENTS:
        if alias in data:  # Go writes an empty list as null
            fields.setdefault(VALID_ATTACHMENTS[0], [] if data[alias] is None else data[alias])
    if data.get("type", OWN_TYPES[0]) not in OWN_TYPES:
        fields.pop("dns", None)  # that plugin's
    delegated = _delegated(data)
    if delegated:
        del fields["ipam"]  # all of it is that program's
    authority = fields.get("etcd_authority")
    if isinstance(authority, str) and authority and not fields.get("etcd_endpoints"):
        fields["etcd_endpoints"] = f"{fields.get('etcd_scheme') or 'http'}://{authority}"
    fields["delegated"] = delegated
    try:
        conf = NetConf.model_validate_json(json.dumps(_cleaned(fields)))
    except ValidationError as error:
        raise _explained(error) from None
    dirs = tuple(item for item in path.split(":") if item.startswith("/"))
    return conf.model_copy(update={"raw": data, "plugin_dirs": dirs})


def _delegated(data: Mapping[str, Any]) -> str:
    """The name of another program's IPAM; empty for ours. Raises `InvalidConfig`."""
    section = data.get("ipam")
    kind = section.get("type") if isinstance(section, dict) else None
    foreign = data.get("type", OWN_TYPES[0]) not in OWN_TYPES
    if foreign and kind not in OWN_IPAM:
        raise InvalidConfig(
            f"ipam.type: a plugin of type {short(data.get('type'))} is none of ours, and asks our "
            f"IPAM only with {OWN_IPAM[0]} (it is {short(kind)})"
        )
    if kind is None or kind in OWN_IPAM:
        return ""
    if not isinstance(kind, str) or not _PROGRAM.fullmatch(kind):
        raise InvalidConfig(f"ipam.type: want the name of a program (it is {short(kind)})")
    return kind


_REFUSED = {
    "etcd_discovery_srv": "SRV records are not looked up; list the members in etcd_endpoints",
}
"""Keys of Calico's that could only be ignored, and why."""

_RUNTIME_KEYS = frozenset({"capabilities", "args", "ipMasq", "cniVersions", "disableCheck"})
_NOT_LINUX = re.compile(r"(windows|vxlan)_\w+|mode|DNS|policies")
"""Keys that Calico reads on Windows only."""

_INTERNAL = frozenset({"delegated", "raw", "plugin_dirs"})
_KNOWN = frozenset(
    field.alias or name for name, field in NetConf.model_fields.items() if name not in _INTERNAL
)


def _require_known(data: Mapping[str, Any]) -> None:
    """Refuse what reads like a mistyped key of ours, and what we could only ignore.

    Any other unknown key is somebody else's: it is kept for a delegated IPAM. Where another
    plugin asks our IPAM, all keys but ours are that plugin's. Raises `UnsupportedField`.
    """
    if data.get("type", OWN_TYPES[0]) not in OWN_TYPES:
        return
    if data.get("ipMasq"):
        raise UnsupportedField(
            f"unsupported key ipMasq with value {short(data['ipMasq'])}: this plugin masquerades "
            "nothing; remove it"
        )
    for key, value in data.items():
        if key in _REFUSED:
            raise UnsupportedField(f"unsupported key {short(key)}: {_REFUSED[key]}")
        if key in _KNOWN or _foreign(key):
            continue
        close = difflib.get_close_matches(key, _KNOWN, n=1, cutoff=_LIKE)
        if close:
            raise UnsupportedField(
                f"unsupported key {short(key)} with value {short(value)}; did you mean {close[0]}?"
            )


_LIKE = 0.8
"""How much of a key has to be ours to be taken for a slip of the pen."""


def _foreign(key: str) -> bool:
    """Keys that are a runtime's or a person's, not ours: namespaced, comments, list-level ones."""
    listed = key in _RUNTIME_KEYS or _NOT_LINUX.fullmatch(key)
    return bool(listed) or "/" in key or key.startswith("_")


def _object(stdin: bytes) -> dict[str, Any]:
    if len(stdin) > MAX_STDIN:
        raise Undecodable(f"the configuration on stdin has more than {MAX_STDIN} bytes")
    try:
        data = foreign_json.loads(stdin)
    except ValueError as error:
        what = "empty" if not stdin.strip() else f"not JSON: {str(error)[:120]}"
        raise Undecodable(f"the configuration on stdin is {what}") from None
    if not isinstance(data, dict):
        raise Undecodable(f"the configuration on stdin is a JSON {_json_type(data)}, not an object")
    return data


def _cleaned(value: Any) -> Any:
    """Explicit nulls mean "not set", at every level of our own sections."""
    if isinstance(value, dict):
        return {
            k: _cleaned(v) if k != "prevResult" else v for k, v in value.items() if v is not None
        }
    return value


def _explained(error: ValidationError) -> InvalidConfig | UnsupportedField:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "configuration"
    if first["type"] == "extra_forbidden":
        return UnsupportedField(
            f"unsupported key {where[:80]} with value {short(first['input'])}; remove it"
        )
    whole = first["type"] == "missing" or not first["loc"]  # of all keys some hold secrets
    secret = _SECRET.search(where) or isinstance(first["input"], dict)
    given = "" if whole or secret else f" (it is {short(first['input'])})"
    text = first["msg"].removeprefix("Value error, ")
    return InvalidConfig(f"{where[:80]}: {text}{given}")


_SECRET = re.compile(r"password|token|policy$")


def short(value: object) -> str:
    """A value for an error message, as JSON, at most 60 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _json_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface of a result; `sandbox` is empty on the host's side, `mtu` 0 when unknown."""

    name: str
    mac: str = ""
    mtu: int = 0
    sandbox: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of ADD, independent of CNI versions. Addresses belong to interface 1.

    An IPAM's has no interfaces. `gateways` are of the addresses, each for those of its family;
    `routes` and `dns` are objects of the CNI specification.
    """

    interfaces: tuple[Interface, ...]
    addresses: tuple[IPInterface, ...]
    gateways: tuple[IPAddress, ...] = ()
    routes: tuple[Mapping[str, Any], ...] = ()
    dns: Mapping[str, Any] | None = None

    def to_wire(self, version: str) -> dict[str, Any]:
        """The result as a CNI version spells it (CNI spec, section 5)."""
        out: dict[str, Any] = {"cniVersion": version}
        if version in ("0.1.0", "0.2.0"):
            for address in reversed(self.addresses):  # one per family: the first wins
                out[f"ip{address.version}"] = self._oldest(address)
            return {**dict(sorted(out.items())), "dns": dict(self.dns or {})}
        if self.interfaces:
            out["interfaces"] = [_interface(item, version) for item in self.interfaces]
        out["ips"] = [self._ip(address, version) for address in self.addresses]
        if self.routes:
            out["routes"] = [_route(route, version) for route in self.routes]
        out["dns"] = dict(self.dns or {})
        return out

    def _ip(self, address: IPInterface, version: str) -> dict[str, Any]:
        out: dict[str, Any] = {"interface": 1} if self.interfaces else {}
        out["address"] = str(address)
        out |= self._gateway(address)
        return {"version": str(address.version), **out} if version.startswith("0.") else out

    def _oldest(self, address: IPInterface) -> dict[str, Any]:
        """Before 0.3.0 a family was an object, with its routes in it."""
        family = address.version
        routes = [_route(r, OLDEST_VERSION) for r in self.routes if _version(r["dst"]) == family]
        return {
            "ip": str(address),
            **self._gateway(address),
            **({"routes": routes} if routes else {}),
        }

    def _gateway(self, address: IPInterface) -> dict[str, str]:
        found = next((one for one in self.gateways if one.version == address.version), None)
        return {"gateway": str(found)} if found else {}


_ROUTE_SINCE_1_1 = frozenset({"mtu", "advmss", "priority", "table", "scope"})
"""Keys of a route that earlier versions do not have."""


def _route(route: Mapping[str, Any], version: str) -> dict[str, Any]:
    unknown = frozenset[str]() if version == "1.1.0" else _ROUTE_SINCE_1_1
    return {key: value for key, value in route.items() if key not in unknown}


def _version(cidr: object) -> int:
    return ip_network(str(cidr), strict=False).version


def _interface(item: Interface, version: str) -> dict[str, Any]:
    out: dict[str, Any] = {"name": item.name}
    if item.mac:
        out["mac"] = item.mac
    if item.mtu and version == "1.1.0":
        out["mtu"] = item.mtu
    if item.sandbox:
        out["sandbox"] = item.sandbox
    return out
