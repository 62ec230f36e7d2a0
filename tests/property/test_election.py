"""Whatever is late, lost, stopped or done at once, whatever clocks say: one leads at most."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libtortie.errors import Unavailable
from tests.fakes.electorate import Electorate

DELAYS = st.sampled_from([0.0, 0.1, 1.0, 2.0, 5.0, 9.9, 10.1, 14.9, 15.1, 40.0])
CANDIDATES = 3


@given(data=st.data(), skews=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_two_lead_at_once(data: st.DataObject, skews: list[float]) -> None:
    site = Electorate()
    candidates = [site.candidate(name, skew=skew) for name, skew in zip("abc", skews, strict=True)]
    busy: set[int] = set()

    def pass_by(delay: float) -> None:
        site.now += delay
        assert len(site.leaders) <= 1

    def happen(_: str) -> None:
        """Time passes, another one acts, the network fails."""
        pass_by(data.draw(DELAYS))
        if data.draw(st.integers(0, 3)) == 0:
            attempt(data.draw(st.integers(0, CANDIDATES - 1)))
            pass_by(data.draw(DELAYS))
        if data.draw(st.integers(0, 4)) == 0:
            raise Unavailable("lost")

    def attempt(index: int) -> None:
        if index in busy:
            return
        busy.add(index)
        if data.draw(st.integers(0, 9)) == 0:
            candidates[index].give_up()
        else:
            candidates[index].attempt()
        busy.discard(index)
        assert len(site.leaders) <= 1

    site.before = site.after = happen
    for _ in range(data.draw(st.integers(1, 25))):
        pass_by(data.draw(DELAYS))
        attempt(data.draw(st.integers(0, CANDIDATES - 1)))


@given(skews=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_somebody_leads_once_all_is_well_again(skews: list[float]) -> None:
    site = Electorate()
    for name, skew in zip("abc", skews, strict=True):
        site.candidate(name, skew=skew)
    for _ in range(20):
        for one in site.candidates:
            one.attempt()
        assert len(site.leaders) == 1
        site.now += 2
    site.candidates.pop(0)
    for _ in range(9):
        for one in site.candidates:
            one.attempt()
        site.now += 2
    assert len(site.leaders) == 1
