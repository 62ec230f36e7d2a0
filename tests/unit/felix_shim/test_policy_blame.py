"""Whose rules the kernel refuses, found with few questions."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from felix_shim.policy_blame import refused

owners = st.sets(st.integers(0, 99), max_size=5)


class Kernel:
    """Refuses the rules of the guilty, or everything when it is broken."""

    def __init__(self, guilty: set[int], *, broken: bool = False) -> None:
        self.guilty, self.broken, self.asked = guilty, broken, 0

    def __call__(self, some: Sequence[int]) -> str:
        self.asked += 1
        return "no" if self.broken or self.guilty.intersection(some) else ""


@settings(deadline=None, derandomize=True, database=None)
@given(owners, owners)
def test_the_guilty_are_found_whoever_is_suspected(guilty: set[int], suspects: set[int]) -> None:
    kernel = Kernel(guilty)
    assert refused(range(100), kernel, sorted(suspects)) == dict.fromkeys(guilty, "no")


def test_a_suspect_that_is_guilty_is_found_at_once_among_a_thousand() -> None:
    kernel = Kernel({700})
    assert refused(range(1000), kernel, [700]) == {700: "no"}
    assert kernel.asked == 4, "of nothing before and after, of it, of all the others"


def test_nobody_is_blamed_by_a_kernel_that_refuses_everything() -> None:
    kernel = Kernel({1}, broken=True)
    assert refused(range(10), kernel, [1]) == {}
    assert kernel.asked == 1
