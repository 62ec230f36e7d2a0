"""The control socket: one JSON object in a line, one back; `docs/migration-proxy.md` is its manual.

Only root and the daemon's own user may ask: the kernel vouches for the peer's uid. A request is a
line of at most `MOST_BYTES`, and has `READ_SECONDS` to come; what is wrong with it is its answer.
"""

from __future__ import annotations

import ipaddress
import json
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libtortie.errors import InvalidInput, TortieError, first_line
from libtortie.jsonlog import Log
from migration_proxy.manager import ProxyManager
from migration_proxy.model import BLOCK_PORT, MOST_RATE, IPAddress, PortMap
from migration_proxy.status import describe

MOST_BYTES = 64 << 10
READ_SECONDS = 5.0
MOST_AT_ONCE = 16
_UCRED = struct.Struct("3i")


class _Ask(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    do: str


class _Key(_Ask):
    key: str


class StartTarget(_Key):
    """M1."""

    files: list[str]
    peer: str = ""
    peer_name: str = ""


class StartSource(_Key):
    """M4; `block` means that disks are copied, so that their port has to be there."""

    address: str
    ports: dict[str, int]
    base_dir: str
    peer_name: str = ""
    rate: int | None = Field(default=None, ge=0, le=MOST_RATE)
    block: bool = False


class Control:
    """Answers requests with a manager."""

    def __init__(self, manager: ProxyManager) -> None:
        self._manager = manager
        self._verbs: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "start-target": self._start_target,
            "target-ports": self._target_ports,
            "stop-target": self._stop_target,
            "start-source": self._start_source,
            "source-files": self._source_files,
            "stop-source": self._stop_source,
            "status": self._status,
            "health": self._health,
        }

    def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to a request; never raises for what the request says."""
        try:
            asked = json.loads(line)
            verb = asked.get("do") if isinstance(asked, dict) else None
            known = self._verbs.get(verb) if isinstance(verb, str) else None
            if known is None:
                raise InvalidInput(f"`do` is not one of {', '.join(self._verbs)}")
            return {"ok": True, **known(asked)}
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            return _refusal("InvalidInput", f"{where}: {first['msg']}")
        except (ValueError, RecursionError):
            return _refusal("InvalidInput", "the request is not a line of JSON")
        except TortieError as error:
            return _refusal(type(error).__name__, first_line(error))
        except OSError as error:  # no more descriptors, say
            return _refusal("Unavailable", f"{verb}: {error.strerror or error}")

    def _start_target(self, asked: dict[str, Any]) -> dict[str, Any]:
        wish = StartTarget.model_validate(asked)
        peer = _address(wish.peer, "peer") if wish.peer else None
        return _ports(
            self._manager.start_target_listener(
                wish.key, wish.files, peer=peer, peer_name=wish.peer_name
            )
        )

    def _target_ports(self, asked: dict[str, Any]) -> dict[str, Any]:
        return _ports(self._manager.target_listener_ports(_Key.model_validate(asked).key))

    def _stop_target(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._manager.stop_target_listener(_Key.model_validate(asked).key)
        return {}

    def _start_source(self, asked: dict[str, Any]) -> dict[str, Any]:
        wish = StartSource.model_validate(asked)
        address = _address(wish.address, "address")
        ports = {_port(port): logical for port, logical in wish.ports.items()}
        if wish.block and BLOCK_PORT not in ports.values():
            raise InvalidInput(
                f"migration {wish.key}: the target published no port for disks ({BLOCK_PORT}): "
                "its listener was started without the block socket"
            )
        files = self._manager.start_source_listener(
            wish.key, address, ports, wish.base_dir, peer_name=wish.peer_name, rate=wish.rate
        )
        return {"files": list(files)}

    def _source_files(self, asked: dict[str, Any]) -> dict[str, Any]:
        key = _Key.model_validate(asked).key
        return {"files": list(self._manager.source_listener_files(key))}

    def _stop_source(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._manager.stop_source_listener(_Key.model_validate(asked).key)
        return {}

    def _status(self, asked: dict[str, Any]) -> dict[str, Any]:
        _Ask.model_validate(asked)
        return describe(self._manager, time.time())

    def _health(self, asked: dict[str, Any]) -> dict[str, Any]:
        _Ask.model_validate(asked)
        return {"health": health(self._manager) or "ok"}


def health(manager: ProxyManager) -> str:
    """What keeps the proxy from serving new migrations; empty if nothing does."""
    if manager.shutting_down:
        return "shutting down"
    for files in (manager.means.server, manager.means.client):
        if files is not None:
            try:
                files.current()
            except TortieError as error:
                return first_line(error)
    return ""


class ControlServer:
    """The socket, and a thread for each request."""

    def __init__(self, path: Path, control: Control, log: Log) -> None:
        self._path, self._control, self._log = path, control, log
        self._slots = threading.Semaphore(MOST_AT_ONCE)
        self._answering = 0
        self._answered = threading.Condition()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._listener: socket.socket | None = None
        self._inode = (0, 0)

    def open(self) -> None:
        """Listen; the caller holds the daemon's lock, so an old file is a dead daemon's.

        Raises `InvalidInput` for a place that cannot be had, OSError.
        """
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._clear()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(str(self._path))
            self._inode = _inode(self._path)
            listener.listen(64)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise InvalidInput(f"control_socket {self._path}: {first_line(error)}") from error
        self._listener = listener

    def run(self) -> None:
        """A thread's body, until `stop`; what was asked by then is still answered."""
        listener = self._listener
        assert listener is not None
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        while self._stop_read not in dict(poll.poll()):
            try:
                client, _ = listener.accept()
            except OSError:
                time.sleep(0.05)  # out of descriptors: others give some back
                continue
            client.setblocking(True)
            self._slots.acquire()
            thread = threading.Thread(
                target=self._handle, args=(client,), name="control", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # no more threads: that ends no migration
                client.close()
                self._slots.release()
                self._log.warning("control_refused", reason=error)
        listener.close()
        with self._answered:
            self._answered.wait_for(lambda: not self._answering, READ_SECONDS)

    def stop(self) -> None:
        """Make `run` return; the file goes if it is still ours."""
        with suppress(OSError):
            if _inode(self._path) == self._inode:
                self._path.unlink()
        os.write(self._stop_write, b"x")

    def _clear(self) -> None:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise InvalidInput(f"control_socket {self._path} is there and no socket: remove it")
            self._path.unlink()

    def _handle(self, client: socket.socket) -> None:
        try:
            with client:
                uid = _peer_uid(client)
                if uid not in (0, os.geteuid()):
                    self._log.warning("control_refused", uid=uid)
                    return
                line = _read_line(client, READ_SECONDS)
                if line is not None:
                    with self._promised():
                        answer = json.dumps(self._answer(line), default=str)
                        client.settimeout(READ_SECONDS)
                        client.sendall(answer.encode() + b"\n")
        except OSError as error:
            self._log.warning("control_caller_gone", reason=error)
        finally:
            self._slots.release()

    @contextmanager
    def _promised(self) -> Iterator[None]:
        """The last request may be the one that lets the daemon end: it gets its answer."""
        with self._answered:
            self._answering += 1
        try:
            yield
        finally:
            with self._answered:
                self._answering -= 1
                self._answered.notify_all()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return self._control.answer(line)
        except Exception as error:  # a fault of ours: it ends this request, and is told
            self._log.error("control_request_failed", reason=repr(error))
            return _refusal("Internal", f"a fault of the daemon's, see its log: {error!r}")


def _read_line(client: socket.socket, seconds: float) -> bytes | None:
    """A request; None when none came in time. A long one is answered as what is not JSON."""
    end = time.monotonic() + seconds
    found = b""
    while b"\n" not in found and len(found) <= MOST_BYTES:
        left = end - time.monotonic()
        if left <= 0:
            return None
        client.settimeout(left)
        with suppress(TimeoutError):
            part = client.recv(MOST_BYTES)
            if not part:
                return found or None
            found += part
    return found.partition(b"\n")[0] if b"\n" in found else b""


def _inode(path: Path) -> tuple[int, int]:
    state = path.lstat()
    return state.st_dev, state.st_ino


def _peer_uid(client: socket.socket) -> int:
    """The uid of the process at the other end, as the kernel recorded it at connect."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(raw)[1])


def _ports(found: PortMap) -> dict[str, Any]:
    return {"ports": found.wire(), "generation": found.generation}


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5:
        raise InvalidInput(f"ports: {text!r} is no TCP port")
    return int(text)


def _address(text: str, name: str) -> IPAddress:
    try:
        return ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise InvalidInput(f"{name}: {text!r} is no IP address") from None


def _refusal(kind: str, text: str) -> dict[str, Any]:
    return {"ok": False, "kind": kind, "error": text}
