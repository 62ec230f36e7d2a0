"""`node status` on sockets of every condition; `diags` on a node that has nothing."""

from __future__ import annotations

import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from libtortie.errors import Malformed, Unavailable
from libtortie.model.keys import Kind
from tests.fakes.ctl_stores import on_sqlite, thing
from tests.fakes.patience import PATIENCE
from tortiectl.bird_status import ask, sessions
from tortiectl.cli import main

GREETING = b"0001 BIRD 2.0.12 ready.\n"
ONE = (
    b"2002-Name       Proto      Table      State  Since         Info\n"
    b"1002-mesh_fd00__12 BGP        ---        up     12:30:01  Established\n"
    b"1006-    Neighbor address: fd00::12\n"
    b" \n"
    b"+1234 an unasked-for message\n"
    b"0000 \n"
)


class Listener:
    """A unix socket that says something, in pieces, to each who comes; then waits for its end."""

    def __init__(self, path: Path, *pieces: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(8)
        self._pieces = pieces
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        held = []
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            held.append(client)
            for piece in self._pieces:
                client.sendall(piece)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, ExitStack]]:
    with ExitStack() as stack:
        yield tmp_path, stack


def listen(stack: ExitStack, path: Path, *pieces: bytes) -> None:
    stack.callback(Listener(path, *pieces).close)


def status(root: Path) -> Result:
    config = root / "node.yaml"
    config.write_text(f"run_dir: {root}\n")
    return CliRunner().invoke(main, ["node", "status", "-c", str(config)], catch_exceptions=False)


def test_sessions_of_a_node_with_ipv6_only(place: tuple[Path, ExitStack]) -> None:
    root, stack = place
    listen(stack, root / "cni.sock")
    listen(stack, root / "bird.ctl", GREETING, ONE[:40], ONE[40:])
    done = status(root)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Tortie process is running.\n\nIPv4 BGP status\nNo IPv4 peers")
    assert "| fd00::12     | node-to-node mesh | up    | 12:30:01 | Established |" in done.stdout


def test_an_agent_that_is_not_there(place: tuple[Path, ExitStack]) -> None:
    root, stack = place
    listen(stack, root / "bird.ctl", GREETING, ONE)
    done = status(root)
    assert done.exit_code == 1
    assert done.stdout.startswith("Tortie process is not running.\n")
    assert "fd00::12" in done.stdout
    assert "cni.sock: there is no such socket: the agent has not been started" in done.stderr


def test_a_bird_that_is_not_there_or_has_ended(place: tuple[Path, ExitStack]) -> None:
    root, stack = place
    listen(stack, root / "cni.sock")
    done = status(root)
    assert done.exit_code == 1
    assert "bird.ctl: there is no such socket: BIRD does not run here" in done.stderr
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(root / "bird.ctl"))
    stale.close()
    done = status(root)
    assert done.exit_code == 1
    assert "bird.ctl: the BIRD that made it has ended" in done.stderr


def test_a_bird_that_hangs_or_talks_nonsense(place: tuple[Path, ExitStack]) -> None:
    root, stack = place
    listen(stack, root / "mute")
    with pytest.raises(Unavailable, match="BIRD hangs"):
        ask(str(root / "mute"), "show status", seconds=0.2)
    listen(stack, root / "half", GREETING, b"1000-BIRD")
    with pytest.raises(Unavailable, match="BIRD hangs"):
        ask(str(root / "half"), "show status", seconds=0.2)
    listen(stack, root / "other", b"HTTP/1.1 400 Bad Request\n")
    with pytest.raises(Malformed, match="has the line 'HTTP"):
        ask(str(root / "other"), "show status")
    listen(stack, root / "refuses", GREETING, b"9001 syntax error\n")
    with pytest.raises(Unavailable, match="BIRD refuses: syntax error"):
        ask(str(root / "refuses"), "show status")


def test_diags_of_a_node_and_a_cluster(tmp_path: Path) -> None:
    with on_sqlite(tmp_path) as ctl:
        ctl.write("create", thing(Kind.IP_POOL, "pool-a", cidr="10.65.0.0/24"))
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs/agent.log").write_text("a line")
        for args, name, words in (
            (("node", "diags", "--log-dir", str(tmp_path / "logs")), "logs/agent.log", b"a line"),
            (("cluster", "diags"), "resources/ippools.yaml", b"10.65.0.0/24"),
        ):
            where = tmp_path / args[0]
            where.mkdir()
            said = ctl.run(*args, "--output-dir", str(where)).stdout
            (path,) = where.iterdir()
            assert said == f"Diags saved to {path}\n"
            with tarfile.open(path) as tar:
                member = tar.extractfile(f"{path.name.removesuffix('.tar.gz')}/{name}")
                assert member is not None
                assert words in member.read()
        said = ctl.run("cluster", "diags", "--since", "soon", status=1).stderr
        assert "is not a time such as 30m" in said


def test_a_kernel_that_lacks_what_is_needed(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("CONFIG_NF_TABLES=y\n")
    done = CliRunner().invoke(main, ["node", "checksystem", "-f", str(config)])
    said = done.stdout
    assert "Checking kernel version...\n" in said
    assert "nf_tables                OK" in said
    for line in said.splitlines():
        assert line.endswith(("...", "OK", "SKIP", "FAIL", "requirements."))


BIRD_CONF = """
router id 192.0.2.11;
protocol device {{ }}
protocol bgp mesh_192_0_2_12 {{
  disabled;
  local 192.0.2.11 as 64512;
  neighbor 192.0.2.12 as 64512;
  ipv4 {{ }};
}}
"""


def test_a_real_bird(tmp_path: Path) -> None:
    """Its own words; the session is disabled, so that it listens nowhere."""
    config, control, pid = (str(tmp_path / name) for name in ("bird.conf", "bird.ctl", "pid"))
    Path(config).write_text(BIRD_CONF.format())
    subprocess.run(["bird", "-c", config, "-s", control, "-P", pid], check=True, timeout=PATIENCE)
    try:
        (found,) = sessions(ask(control, "show protocols all", seconds=PATIENCE))
    finally:
        ask(control, "down", seconds=PATIENCE)
    assert (found.name, str(found.address)) == ("mesh_192_0_2_12", "192.0.2.12")
    assert (found.state, found.kind) == ("down", "node-to-node mesh")
