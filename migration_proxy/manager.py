"""`ProxyManager`: the listeners of a node's migrations, by KubeVirt's contract without its faults.

A Start call makes all of its listeners or changes nothing: new ones are bound before the old ones
go, and what failed can be asked for again. After `shutdown` began every Start is refused. One lock
over two maps; no network is waited for under it.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from libtortie.errors import InvalidInput, Unavailable
from libtortie.jsonlog import Log
from migration_proxy import model, tcp_sockets
from migration_proxy.config import ProxyConfig
from migration_proxy.lanes import Lanes, lanes_here
from migration_proxy.listener import Listener
from migration_proxy.model import IPAddress, PortMap, Request, ShuttingDown, Side, Verdict
from migration_proxy.rate import Rate
from migration_proxy.session import Ended, Means, Phase, Session, Trouble
from migration_proxy.tcp_sockets import Network, Patience
from migration_proxy.telemetry import Telemetry
from migration_proxy.tls_files import TlsFiles
from migration_proxy.unix_sockets import Owner, UnixListener

CLOSE_SECONDS = 15.0
UNDO_SECONDS = 1.0
"""For the threads of listeners of a Start that failed: they have nothing to do yet."""
_NOT_HERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)


@dataclass(slots=True)
class Migration:
    """The listeners of one Start call. `since` is of the wall clock, what ends in `_at` of one
    that never jumps."""

    request: Request
    generation: int
    since: float
    began_at: float
    listeners: list[Listener] = field(default_factory=list)
    files: list[UnixListener] = field(default_factory=list)
    address: IPAddress | None = None
    busy_at: float = 0.0
    failures: dict[int, Ended] = field(default_factory=dict)
    failed_since: dict[int, float] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether each listener serves, and each file is in its place."""
        return all(one.alive for one in self.listeners) and all(one.present() for one in self.files)

    @property
    def busy(self) -> bool:
        """Whether a peer that was let in, or a local program, has a stream."""
        return any(
            self.request.side is Side.SOURCE or each.phase is not Phase.SHAKING
            for one in self.listeners
            for each in one.sessions()
        )

    def start(self) -> None:
        """Begin to accept. Raises `Unavailable` when there may be no more threads."""
        try:
            for listener in self.listeners:
                listener.start()
        except RuntimeError as error:
            raise Unavailable(
                f"migration {self.request.key}: {error}: more threads than ulimit -u or the "
                "cgroup's pids.max lets us have"
            ) from error

    def close(self, deadline: float) -> bool:
        """End everything; False when something outlasts the deadline."""
        end = time.monotonic() + deadline
        for file in self.files:
            file.withdraw()
        for listener in self.listeners:
            listener.stop()
        left = [one.close(max(0.0, end - time.monotonic())) for one in self.listeners]
        return all(left)


