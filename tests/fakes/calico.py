"""Calico's own programs on a test's datastore: `calicoctl`, and a node's client of its IPAM.

They are built by `make peer` from Calico's published Go modules; nothing here imitates them.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Self

from tests.fakes.etcd_server import EtcdMember

BUILT = Path(__file__).parents[2] / "build" / "peer"
PATIENCE = 120.0
Address = IPv4Address | IPv6Address


class CalicoError(Exception):
    """What a program of Calico's says when it fails."""


def program(name: str) -> str:
    """The path of a program; a missing one fails the test."""
    path = BUILT / name
    assert path.exists(), f"{path} is missing; run `make peer`"
    return str(path)


@dataclass(frozen=True)
class Place:
    """A datastore, and a directory for reports."""

    directory: Path
    settings: Mapping[str, str]

    def environ(self) -> dict[str, str]:
        """What a program of Calico's is started with."""
        foreign = ("CALICO_", "ETCD_", "K8S_", "KUBE", "DATASTORE_")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
        return kept | {"HOME": str(self.directory)} | dict(self.settings)


def on_etcd(member: EtcdMember) -> Place:
    """An etcd."""
    settings = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.url}
    return Place(member.directory, settings)


def on_kubernetes(url: str, directory: Path) -> Place:
    """A Kubernetes API server that takes everybody."""
    return Place(directory, {"DATASTORE_TYPE": "kubernetes", "K8S_API_ENDPOINT": url})


class Calicoctl:
    """The command line, on one datastore."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def run(self, *arguments: str, text: str = "") -> str:
        """What a command prints. Raises `CalicoError`, with all it said."""
        done = subprocess.run(
            [program("calicoctl"), "--allow-version-mismatch", *arguments],
            input=text,
            capture_output=True,
            text=True,
            env=self._place.environ(),
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise CalicoError(f"{done.stdout}{done.stderr}".strip())
        return done.stdout

    def apply(self, text: str) -> None:
        """Create or replace resources, given as YAML or JSON."""
        self.run("apply", "-f", "-", text=text)

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        """A resource, without its revision."""
        where = ("-n", namespace) if namespace else ()
        found: dict[str, Any] = json.loads(self.run("get", kind, name, *where, "-o", "json"))
        found["metadata"].pop("resourceVersion")
        return found

    def problems(self) -> list[str]:
        """What `ipam check` finds wrong, in its own lines; [] when it finds nothing."""
        said = self.run("ipam", "check", "--show-problem-ips")
        if "Check complete; found 0 problems." in said:
            return []
        return [line.strip() for line in said.splitlines() if line.strip()]

    def allocations(self) -> dict[Address, str]:
        """Address → handle ("" without one), as the report of `ipam check` has them."""
        report_file = self._place.directory / "check.json"
        self.run("ipam", "check", "-o", str(report_file))
        report: dict[str, Any] = json.loads(report_file.read_text())
        found = report["allocations"].values()
        return {ip_address(one["ip"]): one.get("handle", "") for each in found for one in each}


class CalicoNode:
    """A Calico node's IPAM client: a process of its own, which answers one request at a time."""

    def __init__(self, place: Place, node: str) -> None:
        self._process = subprocess.Popen(
            [program("ipampeer"), f"--node={node}"],
            env=place.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        """Its answer. Raises `CalicoError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "ipampeer ended"
        answer: dict[str, Any] = json.loads(line)
        if answer.get("error"):
            raise CalicoError(answer["error"])
        return answer

    def assign(
        self, handle: str, attrs: Mapping[str, str], *, ipv4: int = 1, ipv6: int = 0
    ) -> list[Address]:
        """New addresses for a handle."""
        return _addresses(self.ask("assign", handle=handle, attrs=attrs, ipv4=ipv4, ipv6=ipv6))

    def claim(self, handle: str, address: str, attrs: Mapping[str, str]) -> None:
        """One explicit address for a handle."""
        self.ask("claim", handle=handle, address=address, attrs=attrs)

    def addresses(self, handle: str) -> list[Address]:
        """What a handle holds."""
        return _addresses(self.ask("addresses", handle=handle))

    def release(self, handle: str) -> None:
        """Give back what a handle holds."""
        self.ask("release", handle=handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate(timeout=PATIENCE)


def stored(member: EtcdMember, prefix: str = "/") -> list[tuple[str, str]]:
    """Every key below a prefix with its text, in path order."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    body = {"key": _b64(prefix), "range_end": _b64(end)}
    rows = member.ask("kv/range", body).get("kvs", [])
    return [(_text(row["key"]), _text(row.get("value", ""))) for row in rows]


def _addresses(answer: Mapping[str, Any]) -> list[Address]:
    return [ip_address(text) for text in answer["addresses"] or []]


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(coded: str) -> str:
    return base64.b64decode(coded).decode()
