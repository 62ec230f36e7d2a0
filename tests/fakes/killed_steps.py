"""What a process that is killed leaves: nothing from some step on has an effect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest


class KilledError(BaseException):
    """What a killed process does not see."""


@contextmanager
def killed_before(step: int, names: Iterable[str]) -> Iterator[list[str]]:
    """Nothing from this step (from 1; 0: none) on has an effect, not even what cleans up.

    Steps are calls of these functions of `os`; those that were taken, the last one in vain.
    """
    taken: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, _counted(name, getattr(os, name), taken, step))
        with suppress(KilledError):
            yield taken


def _counted(
    name: str, original: Callable[..., Any], taken: list[str], step: int
) -> Callable[..., Any]:
    def counted(*args: Any, **options: Any) -> Any:
        taken.append(name)
        if 0 < step <= len(taken):
            raise KilledError
        if name == "fsync":  # a disk's time would be most of the test's
            return None
        return original(*args, **options)

    return counted
