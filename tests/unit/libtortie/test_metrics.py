"""Counters and histograms, as Prometheus reads them."""

from __future__ import annotations

import threading

import pytest

from libtortie import metrics
from libtortie.metrics import Counter, Gauge, Histogram, exposition


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
