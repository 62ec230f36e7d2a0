"""Who is asking: bearer tokens, client certificates, impersonation. What they may do: `rbac`."""

from __future__ import annotations

import csv
import hmac
import io
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.apiserver.errors import Attributes, bad_request, unauthorized

ANONYMOUS = "system:anonymous"
AUTHENTICATED = "system:authenticated"
SERVICE_ACCOUNT = "system:serviceaccount:"
_ACCOUNTS = "system:serviceaccounts"


@dataclass(frozen=True, slots=True)
class User:
    """A proved identity."""

    name: str
    groups: tuple[str, ...] = ()

    def authenticated(self) -> User:
        """This user in the groups everybody is in who has proved who it is."""
        implied = [AUTHENTICATED]
        if self.name.startswith(SERVICE_ACCOUNT):
            namespace = self.name.removeprefix(SERVICE_ACCOUNT).partition(":")[0]
            implied = [_ACCOUNTS, f"{_ACCOUNTS}:{namespace}", AUTHENTICATED]
        return User(self.name, tuple(dict.fromkeys((*self.groups, *implied))))


class Tokens:
    """Bearer tokens and their users; may be replaced while serving.

    A file holds Kubernetes' static token format, one `token,user,uid,"group1,group2"` a line (the
    last two optional), and is read again when it changes.
    """

    def __init__(self, tokens: Mapping[str, str] | None = None, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._given = {token: User(name) for token, name in (tokens or {}).items()}
        self._path = path
        self._read: dict[str, User] = {}
        self._stamp: tuple[int, int, int] | None = None
        if path is not None:
            self._reread(path)

    @property
    def required(self) -> bool:
        """Whether an anonymous request is refused."""
        return bool(self._given) or self._path is not None

    def replace(self, tokens: Mapping[str, str]) -> None:
        """From now on these tokens count, and none given before."""
        with self._lock:
            self._given = {token: User(name) for token, name in tokens.items()}

    def users(self) -> dict[str, User]:
        """Every token and its user."""
        with self._lock:
            return self._given | self._read

    def user(self, token: str) -> User | None:
        """Whose token it is."""
        with self._lock:
            if self._path is not None:
                self._reread(self._path)
            found = None
            for known, user in (self._given | self._read).items():
                if hmac.compare_digest(known.encode(), token.encode()):
                    found = user
            return found

    def _reread(self, path: Path) -> None:
        status = path.stat()
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if stamp == self._stamp:
            return
        found: dict[str, User] = {}
        for row in csv.reader(io.StringIO(path.read_text())):
            if not row or row[0].startswith("#"):
                continue
            if len(row) < 2 or not row[0].strip() or not row[1].strip():
                raise ValueError(f"{path}: a line is not token,user[,uid[,groups]]")
            groups = tuple(g.strip() for g in row[3].split(",")) if len(row) > 3 else ()
            found[row[0].strip()] = User(row[1].strip(), groups)
        self._read, self._stamp = found, stamp


def authenticate(authorization: str, certificate: Any, tokens: Tokens) -> User:
    """The user of a request. Raises 401.

    A client certificate the TLS layer has verified counts first (CN is the user, O the groups),
    as in Kubernetes; `certificate` is `ssl.SSLSocket.getpeercert()`.
    """
    if certificate:
        subject = [pair for part in certificate.get("subject", ()) for pair in part]
        names = [value for key, value in subject if key == "commonName"]
        groups = tuple(value for key, value in subject if key == "organizationName")
        if names:
            return User(names[0], groups).authenticated()
    if authorization:
        scheme, _, token = authorization.partition(" ")
        user = tokens.user(token.strip()) if scheme.lower() == "bearer" else None
        if user is None:
            raise unauthorized()
        return user.authenticated()
    if tokens.required:
        raise unauthorized()
    return User(ANONYMOUS, ("system:unauthenticated",))


def impersonation(wanted: str, groups: list[str]) -> tuple[Attributes, ...]:
    """What somebody must be allowed to do who wants to act as this user in these groups."""
    if not wanted:
        return ()
    asked = [Attributes("impersonate", resource="groups", name=group) for group in groups]
    if wanted.startswith(SERVICE_ACCOUNT):
        namespace, _, name = wanted.removeprefix(SERVICE_ACCOUNT).partition(":")
        who = Attributes("impersonate", resource="serviceaccounts", namespace=namespace, name=name)
    else:
        who = Attributes("impersonate", resource="users", name=wanted)
    return (who, *asked)


def impersonated(user: User, wanted: str, groups: list[str]) -> User:
    """The user that `user` acts as (headers Impersonate-User, Impersonate-Group)."""
    if not wanted:
        if groups:
            raise bad_request("requested groups without impersonating a user")
        return user
    found = User(wanted, tuple(groups))
    return found if wanted == ANONYMOUS else found.authenticated()
