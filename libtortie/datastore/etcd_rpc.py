"""One etcd endpoint: its gRPC channel, and what its errors mean. The only file that knows etcd3.

Of etcd3 0.12.0 only the generated messages and stubs are used: its client has one endpoint, a
token fixed at construction and watches that fall silent when the server restarts. Its generated
code is older than protobuf 4 and imports only with protobuf's pure Python implementation.

Nothing of gRPC leaves this file: every error becomes a `Failure`, which carries one of ours.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines on stderr are no log of ours

import grpc
from etcd3 import etcdrpc

from libtortie.datastore.etcd_config import Timing, Tls
from libtortie.errors import Compacted, InvalidInput, TortieError, Unauthorized, Unavailable

pb: Any = etcdrpc
"""The generated messages and stubs, which have no static types."""

Message = Any
Metadata = Sequence[tuple[str, str]]


class Failure(Exception):
    """One attempt failed.

    `untouched`: the server certainly did nothing. `again`: another attempt may do better.
    `stale_token`: a new token is needed first.
    """

    def __init__(
        self, error: TortieError, *, untouched: bool, again: bool, stale_token: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.untouched = untouched
        self.again = again
        self.stale_token = stale_token

    def before_the_request(self) -> Failure:
        """The same of a request that had to go first: the one it was for was not even sent."""
        return Failure(self.error, untouched=True, again=self.again, stale_token=self.stale_token)


@dataclass(frozen=True, slots=True)
class _Verdict:
    error: type[TortieError]
    untouched: bool = False
    again: bool = False
    stale_token: bool = False


_NOT_SENT = _Verdict(Unavailable, untouched=True, again=True)
_BROKEN = _Verdict(Unavailable, again=True)
_REFUSED = _Verdict(Unauthorized, untouched=True)
_STALE = _Verdict(Unauthorized, untouched=True, stale_token=True)
_BAD = _Verdict(InvalidInput, untouched=True)

_TEXTS = {
    "failed to connect to all addresses": _NOT_SENT,
    "dns resolution failed": _NOT_SENT,
    "etcdserver: no leader": _NOT_SENT,  # asked for by the metadata, before anything is done
    "etcdserver: too many requests": _NOT_SENT,
    "etcdserver: mvcc: database space exceeded": _Verdict(Unavailable, untouched=True),
    "etcdserver: invalid auth token": _STALE,
    "etcdserver: revision of auth store is old": _STALE,
    "etcdserver: user name is empty": _STALE,  # authentication was enabled meanwhile
    "etcdserver: authentication failed": _REFUSED,
    "required revision has been compacted": _Verdict(Compacted, untouched=True),
    "etcdserver: request is too large": _BAD,
    "etcdserver: too many operations": _BAD,
    "message larger than max": _BAD,
}
"""What decides, by a part of the error's text in lower case; else its code does."""

_CODES = {
    grpc.StatusCode.UNAVAILABLE: _BROKEN,
    grpc.StatusCode.DEADLINE_EXCEEDED: _BROKEN,
    grpc.StatusCode.ABORTED: _BROKEN,
    grpc.StatusCode.CANCELLED: _BROKEN,
    grpc.StatusCode.INTERNAL: _BROKEN,
    grpc.StatusCode.UNKNOWN: _BROKEN,
    grpc.StatusCode.UNAUTHENTICATED: _REFUSED,
    grpc.StatusCode.PERMISSION_DENIED: _REFUSED,
    grpc.StatusCode.INVALID_ARGUMENT: _BAD,
}

_NO_AUTHENTICATION = "etcdserver: authentication is not enabled"


_LASTING = "/grpc.health.v1.Health/Watch"
"""A stream that etcd offers since 3.3, says next to nothing on, and ends with its process."""

IN_VAIN = 3
"""Streams in succession that ended beside requests that were answered: they tell of nothing."""

_PATHS = {
    "range": "/etcdserverpb.KV/Range",
    "txn": "/etcdserverpb.KV/Txn",
    "authenticate": "/etcdserverpb.Auth/Authenticate",
}


