"""How long a migration will take, and whether it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from libtortie.errors import InvalidInput
from tests.fakes.vm_cluster import healthy
from tortiectl.cli import main
from tortiectl.downtime.forecast import Load, Verdict, forecast
from tortiectl.downtime.report import forecast_document, forecast_lines

GIB, MIB = 1024.0**3, 1024.0**2


def test_an_idle_guest_takes_its_memory_by_the_bandwidth() -> None:
    found = forecast(Load(memory=GIB, bandwidth=64 * MIB))
    assert found.verdict is Verdict.CONVERGES
    assert found.seconds == pytest.approx(16)
    assert (found.rounds, found.downtime_ms) == (1, 0)


def test_each_round_leaves_the_ratio_of_dirty_rate_and_bandwidth() -> None:
    found = forecast(Load(memory=8 * GIB, bandwidth=100 * MIB, dirty_rate=50 * MIB))
    assert found.rounds == 9  # 81.92 s halved until below 0.3 s
    assert found.downtime_ms == pytest.approx(81.92 / 2**9 * 1000)
    assert found.seconds == pytest.approx(81.92 * (2 - 2**-9))


def test_copied_disks_count_for_time_and_limit() -> None:
    plain = forecast(Load(memory=GIB, bandwidth=64 * MIB))
    block = forecast(Load(memory=GIB, bandwidth=64 * MIB, disks=10 * GIB))
    assert block.seconds == pytest.approx((plain.seconds or 0) + 160)
    assert block.disk_seconds == pytest.approx(160)
    assert block.limit_seconds == pytest.approx(150 * 11 * GIB / 1e9)


@pytest.mark.parametrize(
    ("load", "verdict"),
    [
        ({}, Verdict.TIMES_OUT),
        ({"auto_converge": True}, Verdict.THROTTLED),
        ({"post_copy": True}, Verdict.DISRUPTED),
        ({"disruption": True}, Verdict.DISRUPTED),
    ],
)
def test_a_guest_that_dirties_faster_than_is_sent(load: dict[str, bool], verdict: Verdict) -> None:
    found = forecast(
        Load(
            memory=GIB, bandwidth=64 * MIB, dirty_rate=64 * MIB,
            auto_converge=load.get("auto_converge", False),
            post_copy=load.get("post_copy", False),
            disruption=load.get("disruption", False),
        )
    )  # fmt: skip
    assert (found.verdict, found.seconds) == (verdict, None)


def test_a_limit_of_zero_is_none() -> None:
    slow = Load(memory=GIB, bandwidth=4 * MIB, completion_s_per_gb=0)
    found = forecast(slow)
    assert (found.verdict, found.seconds, found.limit_seconds) == (Verdict.CONVERGES, 256, None)
    assert "  time limit         none" in list(forecast_lines(slow, found))
    assert forecast_document(slow, found)["limit_seconds"] is None
    never = forecast(replace(slow, dirty_rate=4 * MIB, post_copy=True))
    assert (never.verdict, never.seconds) == (Verdict.ENDLESS, None)


@pytest.mark.parametrize(("told", "limit"), [(0, 0.0), (7, 7.0), (-1, 150.0), ("x", 150.0)])
def test_the_limit_that_kubevirt_has(told: object, limit: float) -> None:
    site = healthy(vms=1)
    site.config()["migrations"] = {"completionTimeoutPerGiB": told}
    assert site.cluster().settings.completion_s_per_gb == limit


@pytest.mark.parametrize("per_gib", ["0", "1"])
def test_an_option_of_zero_counts(per_gib: str) -> None:
    args = ["vm", "forecast", "--memory", "1Gi", "--bandwidth", "4Mi", "-o", "json"]
    done = CliRunner().invoke(main, [*args, "--completion-timeout-per-gib", per_gib])
    assert (done.exit_code, 'limit_seconds": null' in done.output) == (
        (0, True) if per_gib == "0" else (2, False)
    )


def test_a_bandwidth_too_small_for_the_limit() -> None:
    found = forecast(Load(memory=GIB, bandwidth=4 * MIB))
    assert found.verdict is Verdict.TIMES_OUT
    assert "256 s, and KubeVirt allows 161 s" in found.reason


def test_disks_that_are_written_faster_than_they_can_be_copied() -> None:
    load = Load(memory=GIB, bandwidth=64 * MIB, disks=GIB, disk_write_rate=64 * MIB)
    found = forecast(load)
    assert found.verdict is Verdict.TIMES_OUT
    assert "copied disks" in found.reason


def test_a_guest_so_small_that_it_fits_into_the_pause() -> None:
    found = forecast(Load(memory=MIB, bandwidth=GIB, dirty_rate=10 * GIB))
    assert (found.verdict, found.rounds) == (Verdict.CONVERGES, 0)


@pytest.mark.parametrize(
    "load",
    [
        Load(0, 1), Load(1, 0), Load(1, 1, -1), Load(1, 1, disks=-1), Load(1, 1, downtime_ms=0),
    ],
)  # fmt: skip
def test_loads_that_cannot_be(load: Load) -> None:
    with pytest.raises(InvalidInput):
        forecast(load)


@given(
    st.floats(1, 1e13), st.floats(1e3, 1e11), st.floats(0, 1e11), st.floats(0, 1e13),
    st.floats(1, 2e6),
)  # fmt: skip
def test_what_converges_ends_within_limit_and_pause(
    memory: float, bandwidth: float, dirty: float, disks: float, downtime: float
) -> None:
    load = Load(memory, bandwidth, dirty, disks, downtime_ms=downtime)
    found = forecast(load)
    if found.seconds is None:
        assert found.verdict is not Verdict.CONVERGES
        return
    assert found.limit_seconds is not None
    assert found.seconds <= found.limit_seconds
    assert found.downtime_ms is not None
    assert found.downtime_ms <= downtime * 1.000001
    quicker = forecast(Load(memory, bandwidth * 2, dirty, disks, downtime_ms=downtime))
    assert quicker.seconds is not None
    assert quicker.seconds <= found.seconds * 1.000001
