"""What `status` answers: each migration's listeners, ports, peers, progress, and what is wrong.

`findings` is the judge: from what is seen of a migration to sentences that name a cause. It says
nothing of a migration that goes well.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from libtortie.errors import TortieError, first_line
from libtortie.validity import days_left
from migration_proxy import tcp_sockets
from migration_proxy.listener import Listener
from migration_proxy.manager import Migration, ProxyManager
from migration_proxy.model import NAMES, Side, path_in_pod
from migration_proxy.session import Session
from migration_proxy.tls_files import TlsFiles

QUIET_SECONDS = 5.0
"""For how long a listener may be without a stream before that is worth a word."""
SOON_DAYS = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One stream of a migration, as `findings` sees it."""

    name: str
    open: bool
    streams_ever: int
    failure: str = ""
    present: bool = True


def findings(
    side: Side, where: str, moved_to: str, open_seconds: float, streams: Sequence[Seen]
) -> list[str]:
    """Causes, most telling first. `moved_to`: where it would listen now, if that is elsewhere."""
    found = []
    if moved_to:
        found.append(
            f"it listens on {where}, but `listen` now means {moved_to}: "
            "start the target's listener again"
        )
    for one in streams:
        if not one.open:
            found.append(f"{one.name}: its listener is closed: start it again")
        elif not one.present:
            found.append(f"{one.name}: its socket file was removed: start the source again")
        if one.failure:
            found.append(f"{one.name}: {one.failure}")
    if found or open_seconds < QUIET_SECONDS:
        return found
    return _silence(side, where, open_seconds, streams)


def _silence(side: Side, where: str, seconds: float, streams: Sequence[Seen]) -> list[str]:
    used = [one.name for one in streams if one.streams_ever]
    if used:
        return []
    if side is Side.SOURCE:
        return [
            f"nothing has connected to the sockets for {seconds:.0f} s: the source's libvirt has "
            "not begun, or looks for them in another directory"
        ]
    return [
        f"the listeners are open on {where}, but nothing has connected for {seconds:.0f} s: the "
        "source has other ports, or a firewall or policy stands between the nodes"
    ]


def describe(manager: ProxyManager, now: float) -> dict[str, Any]:
    """Everything `status` shows, as JSON's plain values."""
    config = manager.config
    return {
        "pid": os.getpid(),
        "node": config.node,
        "shutting_down": manager.shutting_down,
        "drain_seconds": config.drain_seconds,
        "disable_tls": config.disable_tls,
        "listen": config.listen or "all addresses",
        "tls": {
            role: _files(files, now)
            for role, files in (("server", manager.means.server), ("client", manager.means.client))
            if files is not None
        },
        "descriptors": _descriptors(),
        "migrations": [
            _migration(manager, one)
            for one in sorted(
                manager.migrations(), key=lambda each: (each.request.key, each.request.side)
            )
        ],
    }


def _descriptors() -> int:
    """How many are open; where one more cannot be had to count them, all there may be."""
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _files(files: TlsFiles, now: float) -> dict[str, Any]:
    try:
        end = files.current().not_after
    except TortieError as error:
        return {"trouble": first_line(error) or "not usable"}
    left = days_left(end, datetime.fromtimestamp(now, UTC))
    trouble = files.trouble
    if not trouble and left <= 0:
        trouble = "the certificate has expired: renew it"
    elif not trouble and left < SOON_DAYS:
        trouble = f"the certificate expires in {left * 24:.0f} hours"
    return {"not_after": _when(end.timestamp()), "days_left": left, "trouble": trouble}


def _migration(manager: ProxyManager, one: Migration) -> dict[str, Any]:
    request = one.request
    where = str(one.address or request.peer)
    seen = [_seen(one, listener) for listener in one.listeners]
    out = back = 0
    for listener in one.listeners:
        more_out, more_back = listener.totals()
        out, back = out + more_out, back + more_back
    moved_to = _moved_to(manager, one) if request.side is Side.TARGET else ""
    return {
        "migration": request.key,
        "side": str(request.side),
        "since": _when(one.since),
        "generation": one.generation,
        "address": where,
        "peer": str(request.peer or ""),
        "peer_name": request.peer_name,
        "tls": request.tls,
        "rate_limit": request.rate,
        "bytes_out": out,
        "bytes_in": back,
        "bytes_per_second": round(manager.telemetry.speed.of(request.key, request.side)),
        "streams": [_stream(one, listener) for listener in one.listeners],
        "findings": findings(request.side, where, moved_to, manager.steady() - one.began_at, seen),
    }


def _seen(one: Migration, listener: Listener) -> Seen:
    logical = listener.stream.logical
    failure = one.failures.get(logical)
    present = all(f.present() for f in one.files if f.path == listener.stream.path)
    return Seen(
        NAMES[logical],
        listener.alive,
        listener.streams,
        str(failure) if failure else "",
        present,
    )


def _stream(one: Migration, listener: Listener) -> dict[str, Any]:
    logical = listener.stream.logical
    out, back = listener.totals()
    failure = one.failures.get(logical)
    return {
        "stream": NAMES[logical],
        "logical_port": logical,
        "port": listener.port or listener.stream.port,
        "path": path_in_pod(listener.stream.path),
        "open": listener.alive,
        "streams_ever": listener.streams,
        "bytes_out": out,
        "bytes_in": back,
        "connections": [_connection(each) for each in listener.sessions()],
        "last_failure": str(failure) if failure else "",
        "last_failure_at": _when(one.failed_since[logical]) if failure else "",
    }


def _connection(session: Session) -> dict[str, Any]:
    out, back = session.moved
    return {
        "peer": session.remote_at,
        "peer_name": session.peer.common_name if session.peer else "",
        "peer_not_after": _when(session.peer.not_after.timestamp()) if session.peer else "",
        "phase": str(session.phase),
        "since": _when(session.came),
        "seconds": round(session.age, 1),
        "bytes_out": out,
        "bytes_in": back,
    }


def _moved_to(manager: ProxyManager, one: Migration) -> str:
    try:
        now = tcp_sockets.bind_addresses(manager.config.listen, manager.network)
    except TortieError as error:
        return f"nothing ({first_line(error)})"
    return "" if one.address in now else str(now[0])


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
