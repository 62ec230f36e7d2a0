"""What the prober of a guest takes for a silence."""

from __future__ import annotations

import pytest

from tests.fakes.guest import LATE, unasked

EVERY_MS = tuple(ms / 1000 for ms in range(1, 5000))


def test_a_silence_in_which_probes_were_sent_is_one() -> None:
    assert unasked(EVERY_MS, 1.0, 3.0) == 0


def test_the_time_for_which_nobody_asked_is_none() -> None:
    asked = tuple(moment for moment in EVERY_MS if not 1.5 < moment < 2.5)
    assert unasked(asked, 1.0, 3.0) == pytest.approx(1.0 - LATE)
    assert unasked(asked, 1.6, 2.4) == pytest.approx(0.8 - LATE)
    assert unasked((), 1.0, 3.0) == pytest.approx(2.0 - LATE)
