"""What comes in and what goes out: the network configuration, and results for every CNI version.

`parse_conf` is the only reader of standard input. It answers hostile input with one message that
names the key and what to write instead; it never echoes more of the input than a short value.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cni_plugin.errors import IncompatibleVersion, InvalidConfig, Undecodable, UnsupportedField
from libtortie.datastore.crd_names import Group, group_named
from libtortie.datastore.open import DatastoreType
from libtortie.errors import InvalidInput
from libtortie.linux.port import IPInterface

SUPPORTED_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CURRENT_VERSION = "1.1.0"
OLDEST_VERSION = "0.2.0"
"""What a configuration without `cniVersion` means, for every verb alike (as in Calico)."""

MAX_STDIN = 2 << 20
VALID_ATTACHMENTS = ("cni.dev/valid-attachments", "cni.dev/attachments")
"""GC's list under its name in CNI 1.1, and the one libcni 1.2.0 used before it was corrected."""

_NETWORK_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class _Strict(BaseModel):
    """Immutable; an unknown key is an error, so that a typing mistake is never silent."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class KubernetesConf(_Strict):
    """`kubernetes`: how to reach the API server. One of the two is needed."""

    kubeconfig: str = ""
    k8s_api_root: str = ""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not (self.kubeconfig or self.k8s_api_root):
            raise ValueError("want kubeconfig or k8s_api_root")
        return self


class PolicyConf(_Strict):
    """`policy`: `k8s` takes labels, ports and service account from the API's pod."""

    type: Literal["k8s"] = "k8s"


class IPAMConf(_Strict):
    """`ipam`. The two flags are strings in Calico's configuration; JSON booleans work too."""

    type: Literal["tortie-ipam", "calico-ipam"] = "tortie-ipam"
    assign_ipv4: bool = True
    assign_ipv6: bool = False
    ipv4_pools: tuple[str, ...] = ()
    ipv6_pools: tuple[str, ...] = ()


class RuntimeConf(_Strict):
    """`runtimeConfig`: the capabilities `mac` and `ips` of the CNI conventions."""

    mac: str = ""
    ips: tuple[str, ...] = ()

    @field_validator("mac")
    @classmethod
    def _is_mac(cls, value: str) -> str:
        if value and not is_unicast_mac(value.lower()):
            raise ValueError("want a unicast MAC address such as 02:00:5e:10:00:01")
        return value.lower()

    @field_validator("ips")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ip_address(item.split("/")[0])) for item in value)


