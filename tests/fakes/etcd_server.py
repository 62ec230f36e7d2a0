"""A real etcd for tests: one member or several, on free loopback ports, in a directory.

What tests do beside the datastore (foreign bytes, compaction, users) goes through etcd's JSON
gateway, so that it shares nothing with the code under test.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.certificates import Authority, Pair
from tests.fakes.ports import free_ports

DEADLINE = 90.0


@dataclass
class EtcdMember:
    """One etcd process; `url` is plain HTTP, `secure_url` needs a client's certificate."""

    name: str
    directory: Path
    port: int
    peer_port: int
    secure_port: int
    arguments: Sequence[str] = ()
    known_port: int = 0
    """Where the other members reach it, if that is not its own port."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def secure_url(self) -> str:
        return f"https://127.0.0.1:{self.secure_port}"

    @property
    def peer_url(self) -> str:
        return f"http://127.0.0.1:{self.known_port or self.peer_port}"

    def start(self) -> None:
        """Start it, without waiting."""
        binary = shutil.which("etcd")
        assert binary, "etcd is missing; run `make setup`"
        clients = [self.url]
        if any(one.startswith("--cert-file") for one in self.arguments):
            clients.append(self.secure_url)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    binary,
                    f"--name={self.name}",
                    f"--data-dir={self.directory / self.name}",
                    f"--listen-client-urls={','.join(clients)}",
                    f"--advertise-client-urls={clients[-1]}",
                    f"--listen-peer-urls=http://127.0.0.1:{self.peer_port}",
                    f"--initial-advertise-peer-urls={self.peer_url}",
                    "--heartbeat-interval=50",
                    "--election-timeout=500",
                    "--bcrypt-cost=4",
                    "--logger=zap",
                    *self.arguments,
                ],
                stdout=log,
                stderr=log,
                env=environ,
            )

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it and wait for its end."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(DEADLINE)
            self.process = None

    def freeze(self) -> None:
        """Stop it without closing anything: it accepts and says nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # until its last thread stands still

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def wait_healthy(self) -> None:
        """Wait until it serves linearizable reads."""
        end = time.monotonic() + DEADLINE
        while True:
            try:
                self.ask("kv/range", {"key": _b64("x")}, seconds=2)
                return
            except (OSError, urllib.error.URLError) as error:
                assert time.monotonic() < end, f"{self.name}: {error}\n{self.log()}"
                assert self.process is None or self.process.poll() is None, self.log()
                time.sleep(0.05)

    def ask(self, method: str, body: dict[str, Any], seconds: float = DEADLINE) -> dict[str, Any]:
        """One call of the JSON gateway, e.g. `kv/put`."""
        request = urllib.request.Request(
            f"{self.url}/v3/{method}", json.dumps(body).encode(), method="POST"
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=seconds) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def put(self, path: str | bytes, data: bytes) -> None:
        """Store bytes as a foreign writer would."""
        self.ask("kv/put", {"key": _b64(path), "value": _b64(data)})

    def read(self, path: str) -> dict[str, Any] | None:
        """A stored key: `value` (bytes), `version` and `mod_revision` (int)."""
        rows = self.ask("kv/range", {"key": _b64(path)}).get("kvs", [])
        if not rows:
            return None
        row = rows[0]
        value = base64.b64decode(row.get("value", ""))
        return {"value": value} | {k: int(row[k]) for k in ("version", "mod_revision")}

    def remove_all(self) -> None:
        """Remove every key."""
        self.ask("kv/deleterange", {"key": _b64("\0"), "range_end": _b64("\0")})

    def compact(self) -> None:
        """Forget all history up to now: what was written so far can no more be watched."""
        revision = self.ask("kv/put", {"key": _b64("/elsewhere")})["header"]["revision"]
        self.ask("kv/compaction", {"revision": revision, "physical": True})

    def member_id(self) -> str:
        """As members write it: in hexadecimal."""
        return f"{int(self.ask('maintenance/status', {})['header']['member_id']):x}"

    def is_leader(self) -> bool:
        status = self.ask("maintenance/status", {})
        return bool(status["leader"] == status["header"]["member_id"])

    def enable_users(self, name: str, password: str) -> None:
        """Turn authentication on: `root`, and a user who may do everything below /calico/."""
        for user, secret in (("root", "root-secret"), (name, password)):
            self.ask("auth/user/add", {"name": user, "password": secret})
        self.ask("auth/role/add", {"name": "root"})
        self.ask("auth/role/add", {"name": "calico"})
        everything = {"permType": 2, "key": _b64("/calico/"), "range_end": _b64("/calico0")}
        self.ask("auth/role/grant", {"name": "calico", "perm": everything})
        self.ask("auth/user/grant", {"user": "root", "role": "root"})
        self.ask("auth/user/grant", {"user": name, "role": "calico"})
        self.ask("auth/enable", {})

    def log(self) -> str:
        """The end of its log."""
        return (self.directory / f"{self.name}.log").read_text(errors="replace")[-3000:]


@contextmanager
def etcd_members(
    directory: Path,
    count: int = 1,
    arguments: Sequence[str] = (),
    relayed: Callable[[int], int] | None = None,
) -> Iterator[list[EtcdMember]]:
    """A cluster that is up; every process is ended afterwards.

    `relayed` gives for a member's own peer port the one that the others are told.
    """
    ports = iter(free_ports(3 * count))
    members = [
        EtcdMember(f"m{i}", directory, next(ports), next(ports), next(ports)) for i in range(count)
    ]
    if relayed is not None:
        for one in members:
            one.known_port = relayed(one.peer_port)
    everyone = ",".join(f"{one.name}={one.peer_url}" for one in members)
    with ExitStack() as stack:
        for one in members:
            one.arguments = [f"--initial-cluster={everyone}", *arguments]
            stack.callback(one.stop)
            one.start()
        for one in members:
            one.wait_healthy()
        yield members


def leader_of(members: Sequence[EtcdMember]) -> EtcdMember:
    """The one that leads, once one of those that run does."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        for one in members:
            with suppress(OSError):
                if one.process is not None and one.is_leader():
                    return one
    raise AssertionError("nobody leads")


def tls_arguments(authority: Authority, server: Pair) -> list[str]:
    """What a member needs to ask its clients for certificates."""
    return [
        f"--cert-file={server.cert}",
        f"--key-file={server.key}",
        f"--trusted-ca-file={authority.cert}",
        "--client-cert-auth",
    ]


def _b64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
