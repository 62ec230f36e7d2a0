"""Every step that the CNI plugin takes outside of itself, counted; any can fail or be the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from libtortie.datastore.forwarding import ForwardingDatastore
from libtortie.datastore.port import Listing, Op, Record, Snapshot, Value
from libtortie.errors import TortieError, Unavailable
from libtortie.model.keys import Key, Scope
from tests.fakes.faulty_store import Killed
from tests.fakes.kube import FakeKube

__all__ = ["CountedKube", "CountedStore", "Faults", "Killed", "Step"]

Step = Callable[[str], None]
"""Called with a step's name before it is taken; raises what it comes to instead."""


@dataclass
class Faults:
    """Fails the steps whose numbers (from 1) are in `at`; with `kill` it fails all from there."""

    at: frozenset[int] = frozenset()
    kill: bool = False
    steps: int = 0
    seen: list[str] = field(default_factory=list)
    dead: bool = False

    def step(self, name: str, error: Callable[[str], TortieError] = Unavailable) -> None:
        self.steps += 1
        self.seen.append(name)
        if self.dead:
            raise Killed(name)
        if self.steps in self.at:
            if self.kill:
                self.dead = True
                raise Killed(name)
            raise error(f"injected at step {self.steps}: {name}")


@dataclass
class CountedStore(ForwardingDatastore):
    """A datastore whose every call is a step."""

    step: Step

    def get(self, key: Key) -> Record:
        self.step(f"get {type(key).__name__}")
        return self.inner.get(key)

    def list(self, scope: Scope) -> Listing:
        self.step(f"list {type(scope).__name__}")
        return self.inner.list(scope)

    def parts(self, scope: Scope) -> Iterator[Listing]:
        self.step(f"parts {type(scope).__name__}")
        return self.inner.parts(scope)

    def names(self, scope: Scope) -> tuple[Key, ...]:
        self.step(f"names {type(scope).__name__}")
        return self.inner.names(scope)

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        self.step("snapshot")
        return self.inner.snapshot(keys, scopes)

    def create(self, key: Key, value: Value) -> Record:
        self.step(f"create {type(key).__name__}")
        return self.inner.create(key, value)

    def update(self, key: Key, value: Value, revision: str) -> Record:
        self.step(f"update {type(key).__name__}")
        return self.inner.update(key, value, revision)

    def delete(self, key: Key, revision: str | None = None) -> None:
        self.step(f"delete {type(key).__name__}")
        self.inner.delete(key, revision)

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        self.step("commit")
        return self.inner.commit(ops)


class CountedKube:
    """The reading half of the API, each call a step."""

    def __init__(self, inner: FakeKube, step: Step) -> None:
        self._inner = inner
        self._step = step

    def get(self, model: Any, name: str, namespace: str = "") -> Any:
        self._step(f"api get {model.__name__}")
        return self._inner.get(model, name, namespace)

    def list(self, model: Any, namespace: str = "", **selectors: str) -> Any:
        self._step(f"api list {model.__name__}")
        return self._inner.list(model, namespace, **selectors)

    def pages(self, model: Any, namespace: str = "", **options: Any) -> Any:
        self._step(f"api pages {model.__name__}")
        return self._inner.pages(model, namespace, **options)
