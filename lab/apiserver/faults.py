"""Faults on purpose: what tests and demos make the server do wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delay:
    """Answer correctly, `seconds` later (a stopping server does not wait)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer with an error Status."""

    code: int
    reason: str = ""
    message: str = "injected fault"
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Drip:
    """Answer correctly, one byte every `interval` seconds."""

    interval: float


Action = Delay | Reject | CloseConnection | Drip


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """An action for requests that match; empty means any. `resource` is like `pods/status`."""

    action: Action
    user: str = ""
    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""

    def matches(self, user: str, verb: str, resource: str, namespace: str, name: str) -> bool:
        """Whether a request is hit."""
        wanted = (self.user, self.verb, self.resource, self.namespace, self.name)
        actual = (user, verb, resource, namespace, name)
        return all(w in ("", a) for w, a in zip(wanted, actual, strict=True))


class Faults:
    """The faults in force. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[Fault, int | None] = {}

    def add(self, fault: Fault, times: int | None = None) -> Callable[[], None]:
        """Put a fault in force, for so many requests or until removed; returns its removal."""
        with self._lock:
            self._faults[fault] = times

        def remove() -> None:
            with self._lock:
                self._faults.pop(fault, None)

        return remove

    def clear(self) -> None:
        """No faults any more."""
        with self._lock:
            self._faults.clear()

    def hit(
        self, user: str, verb: str, resource: str, namespace: str, name: str
    ) -> tuple[Action, ...]:
        """The actions a request suffers, oldest fault first; counts them."""
        found: list[Action] = []
        with self._lock:
            for fault, left in list(self._faults.items()):
                if not fault.matches(user, verb, resource, namespace, name):
                    continue
                found.append(fault.action)
                if left is not None:
                    if left <= 1:
                        del self._faults[fault]
                    else:
                        self._faults[fault] = left - 1
        return tuple(found)
