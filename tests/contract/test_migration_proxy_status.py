"""What `tortiectl migration-proxy status` says to an operator whose migration does not work.

A daemon's control socket in this process, the real command line, real sockets.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from libtortie.control_client import Refused, ask
from libtortie.errors import Unavailable
from libtortie.jsonlog import NullLog
from migration_proxy import status
from migration_proxy.config import SERVER_CNS
from migration_proxy.control import Control, ControlServer
from migration_proxy.manager import ProxyManager
from migration_proxy.tcp_sockets import Network
from tests.fakes.migration_proxies import (
    KEY,
    LOOPBACK,
    NETWORK,
    Nodes,
    Pki,
    config,
    ended,
    manager,
    nodes,
    pair,
    short_directory,
    until,
)
from tortiectl.cli import main


@contextmanager
def served(proxy: ProxyManager, directory: Path) -> Iterator[str]:
    """A manager behind its control socket."""
    path = directory / f"{id(proxy):x}.ctl"
    server = ControlServer(path, Control(proxy), NullLog())
    server.open()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        server.stop()
        thread.join(120)


def shown(manager: ProxyManager, *args: str) -> Result:
    """The command line's answer about a manager."""
    with short_directory() as directory, served(manager, directory) as path:
        return CliRunner().invoke(main, ["migration-proxy", "status", "--socket", path, *args])


def findings(manager: ProxyManager) -> list[str]:
    """All causes that are named."""
    body = json.loads(shown(manager, "-o", "json").output)
    return [text for one in body["migrations"] for text in one["findings"]]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence counts at once."""
    monkeypatch.setattr(status, "QUIET_SECONDS", 0.0)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Nodes]:
    tls = Pki.make(tmp_path / "pki").tls()
    with nodes(config(tls), config(tls), logical=(0, 49152, 49153)) as made:
        yield made


def failed_call(nodes: Nodes, logical: int = 49152) -> None:
    """A stream that comes to nothing."""
    caller = nodes.call(logical)
    assert ended(caller)
    caller.close()


def test_a_migration_that_goes_well(both: Nodes) -> None:
    """Is it open, is the socket there, which port maps where, with whom, since when."""
    caller, program = both.pair()
    caller.sendall(b"12345")
    assert program.recv(5) == b"12345"
    text = shown(both.target).output
    (port,) = [port for port, logical in both.ports.ports.items() if logical == 49152]
    assert f"direct    {port}" in text
    assert "kubevirt.io:system:client:migration" in text
    assert "!" not in text
    body = json.loads(shown(both.source, "-o", "json").output)
    (one,) = body["migrations"]
    (stream,) = [each for each in one["streams"] if each["stream"] == "direct"]
    (connection,) = stream["connections"]
    assert stream["open"]
    assert stream["path"].endswith(f"/migrationproxy/{KEY}-49152-source.sock")
    assert (stream["port"], connection["peer"]) == (port, f"127.0.0.1:{port}")
    assert connection["peer_name"] == "kubevirt.io:system:node:virt-handler"
    assert (connection["phase"], connection["bytes_out"]) == ("moving", 5)
    assert one["generation"] > 0
    caller.close()
    program.close()


@pytest.mark.usefixtures("quiet")
def test_the_target_lives_but_nothing_connects(both: Nodes) -> None:
    (cause,) = findings(both.target)
    assert "nothing has connected" in cause
    assert "firewall or policy" in cause
    (cause,) = findings(both.source)
    assert "another directory" in cause
    assert shown(both.target).exit_code == 2


def test_the_targets_listener_is_gone(both: Nodes) -> None:
    both.target.stop_target_listener(KEY)
    failed_call(both)
    until(lambda: bool(findings(both.source)))
    (cause,) = findings(both.source)
    assert "direct: 127.0.0.1:" in cause
    assert "nobody listens there: the target's listener was stopped, or its ports are old" in cause


def test_the_handshake_fails(tmp_path: Path) -> None:
    ours = Pki.make(tmp_path / "ours").tls()
    theirs = Pki.make(tmp_path / "theirs", "other-ca").tls()
    with nodes(config(ours), config(theirs)) as made:
        failed_call(made)
        until(lambda: bool(findings(made.source)) and bool(findings(made.target)))
        assert "could not verify peer certificate" in findings(made.source)[0]
        assert "not of the CA in tls.ca" in findings(made.source)[0]
        assert "the peer refuses our certificate" in findings(made.target)[0]
        assert not made.programs[49152].called


@pytest.mark.parametrize(
    ("days", "said"),
    [(0.5, "the certificate expires in 12 hours"), (-1, "the certificate has expired: renew it")],
)
def test_our_own_certificate_ends(tmp_path: Path, days: float, said: str) -> None:
    """Before it does, and when it has."""
    pki = Pki.make(tmp_path / "pki")
    tls = pki.tls()
    old = pair(pki.authority.server(SERVER_CNS[0], days=days))
    with manager(config(tls.model_copy(update={"server": old}))) as proxy:
        found = status.describe(proxy, time.time())["tls"]
        assert found["server"]["trouble"] == said
        assert found["client"]["trouble"] in ("", "the certificate expires in 24 hours")
        result = shown(proxy)
        assert said in result.output


def test_only_the_block_port_fails(both: Nodes) -> None:
    both.programs[49153].close()
    both.programs[49153].path.unlink()
    caller, program = both.pair(49152)
    failed_call(both, 49153)
    until(lambda: bool(findings(both.target)))
    (cause,) = findings(both.target)
    assert cause.startswith("block: ")
    assert f"{KEY}-49153-source.sock: No such file or directory" in cause
    assert "the target's libvirt or QEMU has not made it" in cause
    caller.close()
    program.close()


def test_the_target_published_no_block_port(both: Nodes) -> None:
    ports = {str(port): logical for port, logical in both.ports.ports.items() if logical != 49153}
    with (
        short_directory() as directory,
        served(both.source, directory) as path,
        pytest.raises(Refused, match="published no port for disks"),
    ):
        ask(
            path,
            {
                "do": "start-source",
                "key": KEY,
                "address": "127.0.0.1",
                "ports": ports,
                "base_dir": str(directory / "base"),
                "block": True,
            },
        )


def test_after_the_move_to_a_migration_network(tmp_path: Path) -> None:
    """The node's address in the network is another one now; the source has no route there."""
    tls = Pki.make(tmp_path / "pki").tls()
    there = ["127.0.0.1/8"]
    network = Network(lambda: ["migration0"], lambda _: [IPv4Interface(one) for one in there])
    moving = ProxyManager(config(tls, listen="127.0.0.0/8"), network, NullLog())
    with short_directory() as directory:
        moving.start_target_listener(KEY, [str(directory / "target" / "virtqemud-sock")])
        there[:] = ["127.9.0.2/8"]
        (cause,) = findings(moving)
        moving.shutdown(0)
    assert cause == (
        "it listens on 127.0.0.1, but `listen` now means 127.9.0.2: "
        "start the target's listener again"
    )


