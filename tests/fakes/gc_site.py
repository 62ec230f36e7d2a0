"""The collector's command as a process, over a small town that leaks one address."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab.apiserver.server import ApiServer
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from tests.fakes.gc_world import Town
from tests.fakes.ipam_world import World
from tests.fakes.kube import FakeKube

DEADLINE = 120.0


@dataclass
class Site:
    """A town with one leaked address, and the command that is told where it is."""

    town: Town
    file: Path
    spec: dict[str, Any]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *args: str, out: int = subprocess.PIPE, **env: str) -> subprocess.Popen[str]:
        body = {
            "apiVersion": "projectcalico.org/v3",
            "kind": "CalicoAPIConfig",
            "spec": self.spec,
        }
        self.file.write_text(yaml.safe_dump(body))
        command = [sys.executable, "-m", "controllers.cli", "gc", "-c", str(self.file), *args]
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self.running.append(process)
        return process

    def __call__(self, *args: str, status: int = 0) -> tuple[list[str], str]:
        process = self.start(*args)
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == status, out + err
        return out.splitlines(), err

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()


def furnish(store: Datastore, server: ApiServer, *, stores_nodes: bool = True) -> Town:
    fake = FakeKube()
    fake.api = server.api
    town = Town(World(store), fake, stores_nodes=stores_nodes)
    town.start("app")
    town.start("web")
    town.remove_pod("web")
    return town


@contextmanager
def site_in(directory: Path, server: ApiServer) -> Iterator[Site]:
    """A site on SQLite; its processes are ended afterwards."""
    path = directory / "t.db"
    spec = {"datastoreType": "sqlite", "sqlitePath": str(path), "k8sAPIEndpoint": server.url}
    with closing(SqliteDatastore(path)) as store:
        made = Site(furnish(store, server), directory / "gc.cfg", spec)
        try:
            yield made
        finally:
            made.close()


def leaked(site: Site) -> str:
    """The address of the pod that is gone."""
    for block in site.town.world.blocks():
        for ordinal in range(len(block.allocations)):
            attribute = block.attribute(ordinal)
            if attribute is not None and attribute.active.get("pod") == "web":
                return str(block.address(ordinal))
    return ""
