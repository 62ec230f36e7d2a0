"""The socket under requests: no call outlives its deadline, and an open stream can be stopped.

requests' own read timeout starts anew with every byte, so a server that drips one byte a second
holds a caller for ever. Here the reader under http.client waits in slices and looks at the call's
`Limits` between them: total deadline, silence, and a stop event set by another thread. Name
resolution, connect and each of several addresses share the same deadline. A slice in which this
process stood still (a paused VM, a starved CPU) does not count: the answer may be there, unread.

Proxies and ~/.netrc of the environment are ignored: a CNI plugin inherits its runtime's. A proxy
that a kubeconfig names is used.
"""

from __future__ import annotations

import errno
import http.client
import io
import ipaddress
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import requests
import requests.adapters
import urllib3.connection
import urllib3.connectionpool

from libtortie.deadline import STEP, Standstill
from libtortie.kube.credentials import Credentials

SLICE = 0.2  # seconds between two looks at a stop event
_POOL = 10
_KEEPALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
_CALL = threading.local()
Address = tuple[Any, ...]


class DeadlineError(Exception):
    """The call's time is over. Not an OSError, so that no library retries or rewrites it.

    `answering`: the server had accepted the connection and owed an answer: it is slow, not away.
    """

    def __init__(self, message: str, *, answering: bool) -> None:
        super().__init__(message)
        self.answering = answering


class ConnectError(Exception):
    """No connection could be made. Not an OSError either: urllib3 takes a reset during connect
    for one during send, and goes on to read from a socket that does not exist."""


class StoppedError(Exception):
    """The caller's stop event was set while we waited."""


class Limits:
    """When one call must be over. Times are seconds of `clock`."""

    def __init__(
        self,
        total: float,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._stop = stop
        self._total = total
        self._deadline = clock() + total
        self._idle: float | None = None
        self._heard = clock()
        self._standstill = Standstill(self._heard, self._deadline)
        self.connected = False

    def stream(self, total: float, idle: float) -> None:
        """The head has arrived: from now on a longer deadline, and a limit on silence."""
        self._total, self._idle = total, idle
        self._deadline = self._clock() + total
        self._heard = self._clock()

    def heard(self) -> None:
        """Bytes arrived."""
        self._heard = self._clock()

    def wait(self) -> float:
        """How long one blocking step may take. Raises `StoppedError`, `DeadlineError`."""
        if self._stop is not None and self._stop.is_set():
            raise StoppedError
        now = self._clock()
        self._forgive(now)
        left = self._deadline - now
        if left <= 0:
            waiting = self.connected and self._idle is None
            raise DeadlineError(f"not done after {self._total:g} s", answering=waiting)
        if self._idle is not None:
            quiet = self._heard + self._idle - now
            if quiet <= 0:
                raise DeadlineError(f"silent for {self._idle:g} s", answering=False)
            left = min(left, quiet)
        left = min(left, STEP if self._stop is None else SLICE)
        self._standstill.expect(now, now + left)
        return left

    def left(self) -> float:
        """Time to the deadline. Raises like `wait`."""
        self.wait()
        now = self._clock()
        self._standstill.expect(now, self._deadline)
        return max(0.001, self._deadline - now)

    def _forgive(self, now: float) -> None:
        """Let a step that ended much later than it was to end not count."""
        stood = self._standstill.forgiven(now)
        self._deadline += stood
        self._heard += stood


def build_session(credentials: Credentials) -> requests.Session:
    """A session for one server and one set of TLS material; use it inside `limited`."""
    session = requests.Session()
    session.trust_env = False
    session.verify = not credentials.config.insecure
    if credentials.config.proxy:
        session.proxies = dict.fromkeys(("http", "https"), credentials.config.proxy)
    adapter = _Adapter(credentials)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session


class limited:  # lower case: it reads as a statement, `with limited(limits):`
    """Bind `limits` to the calls this thread makes in the block."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def __enter__(self) -> Limits:
        _CALL.limits = self._limits
        return self._limits

    def __exit__(self, *_: object) -> None:
        del _CALL.limits


def _limits() -> Limits:
    return cast(Limits, _CALL.limits)


class _Reader(io.RawIOBase):
    """A socket's bytes under a call's limits. `file` keeps the socket's reference count."""

    def __init__(self, sock: socket.socket, file: io.BufferedIOBase, limits: Limits) -> None:
        super().__init__()
        self._sock, self._file, self._limits = sock, file, limits

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            self._sock.settimeout(self._limits.wait())
            try:
                count = self._sock.recv_into(buffer)
            except TimeoutError:
                continue  # `wait` decides whether this was the last slice
            self._limits.heard()
            return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """http.client's answer, reading through `_Reader`."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Reader(sock, self.fp, _limits()), 65536)


def _connect(host: str, port: int) -> socket.socket:
    """A connected socket, within the call's limits. Raises `ConnectError` of the last address."""
    limits = _limits()
    addresses = _resolve(host, port, limits)
    failure = ConnectError(f"{host} has no address")
    for position, (family, address) in enumerate(addresses):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            for level, option, value in _KEEPALIVE:
                sock.setsockopt(level, option, value)
            _connect_one(sock, address, limits, limits.left() / (len(addresses) - position))
        except OSError as error:
            failure = ConnectError(error.strerror or str(error))
            failure.__cause__ = error
            sock.close()
            continue
        except BaseException:
            sock.close()
            raise
        limits.connected = True
        sock.settimeout(limits.left())
        return sock
    raise failure


def _connect_one(sock: socket.socket, address: Address, limits: Limits, share: float) -> None:
    """Connect within `share` seconds, waiting in slices so that a stop is seen."""
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code not in (0, errno.EINPROGRESS):
        raise OSError(code, f"{os.strerror(code)} by {address[0]} port {address[1]}")
    poller = select.poll()
    poller.register(sock, select.POLLOUT)
    until = time.monotonic() + share
    while not poller.poll(int(1000 * min(limits.wait(), max(0.001, until - time.monotonic())))):
        if time.monotonic() >= until:
            raise OSError(errno.ETIMEDOUT, f"no answer from {address[0]} port {address[1]}")
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, f"{os.strerror(code)} by {address[0]} port {address[1]}")


