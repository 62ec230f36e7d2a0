"""The CNI contract: a request's bytes to one verb of the plugin, and every outcome to CNI JSON.

`dispatch` never raises. It validates the environment (CNI spec, section 2), negotiates the
version, and is the only place that turns errors into CNI codes. A traceback goes to the log,
never to the caller.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cni_plugin import chain
from cni_plugin.calls import Call, note, recorded
from cni_plugin.errors import IncompatibleVersion, InvalidEnvironment, NotReady, Refusal
from cni_plugin.frame import Response
from cni_plugin.types import (
    CURRENT_VERSION,
    SUPPORTED_VERSIONS,
    NetConf,
    Result,
    parse_conf,
    peek_version,
    short,
)
from cni_plugin.undo import Log, silent
from libtortie import errors

_CONTAINER_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_VM_LABEL = re.compile(r"(^|\.)vmi\.")
"""A container's handle is `<network>.<id>`, a VM's `<network>.vmi.<namespace>.<name>`."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_IFNAME_MAX = 15
INTERNAL_ERROR = 999
TRACED = "this is a bug; its traceback is in the log"

Observer = Callable[[Call, int], None]


def ignore(call: Call, code: int) -> None:
    """An `Observer` that does nothing."""


CODES: tuple[tuple[type[errors.TortieError], int], ...] = (
    (errors.Unavailable, 11),
    (errors.Conflict, 11),
    (errors.PartialCommit, 11),
    (errors.Compacted, 11),
    (errors.InvalidInput, 7),
    (errors.NoFreeAddresses, 102),
    (errors.OwnerMismatch, 103),
    (errors.MigrationRefused, 104),
    (errors.KernelError, 105),
    (errors.Unauthorized, 106),
    (errors.Malformed, 107),
    (errors.TortieError, 100),
)
"""First match wins. 11 is the CNI specification's "try again later"."""


@dataclass(frozen=True, slots=True)
class CmdArgs:
    """One call's parameters, validated. `netns` may be empty on DEL; `args` is CNI_ARGS."""

    container_id: str
    netns: str
    ifname: str
    args: Mapping[str, str] = field(default_factory=dict)

    @property
    def pod(self) -> str:
        """The Kubernetes pod's name, or empty for a caller that names none."""
        return self.args.get("K8S_POD_NAME", "") if self.args.get("K8S_POD_NAMESPACE") else ""

    @property
    def namespace(self) -> str:
        """The pod's namespace; `default` for a caller that names none (as in Calico)."""
        return self.args["K8S_POD_NAMESPACE"] if self.pod else "default"

    @property
    def pod_uid(self) -> str:
        """The pod's UID as the runtime knows it, or empty."""
        return self.args.get("K8S_POD_UID", "")


class PluginVerbs(Protocol):
    """What a plugin does; the verbs of the CNI specification, section 2."""

    def cmd_add(self, args: CmdArgs, conf: NetConf) -> Result: ...

    def cmd_del(self, args: CmdArgs, conf: NetConf) -> None: ...

    def cmd_check(self, args: CmdArgs, conf: NetConf) -> None: ...

    def cmd_gc(self, conf: NetConf) -> None: ...

    def cmd_status(self, conf: NetConf) -> None: ...


def dispatch(
    env: Mapping[str, str],
    stdin: bytes,
    plugin: PluginVerbs | Callable[[NetConf], PluginVerbs],
    *,
    log: Log = silent,
    observe: Observer = ignore,
    monotonic: Callable[[], float] = time.monotonic,
) -> Response:
    """Serve one request; the answer's `code` is the exit status (0, or 1 for an error).

    The call becomes one line of the log, and is observed with its CNI code (0: success).
    """
    command = _printable(env.get("CNI_COMMAND", "")[:16])
    container_id = _printable(env.get("CNI_CONTAINERID", "")[:128])
    trouble: dict[str, object] = {}
    code, answer = 0, b""
    with recorded(Call(command, monotonic, fields={"container_id": container_id})) as call:
        try:
            answer = _serve(env, stdin, plugin)
        except errors.TortieError as error:
            code, text = _code(error), str(error)
            answer = error_json(stdin, code, text, details_of(error))
            trouble = {"command": command, "code": code, "error": text[:2000]}
        except Exception as error:
            code, text = INTERNAL_ERROR, bug(error)
            answer = error_json(stdin, code, text, TRACED)
            trouble = {"command": command, "code": code, "error": text[:2000]}
            trouble["traceback"] = traceback.format_exc()
    log("cni_error" if code else f"cni_{command.lower()}", **{**call.told(), **trouble})
    observe(call, code)
    return Response(1 if code else 0, answer)