class Channel:
    """A connection to one endpoint, made when first used and again when it broke.

    A server that accepts and says nothing has not let it be made: gRPC waits for the server's
    first frame, for `Timing.attempt`. So nothing is sent to it that could be in doubt.
    """

    def __init__(
        self, target: str, tls: Tls | None, timing: Timing, on_call: Callable[[str], None] | None
    ) -> None:
        self.target = target
        self.tls = tls
        options = _options(timing)
        if tls is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
            self._channel = grpc.secure_channel(target, credentials, options)
        self._on_call = on_call
        self._methods = {
            "range": self._channel.unary_unary(_PATHS["range"]),  # bytes: see etcd_wire
            "txn": self._channel.unary_unary(_PATHS["txn"]),
            "authenticate": pb.AuthStub(self._channel).Authenticate,
        }
        self._watch = pb.WatchStub(self._channel).Watch
        self._last: Any = self._channel.unary_stream(_LASTING)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._in_vain = 0

    def connection(self) -> Connection:
        """What goes over this channel from now on goes over, as far as one can tell."""
        with self._lock:
            last = self._connection
            if last is None or last.over:
                try:
                    last = Connection(self._last(b"", metadata=()))
                except ValueError as error:
                    raise _lost(self.target, error) from error
                self._connection = last
            return last

    def served(self, connection: Connection) -> None:
        """A request that went over a connection was answered."""
        with self._lock:
            self._in_vain = self._in_vain + 1 if connection.over else 0
            connection.tells &= self._in_vain < IN_VAIN

    def call(self, method: str, request: Message, seconds: float, metadata: Metadata) -> Message:
        """One round trip. Raises `Failure`."""
        if self._on_call is not None:
            self._on_call(_PATHS[method])
        try:
            return self._methods[method](request, timeout=seconds, metadata=metadata)
        except grpc.RpcError as error:
            raise failure_of(error, self.target) from error
        except ValueError as error:  # a closed channel
            raise _lost(self.target, error) from error

    def watch(self, requests: Iterator[Message], metadata: Metadata) -> Stream:
        """Open a stream of watch responses. Raises `Failure`."""
        try:
            return Stream(self._watch(requests, metadata=metadata), self.target)
        except ValueError as error:
            raise _lost(self.target, error) from error

    def close(self) -> None:
        """End every request that is under way."""
        self._channel.close()


class Connection:
    """One HTTP/2 connection to an endpoint: as long as it lasts, there is one process behind it.

    gRPC makes a new one in silence. What tells is a stream that lasts as long: with no thread, and
    nothing said. Where it tells nothing (a proxy's), the connection is taken for one that lasts.
    """

    def __init__(self, lasting: Any) -> None:
        self._lasting = lasting
        self.tells = True

    @property
    def over(self) -> bool:
        """Whether it certainly is no more."""
        ended = self.tells and not self._lasting.is_active()
        return ended and self._lasting.code() is grpc.StatusCode.UNAVAILABLE


class Stream:
    """Responses of one watch."""

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self.target = target

    def receive(self) -> Message:
        """The next response, waited for without a limit of its own. Raises `Failure`."""
        try:
            return next(self._call)
        except StopIteration as error:
            raise _lost(self.target, "it ended the watch") from error
        except grpc.RpcError as error:
            raise failure_of(error, self.target) from error

    def cancel(self) -> None:
        """Let `receive` fail, from any thread."""
        self._call.cancel()


def failure_of(error: grpc.RpcError, target: str) -> Failure:
    """What an error means, by its text and its code."""
    code, text = error.code(), error.details() or ""
    return failure(text, f"etcd at {target}: {text or code.name}", _CODES.get(code))


def failure(text: str, message: str, otherwise: _Verdict | None = None) -> Failure:
    """The failure that etcd's own text names; `otherwise` where it names none we know."""
    lower = text.lower()
    found = next((verdict for part, verdict in _TEXTS.items() if part in lower), otherwise)
    verdict = found or _Verdict(Unavailable)
    return Failure(
        verdict.error(message),
        untouched=verdict.untouched,
        again=verdict.again,
        stale_token=verdict.stale_token,
    )


def cancelled(reason: str, target: str) -> Failure:
    """A watch that the server cancelled; without a reason it may be opened again.

    etcd 3.4 says "permission denied" also for a token it does not know any more.
    """
    message = f"etcd at {target} cancelled the watch: {reason or 'no reason given'}"
    if "permission denied" in reason:
        return Failure(Unauthorized(message), untouched=True, again=False, stale_token=True)
    return failure(reason, message, _BROKEN)


def means_no_authentication(problem: Failure) -> bool:
    """Whether Authenticate failed because the cluster has it turned off."""
    return _NO_AUTHENTICATION in str(problem)


def _lost(target: str, reason: object) -> Failure:
    return Failure(Unavailable(f"etcd at {target}: {reason}"), untouched=False, again=True)


def _options(timing: Timing) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.keepalive_time_ms", int(timing.keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", int(timing.keepalive_answer * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", int(timing.attempt * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),  # the datastore is never behind a runtime's web proxy
    ]