class ProxyManager:
    """Safe from any thread."""

    def __init__(
        self,
        config: ProxyConfig,
        network: Network,
        log: Log,
        telemetry: Telemetry | None = None,
        *,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.network = network
        self.telemetry = telemetry or Telemetry()
        self._log, self._now, self.steady = log, now, steady
        self._owner = Owner.named(config.socket_user)
        self.means = Means(
            self._files(server=True),
            self._files(server=False),
            config.allowed_peers,
            Patience(config.connect_seconds, config.stall_seconds, config.keepalive_seconds),
            config.handshake_seconds,
            Lanes(lanes_here()),
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._maps: dict[Side, dict[str, Migration]] = {Side.TARGET: {}, Side.SOURCE: {}}
        self._last_generation = 0
        self._shutting_down = False

    def start_target_listener(
        self,
        key: str,
        files: Sequence[str],
        *,
        peer: IPAddress | None = None,
        peer_name: str = "",
    ) -> PortMap:
        """One TCP listener for each target socket; where they are.

        Raises `ShuttingDown`, `InvalidInput`, `Unavailable`.
        """
        self._refuse_late()
        tls = not self.config.disable_tls
        wanted = model.target_request(key, files, tls=tls, peer=peer, peer_name=peer_name)
        self._start(wanted, self._open_target)
        return self.target_listener_ports(key)

    def target_listener_ports(self, key: str) -> PortMap:
        """Where a migration's target listens; an empty map for none."""
        with self._lock:
            found = self._maps[Side.TARGET].get(key)
            if found is None:
                return PortMap()
            ports = {one.port: one.stream.logical for one in found.listeners if one.alive}
            return PortMap(ports, found.generation)

    def stop_target_listener(self, key: str) -> None:
        """End a target's listeners and streams; nothing for an unknown key."""
        self._stop(Side.TARGET, key)

    def start_source_listener(
        self,
        key: str,
        address: IPAddress,
        ports: Mapping[int, int],
        base: str,
        *,
        peer_name: str = "",
        rate: int | None = None,
    ) -> tuple[str, ...]:
        """One unix socket for each port of the target; their files.

        `rate` in bytes a second; None: the configured one. Raises as `start_target_listener`.
        """
        self._refuse_late()
        wanted = model.source_request(
            key,
            address,
            ports,
            base,
            tls=not self.config.disable_tls,
            peer_name=peer_name,
            rate=self.config.rate_limit if rate is None else rate,
        )
        self._start(wanted, self._open_source)
        return self.source_listener_files(key)

    def source_listener_files(self, key: str) -> tuple[str, ...]:
        """A source's sockets; none for an unknown key."""
        with self._lock:
            found = self._maps[Side.SOURCE].get(key)
            return tuple(one.path for one in found.files) if found else ()

    def stop_source_listener(self, key: str) -> None:
        """End a source's listeners and streams and remove its sockets."""
        self._stop(Side.SOURCE, key)

    def open_listener_count(self) -> int:
        """How many keys there are, of both sides."""
        with self._lock:
            return self._count()

    @property
    def shutting_down(self) -> bool:
        """Whether new migrations are refused."""
        return self._shutting_down

    def migrations(self) -> tuple[Migration, ...]:
        """Every migration of both sides."""
        with self._lock:
            return tuple(one for side in self._maps.values() for one in side.values())

    def reap(self) -> tuple[str, ...]:
        """End what has had no stream for `idle_seconds`, if that is set; the keys."""
        most = self.config.idle_seconds
        over = self._take_idle(most) if most else []
        for migration in over:
            self._log.warning(
                "migration_expired",
                **_names(migration.request),
                reason=f"no stream for {most:g} s and nobody stopped it",
            )
            self._close(migration)
        return tuple(migration.request.key for migration in over)

    def _take_idle(self, most: float) -> list[Migration]:
        """Out of the maps, with what was found idle: a Start that comes now makes it anew."""
        over = []
        with self._changed:
            now = self.steady()
            for here in self._maps.values():
                for key, migration in tuple(here.items()):
                    if migration.busy:
                        migration.busy_at = now
                    elif now - migration.busy_at > most:
                        over.append(here.pop(key))
            self._changed.notify_all()
        return over

    def shutdown(self, drain: float) -> bool:
        """Refuse new migrations, wait for those there are, end the rest.

        `drain` in seconds. False when some had to be ended.
        """
        end = time.monotonic() + drain
        with self._changed:
            self._shutting_down = True
            while self._count() and time.monotonic() < end:
                self._changed.wait(max(0.0, end - time.monotonic()))
            left = [one for side in self._maps.values() for one in side.values()]
        for migration in left:
            self._log.warning("migration_ended_by_shutdown", **_names(migration.request))
            self._stop(migration.request.side, migration.request.key)
        return not left

    def _refuse_late(self) -> None:
        if self._shutting_down:
            raise ShuttingDown

    def _start(
        self, wanted: Request, build: Callable[[Request, Migration | None], Migration]
    ) -> None:
        with self._lock:
            self._refuse_late()
            here = self._maps[wanted.side]
            current = here.get(wanted.key)
            verdict = (
                model.plan(current.request, self._serves(current), wanted)
                if current
                else Verdict.CREATE
            )
            if current is not None and verdict is Verdict.KEEP:
                current.busy_at = self.steady()  # somebody still wants it
                return
            made = here[wanted.key] = build(wanted, current)
        self._log.info(
            f"{wanted.side}_listening",
            **_names(wanted),
            verdict=verdict,
            generation=made.generation,
            address=str(made.address or wanted.peer),
            ports={one.port or one.stream.port: one.stream.logical for one in made.listeners},
            tls=wanted.tls,
        )
        if current is not None:
            self._close(current)

    def _serves(self, migration: Migration) -> bool:
        """Whether all listeners are alive, and where they are to be."""
        if migration.address is None or not migration.alive:
            return migration.alive
        try:
            meant = tcp_sockets.bind_addresses(self.config.listen, self.network)
        except InvalidInput:
            return False
        return migration.address in meant

    def _open_target(self, wanted: Request, _current: Migration | None) -> Migration:
        """Bind everything, or nothing. Raises `InvalidInput`, `Unavailable`."""
        address = tcp_sockets.bind_address(self.config.listen, self.network)
        made = self._migration(wanted, address)
        taken = {
            listener.port
            for migration in self._maps[Side.TARGET].values()
            for listener in migration.listeners
            if listener.alive
        }
        with ExitStack() as undo:
            for stream in wanted.streams:
                sock = _bound(address, self.config.ports, frozenset(taken))
                taken.add(int(sock.getsockname()[1]))
                listener = self._listener(sock, wanted, stream, None)
                undo.callback(listener.close, UNDO_SECONDS)
                made.listeners.append(listener)
            made.start()
            undo.pop_all()
        return made

    def _open_source(self, wanted: Request, current: Migration | None) -> Migration:
        """Bind everything and put the files in their places, or nothing. Raises the same."""
        made = self._migration(wanted, None)
        rate = Rate(wanted.rate) if wanted.rate else None
        ours = {one.path for one in current.files if one.present()} if current else set()
        with ExitStack() as undo:
            for stream in wanted.streams:
                file = _unix_listener(stream.path, self._owner, ours=stream.path in ours)
                undo.callback(file.withdraw)
                listener = self._listener(file.socket, wanted, stream, rate)
                undo.callback(listener.close, UNDO_SECONDS)
                made.files.append(file)
                made.listeners.append(listener)
            made.start()
            for file in made.files:
                _publish(file)
            undo.pop_all()
        return made

    def _migration(self, wanted: Request, address: IPAddress | None) -> Migration:
        now, steady = self._now(), self.steady()
        self._last_generation = model.next_generation(self._last_generation, now)
        return Migration(
            wanted, self._last_generation, now, steady, address=address, busy_at=steady
        )

    def _listener(
        self, sock: socket.socket, wanted: Request, stream: model.Stream, rate: Rate | None
    ) -> Listener:
        return Listener(
            sock,
            wanted,
            stream,
            self.means,
            most=self.config.most_streams,
            rate=rate,
            hear=self._hear,
        )

    def _stop(self, side: Side, key: str) -> None:
        with self._changed:
            found = self._maps[side].pop(key, None)
            self._changed.notify_all()
        if found is not None:
            self._close(found)
            self._log.info(f"{side}_stopped", **_names(found.request))

    def _close(self, migration: Migration) -> None:
        if not migration.close(CLOSE_SECONDS):
            self._log.error("streams_outlast_their_listener", **_names(migration.request))

    def _count(self) -> int:
        return sum(map(len, self._maps.values()))

    def _hear(self, listener: Listener, session: Session | None, what: str) -> None:
        """Log and count a stream's end, or what befell a listener."""
        fields = {**_names(listener.request), "stream": model.NAMES[listener.stream.logical]}
        if session is None:
            self._log.warning("listener_trouble", **fields, reason=what)
            return
        self._note(listener, session)
        out, back = session.moved
        more = {
            "listening": listener.stream.path if listener.request.side is Side.SOURCE else "tcp",
            "peer": session.remote_at,
            "peer_name": session.peer.common_name if session.peer else "",
            "bytes_out": out,
            "bytes_in": back,
            "seconds": round(session.age, 3),
        }
        ended = session.ended
        self.telemetry.over(session)
        if ended is None or ended.trouble.blames_nobody:
            self._log.info("stream_over", **fields, **more)
        else:
            self._log.warning(
                "stream_failed", **fields, **more, trouble=ended.trouble, reason=str(ended)
            )

    def _note(self, listener: Listener, session: Session) -> None:
        """Keep the last failure of each stream, until one goes well."""
        with self._lock:
            migration = self._maps[listener.request.side].get(listener.request.key)
            if migration is None or listener not in migration.listeners:
                return
            logical, ended = listener.stream.logical, session.ended
            if not _stranger(session):
                migration.busy_at = self.steady()
            if ended is not None and ended.trouble is Trouble.GONE:
                return  # it proves nothing of the way
            if ended is not None and ended.trouble is not Trouble.STOPPED:
                migration.failures[logical] = ended
                migration.failed_since[logical] = self._now()
            else:
                migration.failures.pop(logical, None)

    def _files(self, *, server: bool) -> TlsFiles | None:
        if self.config.disable_tls:
            return None
        complain = self.telemetry.complaint(self._log, server=server)
        return TlsFiles(self.config.tls, server=server, complain=complain)


def _stranger(session: Session) -> bool:
    """Whether it came from the network and was not let in: such keep no migration alive."""
    return (
        session.request.side is Side.TARGET
        and session.ended is not None
        and session.ended.trouble in (Trouble.REFUSED, Trouble.HANDSHAKE)
    )


def _names(request: Request) -> dict[str, str]:
    return {"migration": request.key, "side": str(request.side)}


def _bound(address: IPAddress, ports: range, taken: frozenset[int]) -> socket.socket:
    try:
        return tcp_sockets.listen(address, ports, taken)
    except OSError as error:
        raise Unavailable(f"cannot listen on {address}: {error.strerror}") from error


def _unix_listener(path: str, owner: Owner, *, ours: bool) -> UnixListener:
    try:
        return UnixListener(path, owner, ours=ours)
    except OSError as error:
        raise _refused(path, error) from error


def _publish(file: UnixListener) -> None:
    try:
        file.publish()
    except OSError as error:
        raise _refused(file.path, error) from error


def _refused(path: str, error: OSError) -> InvalidInput | Unavailable:
    what = f"socket {path}: {error.strerror or os.strerror(error.errno or 0)}"
    if error.errno in _NOT_HERE:
        return InvalidInput(f"{what}: the base directory must be there, and writable")
    return Unavailable(what)
