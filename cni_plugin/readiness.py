"""Readiness gates: URLs that have to answer well before a pod may start (Calico's).

Each is asked at once, then every five seconds, for at most thirty; 200 to 399 is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from libtortie.errors import Unavailable

PATIENCE = 30.0
"""Seconds for all gates together."""

_PAUSE = 5.0
_ANSWER_SECONDS = 5.0


def require(
    urls: Sequence[str],
    reaches: Callable[[str], bool],
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Wait until every gate is ready. Raises `Unavailable` naming the first that is not."""
    end = monotonic() + PATIENCE
    for url in urls:
        while not reaches(url):
            left = end - monotonic()
            if left <= 0:
                raise Unavailable(f"readiness gate {url} is not ready within {PATIENCE:g} s")
            sleep(min(_PAUSE, left))


def nothing_is_reached(_: str) -> bool:
    """The answer of a caller without a network."""
    return False


def answers_well(url: str) -> bool:
    """Whether a GET of the URL is answered with a status of 200 to 399, redirects not followed."""
    import http.client  # 20 ms that few need

    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=_ANSWER_SECONDS)
        try:
            path = parts.path or "/"
            connection.request("GET", f"{path}?{parts.query}" if parts.query else path)
            return 200 <= connection.getresponse().status < 400
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError):
        return False
