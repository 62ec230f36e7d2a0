"""The server's side of TLS, from files that are replaced while it runs.

Before each connection the files' stamps are looked at, and changed ones are loaded anew. What
cannot be loaded (a key that does not match yet) is told, and the last good pair serves on.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable

from libtortie.errors import InvalidInput
from libtortie.files import Stamp, stamp
from libtortie.serving_access import Place


class ServerFiles:
    """`complain` is told why new files are not taken."""

    def __init__(self, place: Place, complain: Callable[[str], None]) -> None:
        self._place, self._complain = place, complain
        self._lock = threading.Lock()
        self._stamps: tuple[Stamp | None, ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """What the next connection takes. Raises `InvalidInput` when nothing was ever loaded."""
        place = self._place
        files = (place.cert_file, place.key_file, place.client_ca_file)
        with self._lock:
            stamps = tuple(map(stamp, filter(None, files)))
            if self._context is None or stamps != self._stamps:
                try:
                    self._context, self._stamps = _loaded(place), stamps
                except InvalidInput as error:
                    if self._context is None:
                        raise
                    self._complain(str(error))
            return self._context


def _loaded(place: Place) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session is resumed: each client proves itself (1.2 could, by id)
    try:
        context.load_cert_chain(place.cert_file, place.key_file, password=b"")  # ask no terminal
    except (OSError, ssl.SSLError) as error:
        files = f"certificate {place.cert_file} and key {place.key_file}"
        raise InvalidInput(f"{files}: {reason(error)}") from error
    if place.client_ca_file:
        context.verify_mode = ssl.CERT_OPTIONAL  # who has none may have a token, or only a probe
        try:
            context.load_verify_locations(place.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(f"client CA {place.client_ca_file}: {reason(error)}") from error
    return context


def reason(error: OSError) -> str:
    """Why a file of TLS cannot be used."""
    if isinstance(error, ssl.SSLError):
        said = getattr(error, "reason", None)  # which of Python's own have not
        return (said or "nothing usable in it").replace("_", " ").lower()
    return error.strerror or str(error)
