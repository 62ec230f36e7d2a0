"""The lab's API server on disk and as a process: restarts, kills, its command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.apiserver.server import ApiServer
from libtortie.errors import (
    NotFound,
    Unauthorized,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Namespace, Pod, VirtualMachineInstance
from tests.fakes.objects import named

PODS = "/api/v1/namespaces/default/pods"


def test_a_restart_keeps_objects_and_versions(tmp_path: Path) -> None:
    data = tmp_path / "state.json"
    with ApiServer(data=data) as one:
        client = HttpKubeClient(direct(one.url))
        client.raw("POST", PODS, named("web", spec={"a": 1}))
        client.raw("POST", PODS, named("gone"))
        client.delete(Pod, "gone", "default")
        kept = client.raw("GET", f"{PODS}/web")
        _, version = client.list(Pod)
        client.close()
    assert one.crashes == []
    with ApiServer(data=data) as two:
        client = HttpKubeClient(direct(two.url))
        assert client.raw("GET", f"{PODS}/web") == kept
        assert client.list(Pod)[1] == version
        assert len(client.list(Pod)[0]) == 1
        made = client.raw("POST", PODS, named("new"))
        assert int(made["metadata"]["resourceVersion"]) == int(version) + 1
        client.close()


class Process:
    """`python -m lab.apiserver`."""

    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.apiserver", "--listen", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        try:
            return self._process.wait(60)
        finally:
            self._process.kill()
            self._process.communicate()


def test_a_killed_process_loses_nothing_it_answered(tmp_path: Path) -> None:
    data = str(tmp_path / "state.json")
    running = Process("--data", data)
    try:
        client = HttpKubeClient(direct(running.url))
        made = [client.raw("POST", PODS, named(f"p{n}")) for n in range(30)]
        client.close()
    finally:
        running.end(signal.SIGKILL)
    with (tmp_path / "state.json.log").open("a") as log:
        log.write('{"version": 999, "type": "ADDED", "res')  # the write it was killed in
    running = Process("--data", data)
    try:
        client = HttpKubeClient(direct(running.url))
        listed = client.raw("GET", PODS)
        assert sorted(listed["items"], key=str) == sorted(made, key=str)
        assert listed["metadata"]["resourceVersion"] == made[-1]["metadata"]["resourceVersion"]
        client.close()
    finally:
        assert running.end(signal.SIGTERM) == 0
    assert (tmp_path / "state.json.log").read_text() == ""


def test_the_process_reads_tokens_and_withholds_groups(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text('# comment\nt1,alice,1,"admins,ops"\n')
    running = Process("--token-file", str(tokens), "--without", "kubevirt.io")
    try:
        client = HttpKubeClient(direct(running.url, "t1"))
        assert client.list(Namespace)[0]
        with pytest.raises(NotFound):
            client.list(VirtualMachineInstance)
        tokens.write_text("t2,alice\n")
        os.utime(tokens, ns=(0, 0))
        with pytest.raises(Unauthorized):
            client.list(Namespace)
        client.close()
    finally:
        assert running.end(signal.SIGTERM) == 0


def test_ipv6(tmp_path: Path) -> None:
    with ApiServer("::1") as server:
        assert server.url.startswith("http://[::1]:")
        client = HttpKubeClient(direct(server.url))
        assert client.list(Namespace)[0]
        client.close()
