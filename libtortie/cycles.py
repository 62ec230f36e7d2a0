"""Python's search for reference cycles, put off while very much is read and kept.

The search walks again and again through all that is kept: of a large cluster's records, which are
plain values without cycles, that took as long as reading and judging them. Nothing is lost: what
is freed by its last reference is freed as always, cycles once the search is on again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unsearched() -> Iterator[None]:
    """Put the search off in this process; on again at the end, unless it was off before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