class NetConf(_Strict):
    """The network configuration of one call, validated.

    `policy_setup_timeout_seconds` 0 does not wait. `mtu` 0 means: found out on the node.
    """

    cni_version: str = Field(default=OLDEST_VERSION, alias="cniVersion")
    name: str
    type: str = "tortie"
    nodename: str = ""
    nodename_file: str = ""
    mtu: int = Field(default=0, ge=0, le=65535)
    datastore_type: str = ""
    sqlite_path: str = "/var/lib/tortie/tortie.db"
    sqlite_shared: bool = False
    etcd_endpoints: str = ""
    etcd_ca_cert_file: str = ""
    etcd_cert_file: str = ""
    etcd_key_file: str = ""
    etcd_username: str = ""
    etcd_password: str = Field(default="", repr=False)
    kubernetes: KubernetesConf | None = None
    calico_api_group: str = ""
    policy: PolicyConf | None = None
    ipam: IPAMConf = IPAMConf()
    policy_setup_timeout_seconds: float = Field(default=0, ge=0, le=120, allow_inf_nan=False)
    endpoint_status_dir: str = "/run/tortie/endpoint-status"
    agent_socket: str = "/run/tortie/cni.sock"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_file_path: str = ""
    runtime: RuntimeConf = Field(default=RuntimeConf(), alias="runtimeConfig")
    prev_result: dict[str, Any] | None = Field(default=None, alias="prevResult")
    valid_attachments: tuple[tuple[str, str], ...] | None = Field(
        default=None, alias="cni.dev/valid-attachments"
    )

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

    @field_validator(
        "nodename_file",
        "sqlite_path",
        "etcd_ca_cert_file",
        "etcd_cert_file",
        "etcd_key_file",
        "endpoint_status_dir",
        "agent_socket",
        "log_file_path",
    )
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        if value and (not Path(value).is_absolute() or "\0" in value):
            raise ValueError("want an absolute path")
        return value

    @field_validator("valid_attachments", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        if not isinstance(value, list):
            raise ValueError('want a list of {"containerID": "...", "ifname": "..."}')
        pairs = []
        for item in value:
            if not isinstance(item, dict) or not item.get("containerID"):
                raise ValueError('every item needs "containerID" and "ifname"')
            pairs.append((item["containerID"], item.get("ifname", "")))
        return pairs

    @property
    def datastore(self) -> str:
        """The datastore's type: as given, else etcd, else Kubernetes, where they are configured."""
        if self.datastore_type:
            return self.datastore_type
        if self.etcd_endpoints:
            return "etcdv3"
        return "kubernetes" if self.kubernetes else "sqlite"


def is_unicast_mac(text: str) -> bool:
    """Whether a lower-case text is a MAC address a pod may carry."""
    return (
        _MAC.fullmatch(text) is not None
        and not int(text[:2], 16) & 1
        and text != "00:00:00:00:00:00"
    )


def peek_version(stdin: bytes) -> str:
    """The configuration's `cniVersion` if we speak it, else the current one; never raises."""
    if len(stdin) <= MAX_STDIN:
        try:
            version = json.loads(stdin)["cniVersion"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return CURRENT_VERSION
        if version in SUPPORTED_VERSIONS:
            return str(version)
    return CURRENT_VERSION


def parse_conf(stdin: bytes) -> NetConf:
    """The configuration on standard input (CNI spec, section 1).

    Raises `Undecodable`, `IncompatibleVersion`, `UnsupportedField` or `InvalidConfig`.
    """
    data = _object(stdin)
    version = data.get("cniVersion") or OLDEST_VERSION
    if version not in SUPPORTED_VERSIONS:
        raise IncompatibleVersion(
            f"cniVersion {short(version)} is not supported; use one of "
            + ", ".join(SUPPORTED_VERSIONS)
        )
    known = {field.alias or name for name, field in NetConf.model_fields.items()}
    fields = {key: value for key, value in data.items() if key in known and value is not None}
    fields["cniVersion"] = version
    for alias in VALID_ATTACHMENTS:
        if data.get(alias) is not None:
            fields.setdefault(VALID_ATTACHMENTS[0], data[alias])
    for key in data:
        if key not in known and not _foreign(key):
            raise _unknown_key(key, data[key], known)
    try:
        return NetConf.model_validate(_cleaned(fields))
    except ValidationError as error:
        raise _explained(error) from None


_REFUSED = dict.fromkeys(("qps", "burst"), "calls of the Kubernetes API are not throttled")
"""Keys of Calico's that mean nothing here, and why."""

_RUNTIME_KEYS = frozenset({"capabilities", "args", "dns", "ipMasq", "cniVersions", "disableCheck"})


def _foreign(key: str) -> bool:
    """Keys that are a runtime's or a person's, not ours: namespaced, comments, list-level ones."""
    return key in _RUNTIME_KEYS or "/" in key or key.startswith("_")


def _object(stdin: bytes) -> dict[str, Any]:
    if len(stdin) > MAX_STDIN:
        raise Undecodable(f"the configuration on stdin has more than {MAX_STDIN} bytes")
    try:
        data = json.loads(stdin)
    except (ValueError, RecursionError) as error:
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


def _unknown_key(key: str, value: object, known: set[str]) -> UnsupportedField:
    if key in _REFUSED:
        return UnsupportedField(f"unsupported key {short(key)}: {_REFUSED[key]}; remove it")
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else "; remove it"
    return UnsupportedField(f"unsupported key {short(key)} with value {short(value)}{hint}")


def _explained(error: ValidationError) -> InvalidConfig | UnsupportedField:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "configuration"
    if first["type"] == "extra_forbidden":
        return UnsupportedField(
            f"unsupported key {where[:80]} with value {short(first['input'])}; remove it"
        )
    whole = first["type"] == "missing" or not first["loc"]  # of all keys some hold secrets
    given = "" if whole else f" (it is {short(first['input'])})"
    text = first["msg"].removeprefix("Value error, ")
    return InvalidConfig(f"{where[:80]}: {text}{given}")


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
    """The outcome of ADD, independent of CNI versions. Addresses belong to interface 1."""

    interfaces: tuple[Interface, ...]
    addresses: tuple[IPInterface, ...]

    def to_wire(self, version: str) -> dict[str, Any]:
        """The result as a CNI version spells it (CNI spec, section 5)."""
        out: dict[str, Any] = {"cniVersion": version}
        if version in ("0.1.0", "0.2.0"):
            for address in reversed(self.addresses):  # one per family: the first wins
                out[f"ip{address.version}"] = {"ip": str(address)}
            return {**dict(sorted(out.items())), "dns": {}}
        out["interfaces"] = [_interface(item, version) for item in self.interfaces]
        out["ips"] = [_ip(address, version) for address in self.addresses]
        out["dns"] = {}
        return out


def _interface(item: Interface, version: str) -> dict[str, Any]:
    out: dict[str, Any] = {"name": item.name}
    if item.mac:
        out["mac"] = item.mac
    if item.mtu and version == "1.1.0":
        out["mtu"] = item.mtu
    if item.sandbox:
        out["sandbox"] = item.sandbox
    return out


def _ip(address: IPInterface, version: str) -> dict[str, Any]:
    out: dict[str, Any] = {"interface": 1, "address": str(address)}
    return {"version": str(address.version), **out} if version.startswith("0.") else out


def addresses_of_result(result: Mapping[str, Any]) -> frozenset[str]:
    """The `address` texts of a previous result of any version. Raises `InvalidConfig`."""
    texts: list[object] = []
    try:
        texts += [item["address"] for item in result.get("ips") or ()]
        texts += [result[key]["ip"] for key in ("ip4", "ip6") if result.get(key)]
        return frozenset(str(ip_network(str(text), strict=False)) for text in texts)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidConfig(f"prevResult: its addresses cannot be read: {error}") from None