def bug(error: BaseException) -> str:
    """What a caller is told of an error that nobody foresaw."""
    return f"internal error: {type(error).__name__}: {errors.first_line(error)[:300]}"


def error_json(stdin: bytes, code: int, text: str, details: str = "") -> bytes:
    """A CNI error object (CNI spec, section 5)."""
    error = {"cniVersion": peek_version(stdin), "code": code, "msg": text[:2000]}
    if details:
        error["details"] = details[:4000]
    return _json(error)


def details_of(error: BaseException) -> str:
    """What there is to say beyond an error's text: its notes, and what it came from."""
    out = list(getattr(error, "__notes__", ()))
    told, cause = str(error), error.__cause__
    while cause is not None:
        text = errors.first_line(cause)
        if text not in told:
            out.append(f"because of {type(cause).__name__}: {text}")
            told += text
        cause = cause.__cause__
    return "\n".join(out)


def _serve(
    env: Mapping[str, str], stdin: bytes, plugin: PluginVerbs | Callable[[NetConf], PluginVerbs]
) -> bytes:
    command = env.get("CNI_COMMAND", "")
    if command == "VERSION":
        return _json({"cniVersion": peek_version(stdin), "supportedVersions": SUPPORTED_VERSIONS})
    if command not in _SINCE:
        raise InvalidEnvironment(
            f"CNI_COMMAND is {short(command)}; want one of {', '.join(_SINCE)}, VERSION"
        )
    args = None if command in ("GC", "STATUS") else parse_args(command, env)
    if args is not None:
        note(namespace=args.namespace, pod=args.pod)
        if args.pod_uid:
            note(pod_uid=args.pod_uid)
    conf = parse_conf(stdin, env.get("CNI_PATH", ""))
    note(network=conf.name)
    _require_version(command, conf.cni_version)
    if args is None:
        _serve_network(command, conf, plugin)
        return b""
    if command == "ADD":
        before = None if conf.is_foreign else chain.previous(conf.prev_result)
        chain.require_chains(before, conf.cni_version)
        result = _verbs(plugin, conf).cmd_add(args, conf).to_wire(conf.cni_version)
        return _json(chain.extended(before, result, conf.cni_version))
    verbs = _verbs(plugin, conf)
    verbs.cmd_del(args, conf) if command == "DEL" else verbs.cmd_check(args, conf)
    return b""


def _serve_network(
    command: str, conf: NetConf, plugin: PluginVerbs | Callable[[NetConf], PluginVerbs]
) -> None:
    """GC and STATUS. What would keep ADD from being served is STATUS's answer, not its failure."""
    if command == "GC":
        _verbs(plugin, conf).cmd_gc(conf)
        return
    try:
        _verbs(plugin, conf).cmd_status(conf)
    except Refusal:
        raise
    except errors.TortieError as error:
        raise NotReady(str(error)) from error


def _verbs(plugin: PluginVerbs | Callable[[NetConf], PluginVerbs], conf: NetConf) -> PluginVerbs:
    return plugin(conf) if callable(plugin) else plugin


