"""Run BIRD beside the agent and talk to it over its control socket.

BIRD outlives the agent: it makes itself a daemon in a session of its own, and an agent that starts
finds it by its control socket. A socket file without a listener, or a pid file, proves nothing.
The configuration carries a digest of itself, which a running BIRD is asked for: it is told to read
the file exactly when it runs something else.

BIRD runs with `-R` only when the last one did not end in order (its pid file is still there).
Then it leaves the kernel's routes alone until its peers have sent theirs; at a first start it
would only delay the first announcement.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cni_plugin.durable import replace_file
from felix_shim.drivers.bird_protocol import (
    BirdRoute,
    Reply,
    ReplyReader,
    Session,
    parse_protocols,
    parse_routes,
)
from libtortie.deadline import STEP, Deadline, run
from libtortie.errors import InvalidInput, Malformed, Unavailable, first_line
from libtortie.files import read_bytes, read_text
from libtortie.model.ipam import IPAddress

_GREETING = 1
_RECOVERY = 24
_RECONFIGURED = frozenset({3, 4, 18})  # done, in progress, confirmed
_DIGEST = "tortie_digest"
CONFIG_MODE = 0o640
"""Of the configuration's file, whose group is the control socket's: passwords are in it, and a BIRD
of the system may not be root."""
NICE = -10
"""BIRD's niceness."""
_CHUNK = 100  # addresses in one command; BIRD reads lines of at most 4 KiB


