"""Lines of JSON, as logs and spools are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects in a text, one a line; what is none, or was cut short, is passed over.

    A newline alone ends a line: JSON may hold the others that Unicode knows as they are.
    """
    for line in text.split("\n"):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found
