"""What libcni does with a list of plugins, for runtimes that know more verbs than Debian's.

One step per plugin: its object of the list with the list's name and version, the capabilities it
declares, and the result of the one before. DEL and CHECK get the result that was remembered;
DEL goes backwards. GC first deletes what is remembered and not valid, then asks every plugin.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JSON = dict[str, Any]


class PluginError(Exception):
    """A plugin's error object; `code` is its CNI code."""

    def __init__(self, plugin: str, verb: str, body: JSON) -> None:
        super().__init__(f"{plugin} {verb}: {body}")
        self.code = int(body.get("code", 0))
        self.body = body


@dataclass(frozen=True, slots=True)
class Attachment:
    """A container's interface; `args` are CNI_ARGS."""

    container: str
    netns: str
    ifname: str = "eth0"
    args: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Runtime:
    """Calls plugins in the network namespace at `space`, and remembers results in `cache`."""

    path: Path
    cache: Path
    space: str
    calls: list[tuple[str, str]] = field(default_factory=list)

    def add(self, network: JSON, one: Attachment) -> JSON:
        """ADD by every plugin in turn. Raises `PluginError`."""
        result: JSON | None = None
        for plugin in network["plugins"]:
            result = self._run(network, plugin, "ADD", one, prevResult=result)
        assert result is not None
        entry = {
            "kind": "cniCacheV1",
            "containerId": one.container,
            "ifName": one.ifname,
            "networkName": network["name"],
            "netns": one.netns,
            "cniArgs": one.args,
            "capabilityArgs": dict(one.capabilities),
            "result": result,
        }
        self.cache.mkdir(parents=True, exist_ok=True)
        self._entry(network, one).write_text(json.dumps(entry))
        return result

    def delete(self, network: JSON, one: Attachment) -> None:
        """DEL by every plugin, the last first."""
        for plugin in reversed(network["plugins"]):
            self._run(network, plugin, "DEL", one, prevResult=self.cached(network, one))
        self._entry(network, one).unlink(missing_ok=True)

    def check(self, network: JSON, one: Attachment) -> None:
        """CHECK by every plugin, unless the list does not want it."""
        if network.get("disableCheck"):
            return
        for plugin in network["plugins"]:
            self._run(network, plugin, "CHECK", one, prevResult=self.cached(network, one))

    def collect(self, network: JSON, valid: Sequence[Attachment] | None) -> None:
        """GC with what is valid; None gives the plugins no list, as libcni without arguments."""
        listed = [{"containerID": one.container, "ifname": one.ifname} for one in valid or ()]
        for path in sorted(self.cache.glob("*")) if self.cache.exists() else ():
            entry = json.loads(path.read_text())
            known = {"containerID": entry["containerId"], "ifname": entry["ifName"]}
            if entry["networkName"] == network["name"] and known not in listed:
                stale = Attachment(
                    entry["containerId"], entry["netns"], entry["ifName"], entry["cniArgs"]
                )
                self.delete(network, stale)
        keys = ("cni.dev/valid-attachments", "cni.dev/attachments")
        lists = {} if valid is None else dict.fromkeys(keys, listed or None)
        for plugin in network["plugins"]:
            self._run(network, plugin, "GC", None, **lists)

    def status(self, network: JSON) -> None:
        """STATUS of every plugin."""
        for plugin in network["plugins"]:
            self._run(network, plugin, "STATUS", None)

    def forget(self, network: JSON, one: Attachment) -> None:
        """Lose what is remembered, as a machine whose /var/lib/cni was cleared."""
        self._entry(network, one).unlink()

    def cached(self, network: JSON, one: Attachment) -> JSON | None:
        """The remembered result."""
        try:
            result: JSON = json.loads(self._entry(network, one).read_text())["result"]
        except FileNotFoundError:
            return None
        return result

    def _entry(self, network: JSON, one: Attachment) -> Path:
        return self.cache / f"{network['name']}-{one.container}-{one.ifname}"

    def _run(
        self, network: JSON, plugin: JSON, verb: str, one: Attachment | None, **more: Any
    ) -> JSON | None:
        conf = {key: value for key, value in plugin.items() if key != "capabilities"}
        conf |= {"name": network["name"], "cniVersion": network["cniVersion"]}
        given = one.capabilities if one else {}
        granted = {name: given[name] for name in plugin.get("capabilities", {}) if name in given}
        conf |= {"runtimeConfig": granted} if granted else {}
        conf |= {key: value for key, value in more.items() if value is not None or "/" in key}
        env = {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": verb,
            "CNI_PATH": str(self.path),
            "CNI_CONTAINERID": one.container if one else "",
            "CNI_NETNS": one.netns if one else "",
            "CNI_IFNAME": one.ifname if one else "",
            "CNI_ARGS": one.args if one else "",
        }
        self.calls.append((plugin["type"], verb))
        done = subprocess.run(
            ["nsenter", f"--net={self.space}", str(self.path / plugin["type"])],
            input=json.dumps(conf).encode(),
            env=env,
            capture_output=True,
            check=False,
            timeout=240,
        )
        body: JSON | None = json.loads(done.stdout) if done.stdout.strip() else None
        if done.returncode:
            raise PluginError(plugin["type"], verb, body or {"msg": done.stderr.decode()})
        return body
