"""TLS settings from files that are replaced while we run.

Before each handshake the files' stamps are looked at; changed ones are loaded anew. What cannot be
loaded (a key that does not match yet, half a rotation) is complained of, and the last good pair
serves on. Running streams keep what they began with.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from libtortie.errors import InvalidInput, TortieError, first_line
from libtortie.files import Stamp, read_text, stamp
from libtortie.serving_tls import reason
from libtortie.validity import not_after
from migration_proxy.config import PairConfig, TlsConfig

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A usable configuration, and until when its certificate is valid."""

    context: ssl.SSLContext
    not_after: datetime


class TlsFiles:
    """One role's context: that of listeners, or that of what the source dials.

    `complain` is told each reason why new files are not taken, and nothing once they are.
    """

    def __init__(
        self, config: TlsConfig, *, server: bool, complain: Callable[[str], None] = lambda _: None
    ) -> None:
        self._config = config
        self._server = server
        self._pair = config.server if server else config.outgoing
        self._complain = complain
        self._lock = threading.Lock()
        self._stamps: tuple[Stamp | None, ...] | None = None
        self._loaded: Loaded | None = None
        self.trouble = ""

    @property
    def common_names(self) -> tuple[str, ...]:
        """Of which peers one is taken; none: of any that the CA vouches for."""
        if self._config.externally_managed:
            return ()
        return self._config.client_cns if self._server else self._config.server_cns

    def current(self) -> Loaded:
        """What a handshake takes now. Raises `InvalidInput` when nothing was ever loaded."""
        with self._lock:
            stamps = self._look()
            if self._loaded is None or stamps != self._stamps:
                self._refresh(stamps)
            if self._loaded is None:
                raise InvalidInput(self.trouble)
            return self._loaded

    def _refresh(self, stamps: tuple[Stamp | None, ...]) -> None:
        try:
            self._loaded = load(self._config, self._pair, server=self._server)
            self._stamps = stamps
            self.trouble = ""
        except TortieError as error:
            self.trouble = first_line(error)
        self._complain(self.trouble)

    def _look(self) -> tuple[Stamp | None, ...]:
        return tuple(map(stamp, (self._config.ca, self._pair.cert, self._pair.key)))


def load(config: TlsConfig, pair: PairConfig, *, server: bool) -> Loaded:
    """Read CA, certificate and key. Raises `InvalidInput` naming the file at fault."""
    purpose = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(purpose)
    context.check_hostname = False  # nodes share one identity; names are compared by `refusal`
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = _VERSIONS[config.min_version]
    if config.externally_managed:
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    if config.ciphers:
        try:
            context.set_ciphers(config.ciphers)
        except ssl.SSLError as error:
            raise InvalidInput(f"tls.ciphers {config.ciphers!r}: {reason(error)}") from error
    end = _certificate_end(pair.cert)
    _load_pair(context, pair)
    try:
        context.load_verify_locations(config.ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"CA {config.ca}: {reason(error)}") from error
    return Loaded(context, end)


def _certificate_end(path: str) -> datetime:
    try:
        return not_after(read_text(path))
    except OSError as error:
        raise InvalidInput(f"certificate {path}: {reason(error)}") from error
    except TortieError as error:
        raise InvalidInput(f"certificate {path}: {error}") from error


def _load_pair(context: ssl.SSLContext, pair: PairConfig) -> None:
    try:
        context.load_cert_chain(pair.cert, pair.key, password=b"")  # never ask a terminal
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            raise InvalidInput(
                f"certificate {pair.cert} and key {pair.key} do not belong together"
            ) from error
        raise InvalidInput(f"key {pair.key}: {reason(error)}") from error
    except OSError as error:
        raise InvalidInput(f"key {pair.key}: {reason(error)}") from error
