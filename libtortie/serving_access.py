"""Who may read what a program serves by HTTP: everybody on loopback, elsewhere who can prove it.

The proof is a bearer token (also taken as the password of a browser's log-in) or a client
certificate; where both are set up, either will do. Where nothing proves anything, only loopback is
served, and only to who names it by address: another site's page cannot ask in a browser's name.
A token file that cannot be read lets nobody in. Decides; opens no socket.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from libtortie.errors import InvalidInput
from libtortie.files import read_text

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is served, and to whom.

    `host` empty means loopback; `0.0.0.0` and `::` all addresses. `token_file` has one token a
    line, each of which is good. `cert_file` and `key_file` (PEM) make it HTTPS; a client whose
    certificate is of `client_ca_file` needs no token.
    """

    port: int
    host: str = ""
    token_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""

    @property
    def address(self) -> str:
        """What to listen on."""
        return self.host or LOOPBACK

    @property
    def guarded(self) -> bool:
        """Whether who asks has to prove who he is."""
        return bool(self.token_file or self.client_ca_file)

    def check(self, prefix: str = "") -> None:
        """Raises `InvalidInput` for what must not or cannot be served.

        `prefix` is what stands before the fields' names where they are configured: `metrics_`, or
        `--metrics-`.
        """

        def name(field: str) -> str:
            return f"{prefix}{field.replace('_', '-') if prefix.startswith('-') else field}"

        if bool(self.cert_file) != bool(self.key_file):
            raise InvalidInput(f"{name('cert_file')} and {name('key_file')} go together")
        if self.client_ca_file and not self.cert_file:
            raise InvalidInput(f"{name('client_ca_file')} needs {name('cert_file')}")
        if not self.guarded and not is_loopback(self.address):
            raise InvalidInput(
                f"{name('host')} {self.host}: whoever reaches it could read it: give "
                f"{name('token_file')} or {name('client_ca_file')}, or listen on {LOOPBACK}"
            )


def is_loopback(host: str) -> bool:
    """Whether a host, as it is written, is this machine and nobody else's."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tokens_in(path: str) -> tuple[bytes, ...]:
    """The tokens of a file. Raises `InvalidInput` naming it when there is none."""
    try:
        found = read_text(path).encode().split()
    except OSError as error:
        raise InvalidInput(f"token file {path}: {error.strerror or error}") from error
    if not found:
        raise InvalidInput(f"token file {path}: no token in it")
    return tuple(found)


def proves(authorization: str, tokens: Sequence[bytes]) -> bool:
    """Whether an Authorization header has one of the tokens. Each is compared in constant time."""
    given = _token_of(authorization)
    right = [hmac.compare_digest(given, token) for token in tokens]
    return bool(given) and any(right)


def _token_of(authorization: str) -> bytes:
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode("latin-1", "replace")  # as HTTP's own parser has made it text
    if scheme.lower() != "basic":
        return b""
    try:
        return b64decode(rest.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def names_by_address(host: str) -> bool:
    """Whether a Host header is an address or `localhost`: no name of a stranger's DNS is."""
    name = host.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name in ("", "localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
