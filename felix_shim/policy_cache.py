"""What the Kubernetes API said of policy last, on disk: an agent that is killed while the API is
away goes on as one that was not.

It is of this boot and of this API alone: after a reboot no rules are in the kernel that it would
keep, and a pod begins with the policy of today. Files are replaced by an atomic rename; one that
cannot be read is as good as none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cni_plugin.durable import read_file, replace_file
from felix_shim.kube_entries import PolicyObject
from libtortie.complaint import Complaint
from libtortie.errors import first_line
from libtortie.jsonlog import Log

FORMAT = 1
PAUSE_SECONDS = 0.1
"""Between two savings at least, in which changes gather; much that is saved has longer ones. What
an agent hears for the first time waits for none: killed before, the next one would know nothing."""
RETRY_SECONDS = 5.0
"""Before what could not be saved is tried again: the disk is full, say."""
PAUSE_FACTOR = 10.0
"""How much longer than a saving a pause is."""


@dataclass(slots=True)
class PolicyCache:
    """`put` from any thread, at once; `run` is the thread that saves. `load` any time."""

    directory: Path
    server: str
    boot_id: str
    log: Log
    pause: float = PAUSE_SECONDS
    retry: float = RETRY_SECONDS
    _waiting: dict[type[PolicyObject], tuple[PolicyObject, ...]] = field(default_factory=dict)
    _saved: set[type[PolicyObject]] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _trouble: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._trouble = Complaint(self.log, "policy_not_saved")

    def put(self, kind: type[PolicyObject], objects: Iterable[PolicyObject]) -> None:
        """These are all of a kind."""
        with self._condition:
            self._waiting[kind] = tuple(objects)
            self._condition.notify()

    def load(self, kind: type[PolicyObject]) -> tuple[PolicyObject, ...] | None:
        """What was saved last; None: nothing that counts."""
        try:
            raw = read_file(self._path(kind))
            return None if raw is None else self._decoded(kind, raw)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.log.warning("policy_not_remembered", kind=kind.api.plural, reason=repr(error))
            return None

    def run(self) -> None:
        """The thread's body: saves what is put, until `stop`; what waits then is still saved.

        What cannot be saved waits for the next attempt, unless something newer does.
        """
        while True:
            with self._condition:
                while not self._waiting and not self._stop.is_set():
                    self._condition.wait()
                waiting, self._waiting = self._waiting, {}
                last = self._stop.is_set()
            began = time.monotonic()
            problems = {kind: self._save(kind, one) for kind, one in waiting.items()}
            failed = {kind: waiting[kind] for kind, problem in problems.items() if problem}
            self._trouble.about(next(filter(None, problems.values()), ""))
            if last:
                return
            self._saved |= waiting.keys()
            least = self.retry if failed else self.pause
            pause = max(least, PAUSE_FACTOR * (time.monotonic() - began))
            with self._condition:
                self._condition.wait_for(self._hurried, pause)
                self._waiting = failed | self._waiting

    def stop(self) -> None:
        """Make `run` return soon."""
        with self._condition:
            self._stop.set()
            self._condition.notify()

    def _hurried(self) -> bool:
        return self._stop.is_set() or not self._waiting.keys() <= self._saved

    def _path(self, kind: type[PolicyObject]) -> Path:
        return self.directory / f"{kind.api.plural}.json"

    def _save(self, kind: type[PolicyObject], objects: tuple[PolicyObject, ...]) -> str:
        """Why it failed; empty: it is saved."""
        body = {
            "format": FORMAT,
            "bootID": self.boot_id,
            "server": self.server,
            "objects": [_dumped(one) for one in objects],
        }
        try:
            replace_file(self._path(kind), json.dumps(body).encode() + b"\n", 0o600)
        except OSError as error:
            return f"{self._path(kind)}: {first_line(error)}"
        return ""

    def _decoded(self, kind: type[PolicyObject], raw: bytes) -> tuple[PolicyObject, ...] | None:
        body = json.loads(raw)
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}, not {FORMAT}")
        if (body["bootID"], body["server"]) != (self.boot_id, self.server):
            return None
        try:
            return tuple(kind.model_validate(one) for one in body["objects"])
        except ValidationError as error:
            raise ValueError(first_line(error)) from error


def _dumped(found: PolicyObject) -> dict[str, Any]:
    """What policy is made of in an object."""
    meta = found.metadata
    kept = {"name": meta.name, "namespace": meta.namespace, "labels": meta.labels}
    rest = found.model_dump(mode="json", by_alias=True, exclude={"metadata"})
    return {"metadata": kept, **rest}
