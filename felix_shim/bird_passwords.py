"""BGP sessions' passwords: read from Secrets of the Kubernetes API, again and again.

Each Secret is asked for by its name, so that the agent's account need not see any other. What was
read holds while the API is silent or refuses: a session is not closed for that. A Secret, or a key
of it, that is not there is an answer, too; so is a refusal that lasts for what was never read, for
as long as an answer is awaited BIRD stays as it is, with all of its other sessions.

Never: a password in a log line, an event's text, or an error.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from felix_shim.events import BgpTold, Event
from felix_shim.wanted import Wanted
from libtortie.complaint import Complaint
from libtortie.errors import NotFound, TortieError, Unavailable, first_line
from libtortie.jsonlog import Log
from libtortie.kube.objects import Api, KubeObject
from libtortie.kube.port import KubeReader

SecretKey = tuple[str, str]
POLL_SECONDS = 5.0
REFUSED_SECONDS = 60.0
"""How long an API must refuse before that is its answer: one that starts refuses for a moment."""


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
    monotonic: Callable[[], float] = time.monotonic
    _refused: dict[str, float] = field(default_factory=dict)
    """Since when the API refuses a Secret."""
    _wanted: Wanted[SecretKey] = field(default_factory=lambda: Wanted(_pause))
    _known: Mapping[SecretKey, str | None] = field(default_factory=dict, repr=False)
    _complaint: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "bgp_password_unreadable")

    def want(self, keys: frozenset[SecretKey]) -> None:
        """From now on these matter; ask at once for one that is new."""
        self._wanted.want(keys)

    def stop(self) -> None:
        """End `run` soon."""
        self._wanted.stop()

    def run(self) -> None:
        """The thread's body."""
        for wanted in self._wanted.rounds():
            self.look(wanted)

    def look(self, wanted: frozenset[SecretKey]) -> None:
        """One look at each Secret; what cannot be asked for stays as it was."""
        found: dict[SecretKey, str | None] = {
            key: self._known[key] for key in wanted if key in self._known
        }
        trouble = ""
        names = sorted({name for name, _ in wanted})
        self._refused = {name: at for name, at in self._refused.items() if name in names}
        for name in names:
            try:
                secret = self.kube.get(Secret, name, self.namespace)
            except NotFound:
                secret = Secret()
            except TortieError as error:
                trouble = trouble or f"Secret {self.namespace}/{name}: {first_line(error)}"
                if self._is_answer(name, error):
                    for key in (one for one in wanted if one[0] == name):
                        found.setdefault(key, None)
                continue
            self._refused.pop(name, None)
            for key in (one for one in wanted if one[0] == name):
                found[key] = password_in(secret, key[1])
        self._complaint.about(trouble)
        if found != self._known:
            self._known = found
            self.post(BgpTold(passwords=found))

    def _is_answer(self, name: str, error: TortieError) -> bool:
        """Whether a Secret is refused, and has been for long enough; silence never is an answer."""
        if isinstance(error, Unavailable):
            return False
        now = self.monotonic()
        return now - self._refused.setdefault(name, now) >= REFUSED_SECONDS


def _pause(keys: frozenset[SecretKey]) -> float | None:
    return POLL_SECONDS if keys else None
