"""A client of the CRI (`runtime.v1`): what a kubelet asks a runtime about a pod's sandbox.

Five calls with a handful of fields: their protobuf is written and read by hand, so that the suite
needs no generated code. Never for the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

PATIENCE = 200.0
"""Seconds; a kubelet gives a sandbox 240."""
_SERVICE = "/runtime.v1.RuntimeService/"
_TEXT = 2
"""The wire type of strings and messages."""


class CriError(Exception):
    """What the runtime said instead."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod's sandbox as the kubelet asks for it."""

    name: str
    uid: str
    namespace: str = "default"
    attempt: int = 0

    def encoded(self) -> bytes:
        """A PodSandboxConfig."""
        metadata = _text(1, self.name) + _text(2, self.uid) + _text(3, self.namespace)
        metadata += _number(4, self.attempt)
        return _bytes(1, metadata) + _text(2, self.name) + _bytes(8, b"")


class Cri:
    """A runtime's socket."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def is_ready(self) -> bool:
        """Whether the runtime says that its network is ready."""
        (status,) = _fields(self._call("Status", b""), 1)
        conditions = {next(_fields(one, 1)): b"\x10\x01" in one for one in _fields(status, 1)}
        return conditions.get(b"NetworkReady", False)

    def run(self, sandbox: Sandbox) -> str:
        """RunPodSandbox; the sandbox's id. Raises `CriError`."""
        (found,) = _fields(self._call("RunPodSandbox", _bytes(1, sandbox.encoded())), 1)
        return found.decode()

    def address(self, sandbox_id: str) -> str:
        """The sandbox's first address, as the kubelet puts it into the pod's status."""
        (status,) = _fields(self._call("PodSandboxStatus", _text(1, sandbox_id)), 1)
        network = next(_fields(status, 5), b"")
        return next(_fields(network, 1), b"").decode()

    def stop(self, sandbox_id: str) -> None:
        """StopPodSandbox. Raises `CriError`."""
        self._call("StopPodSandbox", _text(1, sandbox_id))

    def remove(self, sandbox_id: str) -> None:
        """RemovePodSandbox. Raises `CriError`."""
        self._call("RemovePodSandbox", _text(1, sandbox_id))

    def _call(self, method: str, request: bytes) -> bytes:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            _SERVICE + method, request_serializer=None, response_deserializer=None
        )
        try:
            return bytes(call(request, timeout=PATIENCE))
        except grpc.RpcError as error:
            raise CriError(f"{method}: {error}") from error


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _TEXT) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """The strings or messages of a field."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if tag & 7 == _TEXT:
            if tag >> 3 == wanted:
                yield message[at : at + value]
            at += value


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
