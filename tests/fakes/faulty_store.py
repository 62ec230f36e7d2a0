"""Datastores that fail: wrappers over a real one, for the code that must survive them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from libtortie.datastore.forwarding import ForwardingDatastore
from libtortie.datastore.operations import payload_of, require_distinct
from libtortie.datastore.port import (
    Check,
    Create,
    Datastore,
    Delete,
    Op,
    Record,
    Unchanged,
    Update,
)
from libtortie.datastore.stamps import Stamps
from libtortie.errors import AlreadyExists, Conflict, NotFound, PartialCommit, Unavailable


class Killed(BaseException):
    """The process ended here (kill -9): nothing above may clean up after it."""


class Fault(Enum):
    """What happens to one commit."""

    NONE = auto()
    CONFLICT = auto()
    UNAVAILABLE_BEFORE = auto()
    UNAVAILABLE_AFTER = auto()
    KILLED_BEFORE = auto()
    KILLED_AFTER = auto()


@dataclass
class FaultyStore(ForwardingDatastore):
    """Fails commits by a script; what comes after its end succeeds.

    `before_commit` runs before each commit, e.g. to let another client go first. It is not
    entered again while it runs.
    """

    script: Iterable[Fault] = ()
    before_commit: Callable[[Sequence[Op]], None] = lambda ops: None
    commits: list[tuple[Op, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._script = iter(self.script)
        self._inside = False

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        self.commits.append(tuple(ops))
        if not self._inside:
            self._inside = True
            try:
                self.before_commit(ops)
            finally:
                self._inside = False
        fault = next(self._script, Fault.NONE)
        if fault is Fault.CONFLICT:
            raise Conflict("injected")
        if fault is Fault.UNAVAILABLE_BEFORE:
            raise Unavailable("injected before the commit")
        if fault is Fault.KILLED_BEFORE:
            raise Killed
        done = self.inner.commit(ops)
        if fault is Fault.UNAVAILABLE_AFTER:
            raise Unavailable("injected after the commit")
        if fault is Fault.KILLED_AFTER:
            raise Killed
        return done


class StepwiseStore(FaultyStore):
    """A store without transactions: a commit's writes happen one after another, after its checks.

    `between` runs after each operation that wrote something, with the number done; it may let
    others in or raise `Killed`.
    """

    between: Callable[[int], None] = staticmethod(lambda done: None)

    @property
    def atomic(self) -> bool:
        return False

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        return FaultyStore(_Steps(self.inner, self.between), [self._next()]).commit(ops)

    def _next(self) -> Fault:
        return next(self._script, Fault.NONE)


class _Steps(FaultyStore):
    def __init__(self, inner: Datastore, between: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._between = between

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        require_distinct(ops)
        for op in ops:
            payload_of(op, Stamps())  # what cannot be stored is refused before anything is
        self.inner.commit([op for op in ops if isinstance(op, Check | Unchanged)])
        records: list[Record | None] = []
        written = 0
        for number, op in enumerate(ops):
            try:
                records.append(self._step(op))
            except (Conflict, NotFound, AlreadyExists) as error:
                if written == 0:
                    raise Conflict(str(error)) from error
                raise PartialCommit(number, str(error)) from error
            if not isinstance(op, Check | Unchanged):
                written += 1
                self._between(written)
        return tuple(records)

    def _step(self, op: Op) -> Record | None:
        match op:
            case Create(key, value):
                return self.inner.create(key, value)
            case Update(key, value, revision):
                return self.inner.update(key, value, revision)
            case Delete(key, revision):
                self.inner.delete(key, revision)
            case Check() | Unchanged():
                pass  # held before anything was written
        return None
