"""The two ends of a measured path: who sends incompressible bytes, and who takes and counts them.

Each verb says JSON lines. `receive` says `ready`, and once each stream has come to its end, how
many bytes came and when the last one ended; `send` says when it began. `check` adds what each
stream's bytes hash to. `echo` gives back what each caller says, for ever; `call` makes so many
calls. Moments are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

BLOCK_BYTES = 1 << 20
WORD = b"a short session"


def receive(path: str, streams: int, *, check: bool) -> None:
    """Take so many streams to their ends."""
    accepted: list[socket.socket] = []
    counts, sums = [0] * streams, [""] * streams
    with _listening(path, streams) as listener:
        accepted += [listener.accept()[0] for _ in range(streams)]

    def take(number: int) -> None:
        buffer = bytearray(BLOCK_BYTES)
        view, found = memoryview(buffer), hashlib.sha256()
        with accepted[number] as sock:
            while count := sock.recv_into(buffer):
                counts[number] += count
                if check:
                    found.update(view[:count])
        sums[number] = found.hexdigest()

    _each(streams, take)
    _say(bytes=sum(counts), at=time.monotonic(), sums=sorted(sums))


def send(path: str, streams: int, size: int, *, check: bool) -> None:
    """Open so many streams, share so many bytes among them, and wait for the ends."""
    block = memoryview(os.urandom(BLOCK_BYTES))
    began = time.monotonic()
    sums = [""] * streams

    def give(number: int) -> None:
        left = size // streams
        found = hashlib.sha256(b"")
        with _connected(path) as sock:
            while left:
                part = block[: min(left, BLOCK_BYTES)]
                sock.sendall(part)
                left -= len(part)
                if check:
                    found.update(part)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1)
        sums[number] = found.hexdigest()

    _each(streams, give)
    _say(at=began, sums=sorted(sums))


def echo(path: str) -> None:
    """Give back to each caller what it says."""
    with _listening(path, 256) as listener:
        while True:
            accepted, _ = listener.accept()
            threading.Thread(target=_give_back, args=(accepted,), daemon=True).start()


def call(path: str, calls: int, callers: int) -> None:
    """Make so many calls, some at a time; how many were answered well."""
    numbers, good = iter(range(calls)), [0] * callers

    def caller(number: int) -> None:
        for _ in numbers:  # `next` of a range is one step: no two callers have the same
            with _connected(path) as sock:
                sock.sendall(WORD)
                sock.shutdown(socket.SHUT_WR)
                said = b""
                while part := sock.recv(100):
                    said += part
                good[number] += said == WORD

    _each(callers, caller)
    _say(good=sum(good))


def _give_back(accepted: socket.socket) -> None:
    with accepted:
        while part := accepted.recv(1000):
            accepted.sendall(part)


def _listening(path: str, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    Path(path).unlink(missing_ok=True)
    listener.bind(path)
    listener.listen(backlog)
    _say(ready=True)
    return listener


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return sock


def _each(count: int, body: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(verb: str, path: str, *numbers: str) -> None:
    """Run one end."""
    check = "check" in numbers
    given = [int(each) for each in numbers if each != "check"]
    if verb == "receive":
        receive(path, *given, check=check)
    elif verb == "send":
        send(path, *given, check=check)
    elif verb == "echo":
        echo(path)
    else:
        call(path, *given)


if __name__ == "__main__":
    main(*sys.argv[1:])
