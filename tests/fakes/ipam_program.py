"""Another program's IPAM, in memory: what host-local does, as a `delegate.Run`.

Held to the real host-local by tests/netns/test_cni_delegated.py: the same refusals, the same
answers. `asked` lists the calls; `older` is a program that speaks no version above this one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from cni_plugin.child import Finished

OLD = ("0.3.0", "0.3.1", "0.4.0", "1.0.0")
NEW = (*OLD, "1.1.0")


class FakeProgram:
    """One program's state; `step` is called before each change with its name."""

    def __init__(
        self,
        directory: Path,
        name: str = "host-local",
        *,
        versions: tuple[str, ...] = OLD,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / name
        path.touch()
        path.chmod(0o755)
        self.path = str(directory)
        self.name = name
        self.versions = versions
        self.step = step
        self.held: dict[tuple[str, str], list[str]] = {}
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.answers: dict[str, Finished] = {}
        self.given = 1

    def settings(self, **ipam: Any) -> dict[str, Any]:
        """Keys of a network configuration that delegates to this program."""
        section = {"type": self.name, "subnet": "10.99.0.0/24", **ipam}
        return {"CNI_PATH": self.path, "ipam": section}

    def verbs(self) -> list[str]:
        """The verbs it was asked, in order."""
        return [verb for verb, _, _ in self.asked]

    def __call__(self, program: Path, env: Mapping[str, str], stdin: bytes) -> Finished:
        """Run, as the kernel would."""
        assert program.name == self.name
        verb, body = env["CNI_COMMAND"], json.loads(stdin)
        self.step(f"ipam {verb}")
        self.asked.append((verb, dict(env), body))
        if verb == "VERSION":
            return _answer({"cniVersion": "1.0.0", "supportedVersions": list(self.versions)})
        if verb in ("GC", "STATUS") and "1.1.0" not in self.versions and "CNI_IFNAME" not in env:
            return _refusal(3, "missing containerID")  # it looks at that first
        known = body["cniVersion"] in self.versions
        if not known:
            return _refusal(1, f"incompatible CNI versions: plugin supports {self.versions}")
        return self.answers[verb] if verb in self.answers else self._serve(verb, env, body)

    def _serve(self, verb: str, env: Mapping[str, str], body: Mapping[str, Any]) -> Finished:
        if verb in ("GC", "STATUS") and "1.1.0" not in self.versions:
            return _refusal(4, f"unknown CNI_COMMAND: {verb}")
        key = (env.get("CNI_CONTAINERID", ""), env.get("CNI_IFNAME", ""))
        if verb == "ADD":
            return self._add(key, body)
        if verb == "CHECK" and key not in self.held:
            return _refusal(999, "host-local: Failed to find address added by container")
        if verb == "DEL":
            self.held.pop(key, None)
        if verb == "GC":
            valid = {(v["containerID"], v["ifname"]) for v in body["cni.dev/valid-attachments"]}
            self.held = {k: v for k, v in self.held.items() if k in valid}
        return Finished(0, b"")

    def _add(self, key: tuple[str, str], body: Mapping[str, Any]) -> Finished:
        if key in self.held:
            return _refusal(999, f"10.99.0.2 has been allocated to {key[0]}, duplicate allocation")
        section = body["ipam"]
        subnets = [section["subnet"]] if "subnet" in section else []
        subnets += [group[0]["subnet"] for group in section.get("ranges", ())]
        self.given += 1
        networks = [ip_network(text) for text in subnets]
        self.held[key] = [f"{one[self.given]}/{one.prefixlen}" for one in networks]
        ips = [
            {"address": text, "gateway": str(ip_network(s)[1])}
            for text, s in zip(self.held[key], subnets, strict=True)
        ]
        result = {"cniVersion": body["cniVersion"], "ips": ips, "dns": section.get("dns", {})}
        if section.get("routes"):
            result["routes"] = section["routes"]
        return _answer(result)


def _answer(value: object) -> Finished:
    return Finished(0, json.dumps(value).encode())


def _refusal(code: int, msg: str) -> Finished:
    return Finished(1, json.dumps({"cniVersion": "1.0.0", "code": code, "msg": msg}).encode())