def test_a_migration_network_that_is_not_there(tmp_path: Path) -> None:
    """Never the wildcard instead."""
    tls = Pki.make(tmp_path / "pki").tls()
    nothing = ProxyManager(config(tls, listen="203.0.113.0/24"), NETWORK, NullLog())
    with pytest.raises(Exception, match="this node has no address in it"):
        nothing.start_target_listener(KEY, ["/run/libvirt/virtqemud-sock"])
    assert nothing.open_listener_count() == 0


def test_a_migration_nobody_started(both: Nodes) -> None:
    done = shown(both.source, "--migration", "11111111-2222")
    assert done.exit_code == 1
    assert "this node's proxy has no listener for it" in done.output


class TestNoAnswer:
    """A daemon that cannot be asked is named with its cause, soon."""

    @pytest.fixture
    def directory(self) -> Iterator[Path]:
        with short_directory() as made:
            yield made

    def cause(self, path: Path) -> str:
        with pytest.raises(Unavailable) as caught:
            ask(str(path), {"do": "status"}, seconds=0.5)
        return str(caught.value)

    def test_no_socket(self, directory: Path) -> None:
        assert "is the daemon running here?" in self.cause(directory / "none")

    def test_a_dead_ones_socket(self, directory: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(directory / "dead"))
        assert "the daemon that made it has ended" in self.cause(directory / "dead")

    def test_one_that_hangs(self, directory: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(directory / "hangs"))
            listener.listen(1)
            assert "no answer within 0.5 s" in self.cause(directory / "hangs")

    def test_one_that_ends_in_its_answer(self, directory: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(directory / "ends"))
            listener.listen(1)

            def half() -> None:
                client, _ = listener.accept()
                client.recv(100)
                client.sendall(b'{"ok": tr')
                client.close()

            thread = threading.Thread(target=half, daemon=True)
            thread.start()
            with pytest.raises(Unavailable, match="ended in the middle"):
                ask(str(directory / "ends"), {"do": "status"}, seconds=120)
            thread.join(120)


def test_no_threads_for_a_question(both: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes unanswered; the daemon and its migrations go on."""
    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "control" and failing:
            failing.pop()
            raise RuntimeError("can't start new thread")
        begin(thread)

    failing = [1]
    with short_directory() as directory, served(both.source, directory) as path:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable):
            ask(path, {"do": "health"}, seconds=120)
        assert ask(path, {"do": "health"}, seconds=120)["health"] == "ok"
    assert failing == []


def test_every_verb_of_the_control_socket(both: Nodes) -> None:
    with short_directory() as directory, served(both.target, directory) as path:

        def do(verb: str, **more: Any) -> dict[str, Any]:
            return ask(path, {"do": verb, **more}, seconds=120)

        assert do("health")["health"] == "ok"
        answer = do("target-ports", key=KEY)
        assert answer["ports"] == both.ports.wire()
        assert answer["generation"] == both.ports.generation
        assert do("target-ports", key="unknown") == {"ok": True, "ports": {}, "generation": 0}
        files = [str(directory / "target" / "virtqemud-sock")]
        started = do("start-target", key="two", files=files, peer="127.0.0.1", peer_name="node2")
        assert list(started["ports"].values()) == [0]
        made = do(
            "start-source",
            key="two",
            address=str(LOOPBACK),
            ports=started["ports"],
            base_dir=str(directory / "base"),
            rate=1 << 20,
        )
        assert made["files"] == [str(directory / "base/migrationproxy/two-source.sock")]
        assert do("source-files", key="two")["files"] == made["files"]
        assert both.target.open_listener_count() == 3
        do("stop-source", key="two")
        do("stop-target", key="two")
        do("stop-target", key="two")
        assert both.target.open_listener_count() == 1
