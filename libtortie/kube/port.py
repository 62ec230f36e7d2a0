"""The Kubernetes port: what callers may ask of an API server, and which errors they see.

Every call has a deadline. HTTP 404 → `NotFound` (`NotServed` when it is the kind that is missing),
409 → `Conflict` (on create `AlreadyExists`), 401/403 → `Unauthorized` naming verb and resource,
410 → `Compacted`, 422 → `InvalidInput`, time-outs, refused connections and 5xx/429 →
`Unavailable`; of these, the ones that say "less load, please" (429, 503, 504, a connection that
was accepted and never answered) → `Overloaded`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from libtortie.errors import NotFound, Unavailable
from libtortie.kube.objects import KubeObject

T = TypeVar("T", bound=KubeObject)


class Overloaded(Unavailable):
    """The server is there but cannot keep up: wait at least `retry_after` seconds, and longer."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotServed(NotFound):
    """The server does not know the resource itself (a CRD that is not installed), whatever the
    object asked for."""


class PatchType(StrEnum):
    """Content types of PATCH."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    """A watched object was added or modified (or is in the initial list)."""

    object: T


@dataclass(frozen=True, slots=True)
class Gone(Generic[T]):
    """A watched object was deleted; `object` is its last known state."""

    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing else happened up to `resource_version`: where a later watch may resume."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Synced:
    """Every object of the list that began this watch has been delivered.

    Objects known before and not delivered since the stream (re)started are gone.
    """


def at_once() -> None:
    """What is asked before a request that need not wait."""


class KubeReader(Protocol):
    """Read access, typed by the object's class."""

    def get(self, model: type[T], name: str, namespace: str = "") -> T:
        """One object. Raises `NotFound`."""
        ...

    def list(
        self,
        model: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[tuple[T, ...], str]:
        """Objects and the list's resourceVersion; an empty namespace means all."""
        ...

    def pages(
        self, model: type[T], namespace: str = "", *, before: Callable[[], None] = at_once
    ) -> Iterator[tuple[tuple[T, ...], str]]:
        """As `list`, a page at a time, for what is too much to have at once; `before` each request
        its caller is asked whether it may be made yet.

        Raises `Compacted` when the state that the first page is of is gone: begin anew.
        """
        ...


class KubeClient(KubeReader, Protocol):
    """Read, watch and patch."""

    def patch(
        self,
        model: type[T],
        name: str,
        namespace: str,
        body: Mapping[str, Any] | list[Any],
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
    ) -> T:
        """Patch an object (or its subresource) and return the result."""
        ...

    def watch(
        self,
        model: type[T],
        namespace: str = "",
        *,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        stop: threading.Event | None = None,
    ) -> Iterator[Applied[T] | Gone[T] | Bookmark]:
        """Events after `resource_version`. Ends quietly when the server closes the stream, or
        soon after another thread sets `stop`; raises `Compacted` on 410 and `Unavailable` when
        the connection breaks."""
        ...
