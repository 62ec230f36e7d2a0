"""Two hosts with a migration proxy each, in network namespaces without names, and a wire between.

All processes die with this one's thread, however it ends, and the namespaces with the processes:
a run that is killed leaves nothing but a directory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.mortal import mortal
from lab.tools import run
from libtortie.control_client import ask
from libtortie.errors import Unavailable
from tests.fakes.migration_proxies import KEY, PATIENCE, Pki, short_directory, until

PROGRAM = str(Path(sys.executable).with_name("tortie-migration-proxy"))
SOURCE, TARGET = "10.77.0.1", "10.77.0.2"
SOURCE6, TARGET6 = "fd77::1", "fd77::2"
WIRE = "migration0"


class Host:
    """A namespace, and the daemon in it once it is started."""

    def __init__(self, directory: Path, tls: Mapping[str, Any]) -> None:
        self.directory = directory
        directory.mkdir()
        self.settings: dict[str, Any] = {
            "tls": tls,
            "listen": WIRE,
            "control_socket": str(directory / "ctl"),
            "handshake_seconds": PATIENCE,
            "connect_seconds": PATIENCE,
        }
        self._daemon: subprocess.Popen[bytes] | None = None
        self._holder = subprocess.Popen(mortal(["unshare", "--net", "sleep", "infinity"]))
        try:
            until(lambda: _namespace(self._holder.pid) != _namespace(os.getpid()))
            self.ip("link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """A process in the namespace."""
        return self._holder.pid

    @property
    def within(self) -> list[str]:
        """What puts a command into the namespace."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net"]

    def run(self, *command: str) -> str:
        """What a tool says there."""
        return run([*self.within, *command])

    def ip(self, *words: str) -> str:
        """Run ip(8) there."""
        return self.run("ip", *words)

    def start(self, **settings: Any) -> None:
        """Start the daemon with settings over those it has, and wait until it answers."""
        self.settings |= settings
        path = self.directory / "proxy.yaml"
        path.write_text(json.dumps(self.settings))
        with (self.directory / "proxy.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                mortal([*self.within, PROGRAM, "-c", str(path)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._answers)

    def kill(self) -> None:
        """SIGKILL for the daemon."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
            self._daemon = None

    def do(self, verb: str, **more: Any) -> dict[str, Any]:
        """Ask the daemon."""
        return ask(self.settings["control_socket"], {"do": verb, **more}, seconds=PATIENCE)

    def status(self) -> dict[str, Any]:
        """The only migration of the daemon's."""
        (one,) = self.do("status")["migrations"]
        found: dict[str, Any] = one
        return found

    def findings(self) -> list[str]:
        """What is wrong with that migration."""
        return [str(one) for one in self.status()["findings"]]

    def log(self) -> str:
        """What the daemon has said."""
        return (self.directory / "proxy.log").read_text()

    def close(self) -> None:
        """End everything in the namespace that this one started."""
        self.kill()
        self._holder.kill()
        self._holder.wait()

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, self.log()
        try:
            return bool(self.do("health")["health"] == "ok")
        except Unavailable:
            return False


@dataclass(slots=True)
class Hosts:
    """Both, and the sockets of one migration."""

    source: Host
    target: Host
    directory: Path
    generation: int = field(default=0)

    def socket(self, logical: int) -> Path:
        """Where a program of the target listens."""
        name = f"{KEY}-{logical}-source.sock" if logical else "virtqemud-sock"
        return self.target.directory / name

    def connect(
        self, *logical: int, address: str = TARGET, peer: str = SOURCE, peer_name: str = "node2"
    ) -> dict[int, str]:
        """Start both listeners; the source's sockets by logical port."""
        answer = self.target.do(
            "start-target",
            key=KEY,
            files=[str(self.socket(each)) for each in logical],
            peer=peer,
            peer_name="",
        )
        self.generation = answer["generation"]
        files = self.source.do(
            "start-source",
            key=KEY,
            address=address,
            ports=answer["ports"],
            base_dir=str(self.source.directory),
            peer_name=peer_name,
        )["files"]
        return {
            each: path
            for each in logical
            for path in files
            if path.endswith(f"/{KEY}-{each}-source.sock" if each else f"/{KEY}-source.sock")
        }

    def disconnect(self) -> None:
        """Stop both listeners."""
        self.source.do("stop-source", key=KEY)
        self.target.do("stop-target", key=KEY)


def _namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


@contextmanager
def hosts() -> Iterator[Hosts]:
    """Two hosts with a wire called `migration0` between; no daemon runs yet."""
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory())
        tls = Pki.make(directory / "pki").tls(hosts=("node1", "node2")).model_dump()
        source = Host(directory / "a", tls)
        stack.callback(source.close)
        target = Host(directory / "b", tls)
        stack.callback(target.close)
        peer = ["type", "veth", "peer", "name", WIRE, "netns", str(target.pid)]
        source.ip("link", "add", WIRE, *peer)
        for host, four, six in ((source, SOURCE, SOURCE6), (target, TARGET, TARGET6)):
            host.ip("address", "add", f"{four}/24", "dev", WIRE)
            host.ip("address", "add", f"{six}/64", "dev", WIRE, "nodad")
            host.ip("link", "set", WIRE, "up")
        yield Hosts(source, target, directory)
