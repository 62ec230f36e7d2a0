"""The server's side of TLS, from files that are replaced while it runs.

Before each connection the files' stamps are looked at, and changed ones are loaded anew. What
cannot be loaded (a key that does not match yet) is told, and the last good pair serves on.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable

from libtortie.errors import InvalidInput
from libtortie.serving_access import Place

Stamp = tuple[int, int, int]


class ServerFiles:
    """`complain` is told why new files are not taken."""

    def __init__(self, place: Place, complain: Callable[[str], None]) -> None:
        self._place, self._complain = place, complain
        self._lock = threading.Lock()
        self._stamps: tuple[Stamp, ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """What the next connection takes. Raises `InvalidInput` when nothing was ever loaded."""
        place = self._place
        files = (place.cert_file, place.key_file, place.client_ca_file)
        with self._lock:
            stamps = tuple(map(_stamp, filter(None, files)))
            if self._context is None or stamps != self._stamps:
                self._load()
                self._stamps = stamps
            if self._context is None:
                raise InvalidInput(f"certificate {place.cert_file}: not loaded")
            return self._context

    def _load(self) -> None:
        try:
            self._context = _loaded(self._place)
        except InvalidInput as error:
            if self._context is None:
                raise
            self._complain(str(error))


def _loaded(place: Place) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # a session is never resumed: each one is proved
    try:
        context.load_cert_chain(place.cert_file, place.key_file, password=b"")  # ask no terminal
    except (OSError, ssl.SSLError) as error:
        files = f"certificate {place.cert_file} and key {place.key_file}"
        raise InvalidInput(f"{files}: {_reason(error)}") from error
    if place.client_ca_file:
        context.verify_mode = ssl.CERT_OPTIONAL  # who has none may have a token, or only a probe
        try:
            context.load_verify_locations(place.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(f"client CA {place.client_ca_file}: {_reason(error)}") from error
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "nothing usable in it").replace("_", " ").lower()
    return error.strerror or str(error)


def _stamp(path: str) -> Stamp:
    """What changes when a file is replaced; zeros while there is none."""
    try:
        state = os.stat(path)  # noqa: PTH116 - one call of many fields
    except OSError:
        return (0, 0, 0)
    return state.st_mtime_ns, state.st_ino, state.st_size
