"""A container runtime's half of the CNI specification (1.1.0, sections 1, 2 and 4).

The network is the first file by name in the node's `/etc/cni/net.d`. ADD runs the plugins in
order, each with the result of the one before as `prevResult`; DEL runs them in reverse, each with
the cached result of ADD. The cached attachment has libcni's form, so that its tools can read it.
A plugin that fails is an exception with the words of its error JSON, never a guess.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.tools import LabError

RUNTIME_VERSIONS = ("1.1.0", "1.0.0", "0.4.0", "0.3.1")
BIN_DIR = "/opt/cni/bin"
PLUGIN_DEADLINE_S = 120.0


class CniError(LabError):
    """A plugin refused; `code` and `details` are those of its error JSON."""

    def __init__(self, plugin: str, code: int, message: str, details: str = "") -> None:
        super().__init__(f"{plugin}: {message}" + (f": {details}" if details else ""))
        self.plugin = plugin
        self.code = code
        self.message = message
        self.details = details


@dataclass(frozen=True, slots=True)
class NetworkList:
    """A network configuration list. `raw` is the file's own text, for the cache."""

    name: str
    cni_version: str
    plugins: tuple[Mapping[str, Any], ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class Attachment:
    """One container's interface; `netns` is a path, empty when the namespace is gone."""

    container_id: str
    netns: str
    ifname: str = "eth0"
    args: tuple[tuple[str, str], ...] = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a plugin process left."""

    code: int
    stdout: bytes
    stderr: bytes


Execute = Callable[[str, Mapping[str, str], bytes], Finished]
"""Runs a plugin by its type's path, with an environment and a standard input."""


def load_network(directory: Path) -> NetworkList:
    """The network a runtime would use. Raises `LabError` when there is none or it is broken."""
    files = sorted(
        path for path in directory.glob("*") if path.suffix in (".conf", ".conflist", ".json")
    )
    if not files:
        raise LabError("cni config uninitialized: no network configuration in /etc/cni/net.d")
    return parse_network(files[0].read_bytes(), files[0].name)


def parse_network(raw: bytes, where: str) -> NetworkList:
    """A `.conflist` (or a single plugin's `.conf`) with the version to speak."""
    try:
        data = json.loads(raw)
        plugins = data.get("plugins", [data])
        versions = [*data.get("cniVersions", ()), data.get("cniVersion", "0.2.0")]
        spoken = next(
            (version for version in RUNTIME_VERSIONS if version in versions), versions[-1]
        )
        return NetworkList(data["name"], spoken, tuple(dict(one) for one in plugins), raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"/etc/cni/net.d/{where}: {error!r}") from error


def plugin_conf(
    network: NetworkList,
    plugin: Mapping[str, Any],
    capabilities: Mapping[str, Any],
    prev_result: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What one plugin reads on stdin: its own keys, and those the runtime sets (section 4)."""
    declared = plugin.get("capabilities") or {}
    conf = {key: value for key, value in plugin.items() if key != "capabilities"}
    conf["name"] = network.name
    conf["cniVersion"] = network.cni_version
    runtime = {key: value for key, value in capabilities.items() if declared.get(key)}
    if runtime:
        conf["runtimeConfig"] = runtime
    if prev_result is not None:
        conf["prevResult"] = dict(prev_result)
    return conf


def environment(command: str, attachment: Attachment) -> dict[str, str]:
    """The plugin's environment (section 2)."""
    out = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": attachment.container_id,
        "CNI_IFNAME": attachment.ifname,
        "CNI_PATH": BIN_DIR,
    }
    if attachment.netns:
        out["CNI_NETNS"] = attachment.netns
    if attachment.args:
        out["CNI_ARGS"] = ";".join(f"{key}={value}" for key, value in attachment.args)
    return out


def parse_reply(plugin: str, done: Finished) -> dict[str, Any] | None:
    """A plugin's result, None for silent success. Raises `CniError` for anything else."""
    text = done.stdout.strip()
    try:
        data = json.loads(text) if text else None
    except ValueError:
        data = None
        if done.code == 0:
            raise CniError(plugin, 999, f"printed no JSON: {text[:200]!r}") from None
    if done.code == 0:
        if data is not None and not isinstance(data, dict):
            raise CniError(plugin, 999, f"printed no JSON object: {text[:200]!r}")
        return data
    if isinstance(data, dict) and "code" in data:
        raise CniError(plugin, int(data["code"]), data.get("msg", ""), data.get("details", ""))
    words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    raise CniError(plugin, 999, f"exit {done.code} without error JSON: {words[-400:]}")


def executor(enter: Callable[[Sequence[str]], list[str]]) -> Execute:
    """Plugins as processes of a node; `enter` makes a node's command line of one."""

    def execute(path: str, env: Mapping[str, str], stdin: bytes) -> Finished:
        try:
            done = subprocess.run(
                enter([path]),
                input=stdin,
                env=dict(env),
                capture_output=True,
                timeout=PLUGIN_DEADLINE_S,
                check=False,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            return Finished(124, b"", f"no end after {PLUGIN_DEADLINE_S:g} s".encode())
        return Finished(done.returncode, done.stdout, done.stderr)

    return execute


class Runtime:
    """Attaches and detaches containers on one node."""

    def __init__(self, conf_dir: Path, cache_dir: Path, execute: Execute) -> None:
        self._conf_dir = conf_dir
        self._cache_dir = cache_dir
        self._execute = execute

    def add(self, attachment: Attachment) -> dict[str, Any]:
        """ADD of the whole chain; the last plugin's result. Raises `CniError`, `LabError`."""
        network = load_network(self._conf_dir)
        result: dict[str, Any] | None = None
        for plugin in network.plugins:
            result = self._call("ADD", network, plugin, attachment, result) or result
        if result is None:
            raise CniError(network.plugins[-1]["type"], 999, "ADD printed no result")
        self._remember(network, attachment, result)
        return result

    def delete(self, attachment: Attachment) -> None:
        """DEL of the whole chain, with ADD's result if there was one. Raises `CniError`."""
        cache = self._cache_file(attachment)
        network, result = self._recall(cache)
        for plugin in reversed(network.plugins):
            self._call("DEL", network, plugin, attachment, result)
        cache.unlink(missing_ok=True)

    def _call(
        self,
        command: str,
        network: NetworkList,
        plugin: Mapping[str, Any],
        attachment: Attachment,
        prev_result: Mapping[str, Any] | None,
    ) -> dict[str, Any] | None:
        conf = plugin_conf(network, plugin, attachment.capabilities, prev_result)
        done = self._execute(
            f"{BIN_DIR}/{plugin['type']}",
            environment(command, attachment),
            json.dumps(conf).encode(),
        )
        return parse_reply(plugin["type"], done)

    def _cache_file(self, attachment: Attachment) -> Path:
        return self._cache_dir / f"{attachment.container_id}-{attachment.ifname}"

    def _remember(
        self, network: NetworkList, attachment: Attachment, result: Mapping[str, Any]
    ) -> None:
        record = {
            "kind": "cniCacheV1",
            "containerId": attachment.container_id,
            "config": base64.b64encode(network.raw).decode(),
            "ifName": attachment.ifname,
            "networkName": network.name,
            "cniArgs": [list(pair) for pair in attachment.args],
            "capabilityArgs": dict(attachment.capabilities),
            "result": result,
        }
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        self._cache_file(attachment).write_text(json.dumps(record))

    def _recall(self, cache: Path) -> tuple[NetworkList, Mapping[str, Any] | None]:
        """The configuration and result of ADD; today's configuration when ADD never finished."""
        try:
            record = json.loads(cache.read_text())
        except FileNotFoundError:
            return load_network(self._conf_dir), None
        return parse_network(base64.b64decode(record["config"]), cache.name), record["result"]


def result_addresses(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The addresses of a result, without prefix lengths, IPv4 first."""
    found = [entry["address"].split("/")[0] for entry in result.get("ips", ())]
    return tuple(sorted(found, key=lambda address: ":" in address))
