"""JSON that other programs wrote: strict, finite, and no deeper than can be passed on.

What is read here is written again, to later plugins, delegated ones and the runtime: a value that
we could read and not write, or that others cannot read, must come to light before anything is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from libtortie.datastore import gojson

DEEPEST = 100
"""Arrays and objects within each other. (Readers give up between 200 and 10,000.)"""


def loads(data: bytes) -> Any:
    """The value of a JSON text in UTF-8. ValueError, saying why, for anything else."""
    value = gojson.loads(data)
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return value
    raise ValueError("nested too deeply")


def _within(value: Any) -> Iterator[Any]:
    """The arrays and objects in one."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (item for item in inner if isinstance(item, (dict, list)))
