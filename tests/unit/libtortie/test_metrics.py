"""Counters and histograms, as Prometheus reads them."""

from __future__ import annotations

import threading

import pytest

from libtortie import metrics
from libtortie.errors import Unavailable
from libtortie.metrics import Counter, Gauge, Histogram, Readings, Recent, exposition


def test_a_counter_by_labels() -> None:
    calls = Counter("calls_total", "Calls.", ("verb", "code"))
    calls.add("ADD", "0")
    calls.add("ADD", "0", amount=2)
    calls.add('D"E\\L\n', "11")
    assert exposition([calls]) == (
        "# HELP calls_total Calls.\n"
        "# TYPE calls_total counter\n"
        'calls_total{verb="ADD",code="0"} 3\n'
        'calls_total{verb="D\\"E\\\\L\\n",code="11"} 1\n'
    )
    assert calls.value("ADD", "0") == 3
    with pytest.raises(ValueError, match="labels"):
        calls.add("ADD")


def test_a_counter_without_labels_is_there_from_the_start() -> None:
    assert exposition([Counter("a_total", "A.")]).endswith("\na_total 0\n")


def test_a_gauge_is_asked_at_each_scrape() -> None:
    values = iter((0.5, 7.0))
    gauge = Gauge("age", "Age.", lambda: next(values))
    assert exposition([gauge]) == "# HELP age Age.\n# TYPE age gauge\nage 0.5\n"
    assert exposition([gauge]).endswith("\nage 7\n")


def test_a_histogram_is_cumulative_and_a_bound_belongs_to_its_bucket() -> None:
    seconds = Histogram("s", "S.", ("phase",), bounds=(0.5, 1.0))
    for amount in (0.25, 0.5, 0.75, 9.0):
        seconds.observe(amount, "ipam")
    assert exposition([seconds]).splitlines()[2:] == [
        's_bucket{phase="ipam",le="0.5"} 2',
        's_bucket{phase="ipam",le="1"} 3',
        's_bucket{phase="ipam",le="+Inf"} 4',
        's_sum{phase="ipam"} 10.5',
        's_count{phase="ipam"} 4',
    ]


def test_hostile_labels_do_not_fill_the_memory() -> None:
    calls = Counter("calls_total", "Calls.", ("verb",))
    for number in range(metrics.MOST_SERIES + 10):
        calls.add(str(number))
    calls.add("\udcff")
    assert calls.value("other") == 11
    assert len(exposition([calls]).splitlines()) == metrics.MOST_SERIES + 1 + 2
    exposition([calls]).encode()


def test_nothing_is_lost_among_threads() -> None:
    calls = Counter("calls_total", "Calls.")

    def count() -> None:
        for _ in range(1000):
            calls.add()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.value() == 4000


def test_readings_are_asked_at_each_scrape_and_bounded() -> None:
    values: dict[tuple[str, ...], float] = {
        (str(number).zfill(4),): 1.0 for number in range(metrics.MOST_SERIES + 5)
    }
    readings = Readings("r_total", "R.", ("of",), lambda: values, "counter")
    lines = exposition([readings]).splitlines()
    assert lines[1] == "# TYPE r_total counter"
    assert len(lines) == 2 + metrics.MOST_SERIES
    values.clear()
    values["a",] = 2.5
    assert exposition([readings]).splitlines()[2:] == ['r_total{of="a"} 2.5']


@pytest.mark.parametrize("error", [Unavailable("away"), OSError("away")])
def test_a_reading_that_fails_spoils_no_scrape(error: Exception) -> None:
    def read() -> dict[tuple[str, ...], float]:
        raise error

    found = exposition([Readings("r", "R.", (), read), Counter("a_total", "A.")])
    assert (
        found
        == "# HELP r R.\n# TYPE r gauge\n# HELP a_total A.\n# TYPE a_total counter\na_total 0\n"
    )


def test_the_recent_ones_are_kept_and_the_oldest_goes() -> None:
    recent = Recent("s", "S.", ("vm",), 2)
    for vm, amount in (("a", 1.0), ("b", 2.0), ("a", 3.0), ("c", 4.0)):
        recent.set(amount, vm)
    assert exposition([recent]).splitlines()[2:] == ['s{vm="a"} 3', 's{vm="c"} 4']
    with pytest.raises(ValueError, match="labels"):
        recent.set(1.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (1e300, str(int(1e300))),
    ],
)
def test_a_number_that_is_none_spoils_no_scrape(value: float, text: str) -> None:
    found = exposition([Gauge("odd", "Odd.", lambda: value), Gauge("even", "Even.", lambda: 2.0)])
    assert f"odd {text}\n" in found and "even 2\n" in found
