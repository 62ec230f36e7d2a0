"""BGP sessions' passwords: read from Secrets of the Kubernetes API, again and again.

Each Secret is asked for by its name, so that the agent's account need not see any other. What was
read holds while the API is silent or refuses: a session is not closed for that. A Secret, or a key
of it, that is not there is an answer, too.

Never: a password in a log line, an event's text, or an error.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from felix_shim.complaint import Complaint
from felix_shim.events import BgpTold, Event
from felix_shim.jsonlog import Log
from libtortie.errors import NotFound, TortieError, first_line
from libtortie.kube.objects import Api, KubeObject
from libtortie.kube.port import KubeReader

SecretKey = tuple[str, str]
POLL_SECONDS = 5.0


class Secret(KubeObject):
    """A Secret; the values are base64."""

    api: ClassVar[Api] = Api("", "v1", "secrets", "Secret", True)
    data: dict[str, str] = Field(default_factory=dict, repr=False)


def password_in(secret: Secret, key: str) -> str | None:
    """The text under a key, less the line end that editors leave; None: there is none."""
    try:
        return base64.b64decode(secret.data[key], validate=True).decode().rstrip("\r\n")
    except (KeyError, binascii.Error, UnicodeDecodeError):
        return None


@dataclass(slots=True)
class PasswordSource:
    """Asks for the Secrets that are wanted, and posts what is in them when it is something new."""

    kube: KubeReader
    namespace: str
    post: Callable[[Event], None]
    log: Log
    _wanted: frozenset[SecretKey] = frozenset()
    _known: Mapping[SecretKey, str | None] = field(default_factory=dict, repr=False)
    _fresh: bool = False
    _stopped: bool = False
    _complaint: Complaint = field(init=False)
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "bgp_password_unreadable")

    def want(self, keys: frozenset[SecretKey]) -> None:
        """From now on these matter; ask at once for one that is new."""
        with self._condition:
            self._fresh |= not keys <= self._wanted
            self._wanted = keys
            if self._fresh:
                self._condition.notify()

    def stop(self) -> None:
        """End `run` soon."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def run(self) -> None:
        """The thread's body."""
        while True:
            with self._condition:
                if not self._fresh and not self._stopped:
                    self._condition.wait(POLL_SECONDS if self._wanted else None)
                if self._stopped:
                    return
                wanted, self._fresh = self._wanted, False
            self.look(wanted)

    def look(self, wanted: frozenset[SecretKey]) -> None:
        """One look at each Secret; what cannot be asked for stays as it was."""
        found = {key: self._known[key] for key in wanted if key in self._known}
        trouble = ""
        for name in sorted({name for name, _ in wanted}):
            try:
                secret = self.kube.get(Secret, name, self.namespace)
            except NotFound:
                secret = Secret()
            except TortieError as error:
                trouble = trouble or f"Secret {self.namespace}/{name}: {first_line(error)}"
                continue
            for key in (one for one in wanted if one[0] == name):
                found[key] = password_in(secret, key[1])
        self._complaint.about(trouble)
        if found != self._known:
            self._known = found
            self.post(BgpTold(passwords=found))
