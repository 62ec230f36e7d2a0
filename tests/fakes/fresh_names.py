"""Names of network namespaces that no other run has had, nor left behind when it was killed."""

from __future__ import annotations

import itertools
import os
import secrets

_serial = itertools.count()
_run = f"tt{os.getpid()}-{secrets.token_hex(2)}"
"""A pid alone comes again, and `ip netns` gives whoever asks for a name the space that has it."""


def fresh_name(what: str) -> str:
    """A namespace's name, at most 15 characters longer than `what`."""
    return f"{_run}-{next(_serial)}{what}"
