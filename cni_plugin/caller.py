"""Does the one who asked still wait for the answer?

A runtime that gives an ADD up kills the executable and sends a DEL. The agent may not have begun
by then: it waited for the API, or for its turn. Such an ADD comes after its DEL, and what it made
nobody would ever take down. So ADD asks once it has the attachment's lock, which DEL takes, too.

A call belongs to its thread. Where nobody said otherwise (a process of its own, a test), the caller
is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from libtortie.errors import Unavailable


def _always() -> bool:
    return True


_waits: ContextVar[Callable[[], bool]] = ContextVar("caller", default=_always)


@contextmanager
def asked_by(waits: Callable[[], bool]) -> Iterator[None]:
    """Calls of this thread are made by someone of whom `waits` tells whether he waits still."""
    token = _waits.set(waits)
    try:
        yield
    finally:
        _waits.reset(token)


def require_caller() -> None:
    """Raises `Unavailable` if nobody waits for this call any more."""
    if not _waits.get()():
        raise Unavailable("the caller has gone: its DEL may have been before this")
