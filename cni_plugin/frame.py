"""The bytes between the executable (`shim.py`) and the agent: one request, one answer.

    request : "TTR1" | u32 body length | u32 environment length | environment | stdin
    answer  : "TTA1" | u32 exit status | u32 stdout length | stdout

Integers are big-endian. The environment is `NAME=VALUE` items joined by NUL. The digit in the
magic is the version: a peer that speaks another one is refused, never guessed at. What must be
understood during an upgrade of a node is for ever: the first eight bytes of a request, and the
answer, which is given in the version that was asked in. Whatever else a request may have to say is
an item of the environment: one that is not known is passed over. Every length is bounded before
anything is allocated. `shim.py` carries its own copy of this layout, because
its imports are rationed; a test holds both equal.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from libtortie.errors import Malformed, Unavailable

REQUEST_MAGIC = b"TTR1"
ANSWER_MAGIC = b"TTA1"
VERSION = REQUEST_MAGIC[3:]
MAX_BODY = 4 << 20
"""Bytes of environment and stdin together; a kubelet sends about 2 KiB."""
RETRY_CODE = 11
"""The CNI specification's "try again later"."""


class OtherVersion(Malformed):
    """A request of an executable that is older or newer than we are; `answer` is for it."""

    def __init__(self, version: bytes) -> None:
        theirs, ours = version.decode(), VERSION.decode()
        super().__init__(
            f"the executable speaks version {theirs} of the frame and the agent version {ours}: "
            "this node is being upgraded, or half of it was; try again when both are of one release"
        )
        error = {"cniVersion": "1.0.0", "code": RETRY_CODE, "msg": str(self)}
        body = json.dumps(error).encode() + b"\n"
        self.answer = ANSWER_MAGIC[:3] + version + encode_response(1, body)[4:]


@dataclass(frozen=True, slots=True)
class Request:
    """What a runtime gave the executable: its `CNI_*` variables and standard input.

    Bytes that are not UTF-8 are lone surrogates, as in `os.environ`: `skel` names the variable.
    """

    env: Mapping[str, str]
    stdin: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """What the executable shall do: print `stdout` and exit with status `code` (0 or 1)."""

    code: int
    stdout: bytes


def encode_request(env: Mapping[str, str], stdin: bytes) -> bytes:
    """The request frame. ValueError when it would exceed `MAX_BODY`."""
    block = b"\0".join(
        f"{name}={value}".encode(errors="surrogateescape") for name, value in env.items()
    )
    body = len(block).to_bytes(4, "big") + block + stdin
    if len(body) > MAX_BODY:
        raise ValueError(f"request of {len(body)} bytes exceeds {MAX_BODY}")
    return REQUEST_MAGIC + len(body).to_bytes(4, "big") + body


def encode_response(code: int, stdout: bytes) -> bytes:
    """The answer frame."""
    return ANSWER_MAGIC + code.to_bytes(4, "big") + len(stdout).to_bytes(4, "big") + stdout


def decode_request(body: bytes) -> Request:
    """A request from its body. Raises `Malformed` naming what is wrong."""
    if len(body) < 4:
        raise Malformed(f"request body of {len(body)} bytes has no environment length")
    size = int.from_bytes(body[:4], "big")
    if size > len(body) - 4:
        raise Malformed(f"environment of {size} bytes in a body of {len(body)}")
    env: dict[str, str] = {}
    for item in filter(None, body[4 : 4 + size].split(b"\0")):
        name, separator, value = item.decode(errors="surrogateescape").partition("=")
        if not name or not separator:
            raise Malformed(f"environment item {item[:40]!r} is not NAME=VALUE")
        env[name] = value
    return Request(env, bytes(body[4 + size :]))


def read_request(sock: socket.socket) -> Request:
    """One request from a connected socket. Raises `Malformed`, or `Unavailable` when it ends early.

    One of another version is `OtherVersion`, read to its end so that its sender reads the answer.
    The caller sets the socket's timeout; running into it is `Unavailable` too.
    """
    header = _receive(sock, 8)
    if header[:3] == REQUEST_MAGIC[:3] and header[3:4].isdigit() and header[3:4] != VERSION:
        with contextlib.suppress(Unavailable):
            _receive(sock, min(int.from_bytes(header[4:], "big"), MAX_BODY))
        raise OtherVersion(header[3:4])
    if header[:4] != REQUEST_MAGIC:
        raise Malformed(f"request begins with {header[:4]!r}, not {REQUEST_MAGIC!r}")
    size = int.from_bytes(header[4:], "big")
    if size > MAX_BODY:
        raise Malformed(f"request of {size} bytes exceeds {MAX_BODY}")
    return decode_request(_receive(sock, size))


def read_response(sock: socket.socket) -> Response:
    """One answer from a connected socket. Raises as `read_request` does."""
    header = _receive(sock, 12)
    if header[:4] != ANSWER_MAGIC:
        raise Malformed(f"answer begins with {header[:4]!r}, not {ANSWER_MAGIC!r}")
    size = int.from_bytes(header[8:], "big")
    if size > MAX_BODY:
        raise Malformed(f"answer of {size} bytes exceeds {MAX_BODY}")
    return Response(int.from_bytes(header[4:8], "big"), _receive(sock, size))


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            chunk = sock.recv(min(size - len(data), 1 << 16))
        except OSError as error:
            raise Unavailable(f"reading a frame: {error}") from error
        if not chunk:
            raise Unavailable(f"the peer closed after {len(data)} of {size} bytes")
        data += chunk
    return bytes(data)