def _resolve(host: str, port: int, limits: Limits) -> list[tuple[int, Address]]:
    """Addresses of a host. The resolver has no time limit of its own: it runs on a thread."""
    bare = host.strip("[]")
    try:
        family = ipaddress.ip_address(bare).version
    except ValueError:
        pass
    else:
        return [(socket.AF_INET6 if family == 6 else socket.AF_INET, (bare, port))]
    answer: list[tuple[int, Address]] = []
    failure: list[OSError] = []
    done = threading.Event()

    def look_up() -> None:
        try:
            for found in socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM):
                answer.append((found[0], found[4]))
        except OSError as error:
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=look_up, name="tortie-resolve", daemon=True).start()
    while not done.wait(limits.wait()):
        pass
    if failure:
        raise ConnectError(f"cannot resolve {bare}: {failure[0].strerror}") from failure[0]
    return answer


class _Plain(urllib3.connection.HTTPConnection):
    response_class = _Response

    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port)

    def send(self, data: Any) -> None:
        if self.sock is not None:
            _limits().connected = True
            self.sock.settimeout(_limits().left())
        super().send(data)


class _Tls(urllib3.connection.HTTPSConnection):
    response_class = _Response

    def _new_conn(self) -> socket.socket:
        return _connect(self._dns_host, self.port)

    def send(self, data: Any) -> None:
        if self.sock is not None:
            _limits().connected = True
            self.sock.settimeout(_limits().left())
        super().send(data)


class _PlainPool(urllib3.connectionpool.HTTPConnectionPool):
    ConnectionCls = _Plain


class _TlsPool(urllib3.connectionpool.HTTPSConnectionPool):
    ConnectionCls = _Tls

    def _validate_conn(self, conn: Any) -> None:
        """Connect; without the base class's warning on stderr, where a plugin's caller reads.

        `insecure` was the operator's choice, and the client logs it once.
        """
        if conn.is_closed:
            conn.connect()


class _Adapter(requests.adapters.HTTPAdapter):
    """requests' adapter with our connections and our TLS context."""

    def __init__(self, credentials: Credentials) -> None:
        self._pool_options: dict[str, Any] = {}
        if credentials.tls is not None:
            self._pool_options["ssl_context"] = credentials.tls
            if credentials.config.tls_server_name:
                self._pool_options["server_hostname"] = credentials.config.tls_server_name
                self._pool_options["assert_hostname"] = (
                    False if credentials.config.insecure else credentials.config.tls_server_name
                )
        super().__init__(pool_connections=1, pool_maxsize=_POOL, max_retries=0)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **options: Any
    ) -> None:
        """Build the pools with our connection classes."""
        super().init_poolmanager(connections, maxsize, block, **options, **self._pool_options)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """The same by way of a proxy, which is asked to tunnel TLS."""
        manager = super().proxy_manager_for(proxy, **options, **self._pool_options)
        manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
        return manager

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Nothing: requests would add the public CAs of its own bundle to our context's trust."""

    def add_headers(self, request: requests.PreparedRequest, **_: Any) -> None:
        """Nothing to add."""


def failure_text(error: BaseException) -> str:
    """The innermost reason of a library's nested network error, without addresses of objects."""
    seen: BaseException = error
    while True:
        inner = getattr(seen, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in seen.args if isinstance(arg, BaseException)), None)
        if inner is None:
            break
        seen = inner
    if isinstance(seen, OSError) and seen.strerror:
        return seen.strerror
    return str(seen) or type(seen).__name__
