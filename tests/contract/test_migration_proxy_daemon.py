"""The daemon as a process: start, requests, metrics, one instance, SIGTERM, bad input."""

from __future__ import annotations

import io
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libtortie.control_client import ask
from libtortie.errors import Unavailable
from libtortie.jsonlog import JsonLog
from migration_proxy import daemon as daemon_module
from migration_proxy.config import load_config
from migration_proxy.daemon import Daemon
from tests.fakes.metric_reference import COMPONENTS
from tests.fakes.migration_proxies import (
    KEY,
    Pki,
    Program,
    connect,
    listens,
    short_directory,
    until,
)

PROGRAM = str(Path(sys.executable).with_name("tortie-migration-proxy"))


class Running:
    """A daemon with its files in a directory."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.control = str(directory / "ctl")
        self.config = directory / "proxy.yaml"
        tls = Pki.make(directory / "pki").tls().model_dump()
        said = {"listen": "127.0.0.1", "tls": tls, "control_socket": self.control, **settings}
        self.config.write_text(json.dumps(said))
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        command = [PROGRAM, "-c", str(self.config)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        until(self.answers)
        return self.process

    def answers(self) -> bool:
        try:
            return bool(self.do("health")["health"] == "ok")
        except Unavailable:
            return False

    def do(self, verb: str, **more: Any) -> dict[str, Any]:
        return ask(self.control, {"do": verb, **more}, seconds=120)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def daemon() -> Iterator[Running]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with short_directory() as directory:
        made = Running(directory, metrics_port=port, metrics_host="127.0.0.1")
        try:
            yield made
        finally:
            made.close()


def probed(daemon: Running, path: str) -> tuple[int, str]:
    """A probe's status, and its lines about what is wrong."""
    port = json.loads(daemon.config.read_text())["metrics_port"]
    until(lambda: listens(port))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
            status, body = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, error.read().decode()
    return status, "".join(f"{line}\n" for line in body.splitlines() if "[+]" not in line)


def test_a_migration_through_a_daemon_and_its_drain(daemon: Running) -> None:
    """SIGTERM, even twice, waits for the migration's end; then everything is gone."""
    process = daemon.start()
    program = Program(daemon.directory / "target" / f"{KEY}-49152")
    ports = daemon.do("start-target", key=KEY, files=[str(program.path)])["ports"]
    base = str(daemon.directory / "base")
    (path,) = daemon.do("start-source", key=KEY, address="127.0.0.1", ports=ports, base_dir=base)[
        "files"
    ]
    caller, accepted = connect(path), program.accept()
    caller.sendall(b"memory")
    assert accepted.recv(100) == b"memory"
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
    until(lambda: bool(daemon.do("status")["shutting_down"]))
    assert probed(daemon, "/readyz") == (503, "not ok\n[-]migrations: shutting down\n")
    assert probed(daemon, "/livez")[0] == 200
    caller.sendall(b"more")
    assert accepted.recv(100) == b"more"
    caller.close()
    assert accepted.recv(100) == b""
    daemon.do("stop-source", key=KEY)
    daemon.do("stop-target", key=KEY)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0
    assert {json.loads(line)["event"] for line in said.splitlines()} >= {
        "serving",
        "target_listening",
        "source_listening",
        "stream_over",
        "draining",
        "stopped",
    }
    assert not [line for line in said.splitlines() if json.loads(line)["level"] == "error"]
    assert not Path(path).exists()
    assert not Path(daemon.control).exists()
    program.close()


def test_a_killed_daemons_sockets_are_replaced(daemon: Running) -> None:
    base = str(daemon.directory / "base")
    wanted = {"key": KEY, "address": "127.0.0.1", "ports": {"4000": 0}, "base_dir": base}
    process = daemon.start()
    first = daemon.do("start-source", **wanted)
    process.kill()
    process.communicate()
    daemon.start()
    assert daemon.do("start-source", **wanted) == first
    connect(first["files"][0]).close()


def test_a_proxy_that_nobody_can_ask_any_more_is_not_alive(daemon: Running) -> None:
    daemon.start()
    assert probed(daemon, "/livez") == (200, "ok\n")
    Path(daemon.control).unlink()
    said = f"not ok\n[-]control-socket: {daemon.control} was removed or replaced\n"
    assert probed(daemon, "/livez") == (503, said)


def test_its_page(daemon: Running) -> None:
    daemon.start()
    files = [str(daemon.directory / "target" / "virtqemud")]
    daemon.do("start-target", key=KEY, files=files)
    port = json.loads(daemon.config.read_text())["metrics_port"]

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
            return str(answer.read().decode())

    until(lambda: listens(port))
    assert page("/healthz") == "ok\n[+]control-socket\n[+]migrations\n"
    assert page("/readyz") == page("/healthz")
    assert page("/livez") == "ok\n[+]control-socket\n"
    types = re.findall(r"^# TYPE (\S+) (\S+)$", page("/metrics"), re.MULTILINE)
    assert types == [(one.name, one.kind) for one in COMPONENTS["tortie-migration-proxy"]]
    assert f'tortie_migration_proxy_open_streams{{migration="{KEY}",side="target"}} 0' in page(
        "/metrics"
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"port_range": "x"}, "port_range 'x'"),
        ({"tls": {}}, "tls.ca is missing"),
        ({"tls": {}, "disable_tls": True}, "name the other nodes in allowed_peers"),
        ({"socket_user": "nobody-at-all"}, "no such user"),
        ({"log_file": "/proc/none/x"}, "log_file /proc/none/x"),
    ],
)
def test_what_it_cannot_begin_with_is_one_message(settings: dict[str, Any], said: str) -> None:
    with short_directory() as directory:
        made = Running(directory, **settings)
        done = subprocess.run(
            [PROGRAM, "-c", str(made.config)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1
        assert said in done.stderr


def test_without_tls_it_warns() -> None:
    with short_directory() as directory:
        made = Running(directory, tls={}, disable_tls=True, allowed_peers=["127.0.0.1"])
        process = made.start()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        assert "Warning: disable_tls is on" in said
        assert '"event": "tls_disabled"' in said


def test_a_full_log_disk_stops_no_migration() -> None:
    with short_directory() as directory:
        made = Running(directory, log_file="/dev/full")
        made.start()
        files = [str(directory / "target" / "virtqemud")]
        assert made.do("start-target", key=KEY, files=files)["ports"]
        made.close()


def test_it_takes_all_the_descriptors_it_may_have() -> None:
    """The usual soft limit is too low for three listeners of 64 plain streams, six each."""

    with short_directory() as directory:
        made = Running(directory, tls={}, disable_tls=True, allowed_peers=["127.0.0.1"])
        command = ["prlimit", "--nofile=64:1024", PROGRAM, "-c", str(made.config)]
        made.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)
        until(made.answers)
        assert resource.prlimit(made.process.pid, resource.RLIMIT_NOFILE) == (1024, 1024)
        made.close()


def test_what_nobody_stops_ends_while_it_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle migration that nobody stops holds up no end."""
    monkeypatch.setattr(daemon_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(daemon_module, "REAP_SECONDS", 0.0)
    with short_directory() as directory:
        made = Running(directory, idle_seconds=1.0, drain_seconds=3600.0)
        over, status = threading.Event(), []
        running = Daemon(load_config(str(made.config), {}), JsonLog(io.StringIO()), over)
        thread = threading.Thread(target=lambda: status.append(running.run()))
        thread.start()
        until(made.answers)
        made.do("start-target", key=KEY, files=[str(directory / "target" / "virtqemud")])
        over.set()
        thread.join(120)
        assert status == [0]