class Bird:
    """One BIRD daemon, by its control socket. Not thread-safe: one lane owns it.

    `deadline` bounds every exchange and start, in seconds. Raises `Unavailable` when BIRD does not
    answer, `Malformed` when it answers nonsense.
    """

    def __init__(
        self,
        config_file: Path,
        control_socket: Path,
        pid_file: Path,
        *,
        binary: str = "bird",
        deadline: float = 5.0,
    ) -> None:
        self._config = config_file
        self._socket = control_socket
        self._pid = pid_file
        self._binary = binary
        self._deadline = deadline

    def ensure(self, text: str) -> bool:
        """Have BIRD run with this configuration; True when something had to be done.

        Raises `InvalidInput` when BIRD refuses the text: file and daemon then stay as they are.
        """
        digest = int(hashlib.sha256(text.encode()).hexdigest()[:7], 16)
        text += f"define {_DIGEST} = {digest};\n"
        alive = self.alive()
        if alive and self._running_digest() == digest:
            return False
        self._write_checked(text)
        if alive:
            self._configure()
        else:
            self._start()
        return True

    def alive(self) -> bool:
        """Whether a BIRD answers on the control socket. Raises `Unavailable` when it hangs."""
        try:
            with self._connected():
                return True
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
            return False

    def sessions(self) -> tuple[Session, ...]:
        """All protocols, as `show protocols` lists them."""
        return parse_protocols(self._ask("show protocols"))

    def recovering(self) -> bool:
        """Whether a graceful restart is under way: its peers would not forgive another now."""
        return any(code == _RECOVERY for code, _ in self._ask("show status").lines)

    def elevated_elsewhere(self, addresses: Collection[IPAddress]) -> dict[IPAddress, str]:
        """Which of the addresses another node announces raised.

        The value is the BGP next hop, several in order and joined by commas: a second raise is
        seen beside the first, whichever of them BIRD prefers.
        """
        found = self._from_peers(addresses, "preference = 200")
        return {address: ",".join(sorted(hops)) for address, hops in found.items()}

    def raised_here(self, address: IPAddress) -> bool:
        """Whether BIRD has this node's own raised host route of an address, for its peers."""
        net = f"{address}/{address.max_prefixlen}"
        where = f"net = {net} && source != RTS_BGP && preference = 250"
        return bool(self._routes(f"show route table master{address.version} where {where}"))

    def announced_elsewhere(self, addresses: Collection[IPAddress]) -> frozenset[IPAddress]:
        """Which of the addresses another node announces as a host route, raised or not."""
        return frozenset(self._from_peers(addresses, "true"))

    def stop(self) -> None:
        """End BIRD; its kernel routes stay (`persist`). None running is success."""
        if not self.alive():
            return
        self._ask("down")
        self._await(lambda: not self.alive(), "did not end")

    def configured(self) -> bool:
        """Whether there is a configuration to run with."""
        return self._config.exists()

    def in_foreground(self) -> subprocess.Popen[bytes]:
        """Start it as a child of this process, with the configuration that is there.

        Raises `Unavailable`.
        """
        try:
            return subprocess.Popen(
                [self._binary, "-f", *self._recovery(), *self._places()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"cannot run {self._binary}: {error}") from error

    def in_the_foreground(self) -> int:
        """The pid of a BIRD that answers and was started so, by whomever; 0: there is none.

        One that went to the background is not known by its socket: it listened before it forked.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(self._deadline)
                client.connect(str(self._socket))
                peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = int.from_bytes(peer[:4], sys.byteorder)
            return pid if int(read_text(self._pid)) == pid else 0
        except (OSError, ValueError):
            return 0

    def restart_gracefully(self) -> None:
        """End BIRD in a way that its peers, as the kernel, keep its routes for the next one.

        It returns once BIRD has ended: the last that goes is its control socket, and before that
        the file that has the next one recover. Raises `Unavailable`.
        """
        self._ask("graceful restart")
        self._await(lambda: not self.alive(), "did not end")
        self._pid.touch()

    def _from_peers(
        self, addresses: Collection[IPAddress], condition: str
    ) -> dict[IPAddress, set[str]]:
        found: dict[IPAddress, set[str]] = {}
        ordered = sorted(addresses, key=lambda one: (one.version, int(one)))
        for version in (4, 6):
            nets = [f"{one}/{one.max_prefixlen}" for one in ordered if one.version == version]
            for start in range(0, len(nets), _CHUNK):
                some = ", ".join(nets[start : start + _CHUNK])
                where = f"source = RTS_BGP && net ~ [ {some} ] && {condition}"
                for route in self._routes(f"show route table master{version} all where {where}"):
                    found.setdefault(route.address, set()).add(route.next_hop or route.protocol)
        return found

    def _routes(self, command: str) -> tuple[BirdRoute, ...]:
        return parse_routes(self._ask(command))

    def _running_digest(self) -> int | None:
        """The digest of the configuration BIRD runs; None when it runs one that is not ours."""
        reply = self._ask(f"eval {_DIGEST}", tolerate=True)
        texts = list(reply.texts(23))
        return int(texts[0]) if not reply.failed and texts and texts[0].isdecimal() else None

    def _write_checked(self, text: str) -> None:
        candidate = self._config.with_name(f"{self._config.name}.new")
        self._config.parent.mkdir(parents=True, exist_ok=True)
        replace_file(candidate, text.encode(), CONFIG_MODE)
        with suppress(FileNotFoundError):
            os.chown(candidate, -1, self._socket.stat().st_gid)
        done = self._run("-p", "-c", str(candidate))
        if done.returncode != 0:
            candidate.unlink(missing_ok=True)
            reason = first_line(InvalidInput(done.stderr or done.stdout))
            raise InvalidInput(f"BIRD refuses its configuration: {reason}")
        candidate.replace(self._config)

    def _configure(self) -> None:
        reply = self._ask(f'configure "{self._config}"')
        if reply.code not in _RECONFIGURED:
            raise Unavailable(f"BIRD did not reconfigure: {reply.lines[-1][1]}")

    def _start(self) -> None:
        for path in (self._socket, self._pid):
            path.parent.mkdir(parents=True, exist_ok=True)
        done = self._run(*self._recovery(), *self._places())
        if done.returncode != 0:
            raise Unavailable(f"BIRD did not start: {first_line(Unavailable(done.stderr))}")
        self._await(self.alive, "did not open its control socket")
        self._prefer()

    def _prefer(self) -> None:
        """Before its agent and whatever else this control group runs, where that is allowed: its
        work is short, and until it is done packets go to where a VM was.

        Outside of control groups the kernel makes a group of each session (sched(7), autogroup),
        and BIRD is one: its niceness counts for nothing then, and the group's does."""
        with suppress(OSError, ValueError):
            pid = int(read_bytes(self._pid))
            os.setpriority(os.PRIO_PROCESS, pid, NICE)
            Path(f"/proc/{pid}/autogroup").write_text(str(NICE))

    def _recovery(self) -> list[str]:
        return ["-R"] if self._pid.exists() else []

    def _places(self) -> list[str]:
        return ["-c", str(self._config), "-s", str(self._socket), "-P", str(self._pid)]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the binary; as a daemon it leaves as soon as its socket is open."""
        try:
            command = [self._binary, *arguments]
            return run(command, Deadline(self._deadline), start_new_session=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"cannot run {self._binary}: {error}") from error

    def _await(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = Deadline(self._deadline)
        while not condition():
            if not (wait := deadline.step(0.005)):
                raise Unavailable(f"BIRD {complaint} within {self._deadline:g} s")
            time.sleep(wait)

    def _ask(self, command: str, *, tolerate: bool = False) -> Reply:
        """One command, one reply. A reply that is an error raises unless tolerated."""
        try:
            with self._connected() as replies:
                replies.send(command)
                reply = replies.receive()
        except (FileNotFoundError, ConnectionError) as error:
            raise Unavailable(f"BIRD does not answer on {self._socket}: {error}") from error
        if reply.failed and not tolerate:
            raise Unavailable(f"BIRD refused {command[:60]!r}: {reply.lines[-1][1]}")
        return reply

    @contextmanager
    def _connected(self) -> Iterator[_Channel]:
        deadline = Deadline(self._deadline)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            channel = _Channel(sock, deadline)
            channel.connect(self._socket)
            if channel.receive().code != _GREETING:
                raise Malformed("BIRD's greeting is none")
            yield channel


class _Channel:
    """A control connection with one deadline for everything on it."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._reader = ReplyReader()

    def connect(self, path: Path) -> None:
        self._arm(self._deadline.seconds)
        try:
            self._sock.connect(str(path))
        except (TimeoutError, BlockingIOError) as error:
            raise Unavailable(f"BIRD does not accept on {path}") from error

    def send(self, command: str) -> None:
        self._arm(self._deadline.seconds)
        self._sock.sendall(command.encode() + b"\n")

    def receive(self) -> Reply:
        while True:
            self._arm()
            try:
                data = self._sock.recv(65536)
            except TimeoutError:
                continue  # `_arm` decides whether this was the last step
            if not data:
                raise ConnectionResetError("closed in mid-reply")
            replies = self._reader.feed(data)
            if replies:
                return replies[0]

    def _arm(self, most: float = STEP) -> None:
        wait = self._deadline.step(most)
        if not wait:
            raise Unavailable("BIRD did not answer in time")
        self._sock.settimeout(wait)