_SINCE = {"ADD": "0.1.0", "DEL": "0.1.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}


_NAMES = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")
_REQUIRED = {"ADD": _NAMES, "CHECK": _NAMES, "DEL": ("CNI_CONTAINERID", "CNI_IFNAME")}


def _require_version(command: str, version: str) -> None:
    if SUPPORTED_VERSIONS.index(version) < SUPPORTED_VERSIONS.index(_SINCE[command]):
        raise IncompatibleVersion(
            f"{command} needs cniVersion {_SINCE[command]} or later, not {version}"
        )


def parse_args(command: str, env: Mapping[str, str]) -> CmdArgs:
    """The parameters of ADD, DEL or CHECK. Raises `InvalidEnvironment` naming the variable.

    DEL must not fail for what ADD refuses, which has left nothing: it goes by container and
    interface, and what it cannot read of the rest was not said.
    """
    strict = command != "DEL"
    if missing := [name for name in _REQUIRED[command] if not env.get(name)]:
        raise InvalidEnvironment(f"{command} needs {', '.join(missing)}, which is not set")
    container_id = env.get("CNI_CONTAINERID", "")
    if not _CONTAINER_ID.fullmatch(container_id) or len(container_id) > 128:
        raise InvalidEnvironment(
            f"CNI_CONTAINERID is {short(container_id)}; want 1 to 128 of letters, digits, "
            "'_', '.', '-', a letter or digit first"
        )
    if _VM_LABEL.search(container_id):
        raise InvalidEnvironment(
            f"CNI_CONTAINERID is {short(container_id)}; 'vmi.' in it would name a VM's addresses"
        )
    netns = env.get("CNI_NETNS", "")
    if netns and not (netns.startswith("/") and "\0" not in netns and _is_text(netns)):
        if strict:
            raise InvalidEnvironment(f"CNI_NETNS is {short(netns)}; want an absolute path in UTF-8")
        netns = ""
    ifname = env.get("CNI_IFNAME", "")
    if not _legal_ifname(ifname):
        raise InvalidEnvironment(
            f"CNI_IFNAME is {short(ifname)}; want an interface name of at most {_IFNAME_MAX} bytes"
        )
    args = _cni_args(env.get("CNI_ARGS", ""), strict=strict)
    if strict:
        _require_known(args)
    return CmdArgs(container_id, netns, ifname, args)


def _printable(value: str) -> str:
    """A value for the log, which is UTF-8."""
    return value.encode(errors="replace").decode()


def _is_text(value: str) -> bool:
    """Whether an environment value was UTF-8: other bytes arrive as lone surrogates (PEP 383)."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _legal_ifname(name: str) -> bool:
    """The kernel's rule (dev_valid_name), and no byte that would need care in a path or a log."""
    plain = all("!" <= char <= "~" and char not in '/:"\\%' for char in name)
    return 0 < len(name) <= _IFNAME_MAX and name not in (".", "..") and plain


def _cni_args(text: str, *, strict: bool) -> dict[str, str]:
    """The pairs of CNI_ARGS; what is none is refused if `strict`, else left out."""
    out: dict[str, str] = {}
    for item in filter(None, text.split(";")):
        key, separator, value = item.partition("=")
        trouble = _trouble_with(key, value) if key and separator else "is not KEY=VALUE in UTF-8"
        if not trouble:
            out[key] = value
        elif strict:
            raise InvalidEnvironment(f"CNI_ARGS: {short(item)} {trouble}")
    return out


_NAMES_MAX = {"K8S_POD_NAMESPACE": 63, "K8S_POD_NAME": 253}


def _trouble_with(key: str, value: str) -> str:
    """What is wrong with an argument; empty if nothing is."""
    if not (_is_text(key) and _is_text(value)):
        return "is not KEY=VALUE in UTF-8"
    limit = _NAMES_MAX.get(key)
    if limit and value and (len(value) > limit or not _kubernetes_name(value, key)):
        return "is not a Kubernetes name"
    return ""


_POD_ARGS = ("K8S_POD_NAME", "K8S_POD_NAMESPACE", "K8S_POD_UID", "K8S_POD_INFRA_CONTAINER_ID")
_KNOWN_ARGS = frozenset(("IP", "MAC", "GATEWAY", *_POD_ARGS))
_BOOLEAN = {"1": True, "true": True, "0": False, "false": False}


def _require_known(args: Mapping[str, str]) -> None:
    """Other arguments are errors, unless the caller says that they may be ignored (CNI convention).

    Raises `InvalidEnvironment`.
    """
    ignore = _BOOLEAN.get(args.get("IgnoreUnknown", "0").lower())
    if ignore is None:
        given = short(args["IgnoreUnknown"])
        raise InvalidEnvironment(f"CNI_ARGS: IgnoreUnknown is {given}; want 1, true, 0 or false")
    unknown = sorted(set(args) - _KNOWN_ARGS - {"IgnoreUnknown"})
    if unknown and not ignore:
        raise InvalidEnvironment(
            f"CNI_ARGS: {short(unknown[0])} is unknown, and IgnoreUnknown is not set"
        )


def _kubernetes_name(value: str, key: str) -> bool:
    labels = value.split(".") if key == "K8S_POD_NAME" else [value]
    return all(_LABEL.fullmatch(label) for label in labels)


def _code(error: errors.TortieError) -> int:
    if isinstance(error, Refusal):
        return error.code
    return next(code for kind, code in CODES if isinstance(error, kind))


def _json(value: object) -> bytes:
    """As UTF-8: escaped, what was passed on could outgrow what it came in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"


__all__ = ["CURRENT_VERSION", "CmdArgs", "PluginVerbs", "Response", "dispatch", "parse_args"]
