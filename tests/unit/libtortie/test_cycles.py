"""The search for reference cycles: off only where it was put off, on again whatever happens."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from libtortie.cycles import unsearched


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_put_off_and_on_again() -> None:
    with unsearched():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="odd"), unsearched():
        raise ValueError("odd")
    assert gc.isenabled()


def test_one_within_another_leaves_it_off_and_so_does_who_had_it_off() -> None:
    with unsearched():
        with unsearched():
            pass
        assert not gc.isenabled()
    gc.disable()
    with unsearched():
        pass
    assert not gc.isenabled()


def test_what_has_no_cycle_is_freed_at_once_all_the_same() -> None:
    class Record:
        pass

    with unsearched():
        record = Record()
        known = weakref.ref(record)
        del record
        assert known() is None
