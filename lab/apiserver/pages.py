"""Pages of one list show one state: what was found is held until it has been read."""

from __future__ import annotations

import base64
import binascii
import json
import threading
import uuid
from collections import OrderedDict

from lab.apiserver import errors
from lab.apiserver.errors import Json

_SNAPSHOTS = 32


class Pages:
    """Lists that are being read page by page. Thread-safe."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, tuple[tuple[Json, ...], int]] = OrderedDict()
        self._lock = threading.Lock()

    def hold(self, found: tuple[Json, ...], version: int) -> str:
        """Keep a list (the oldest is forgotten when there are too many); returns its name."""
        name = uuid.uuid4().hex
        with self._lock:
            self._held[name] = (found, version)
            while len(self._held) > _SNAPSHOTS:
                self._held.popitem(last=False)
        return name

    def resume(self, name: str) -> tuple[tuple[Json, ...], int]:
        """A list and its version. Raises 410."""
        with self._lock:
            held = self._held.get(name)
        if held is None:
            raise errors.expired("The provided continue parameter is too old")
        return held

    def forget(self) -> None:
        """Make every continue token answer 410, as a compaction does."""
        with self._lock:
            self._held.clear()


def encode_token(snapshot: str, start: int) -> str:
    """A continue token."""
    return base64.urlsafe_b64encode(json.dumps([snapshot, start]).encode()).decode()


def decode_token(token: str) -> tuple[str, int]:
    """A list's name and the place to go on from. Raises 400."""
    try:
        snapshot, start = json.loads(base64.urlsafe_b64decode(token))
    except (binascii.Error, ValueError, TypeError) as error:
        raise errors.bad_request("continue key is not valid") from error
    if not isinstance(snapshot, str) or not isinstance(start, int) or start < 0:
        raise errors.bad_request("continue key is not valid")
    return snapshot, start
