"""QEMU's answers, our own records, what kind of text it is, text and JSON of the figures."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libtortie.errors import InvalidInput, NotFound
from tortiectl.downtime.amounts import duration, quantity, size
from tortiectl.downtime.chart import chart, page
from tortiectl.downtime.job import Job, Outcome
from tortiectl.downtime.qmp import parse_query_migrate
from tortiectl.downtime.read import parse_figures
from tortiectl.downtime.report import document, lines

COMPLETED: dict[str, Any] = {
    "status": "completed",
    "total-time": 485,
    "downtime": 29,
    "setup-time": 3,
    "ram": {
        "transferred": 86_000_000, "remaining": 0, "total": 268_435_456, "mbps": 1420.5,
        "dirty-sync-count": 4, "dirty-pages-rate": 10, "page-size": 4096, "duplicate": 40_000,
        "normal": 20_000, "normal-bytes": 81_920_000, "postcopy-requests": 0,
    },
}  # fmt: skip
ROW = {
    "vm": "vm1", "source_node": "node1", "target_node": "node2", "phase": "Succeeded",
    "guest_blackout_ms": 50.2, "network_downtime_ms": 4.1,
}  # fmt: skip


def log_line(event: str, pod: str, **fields: Any) -> str:
    about = {"time": "2026-01-01T00:00:00.1Z", "level": "info", "event": event, "node": "node2"}
    return json.dumps({**about, "endpoint": f"default/{pod}/eth0", **fields})


def test_an_answer_of_qemu() -> None:
    job = parse_query_migrate(json.dumps({"return": COMPLETED, "id": "libvirt-44"}))
    assert (job.outcome, job.total_ms, job.downtime_ms) == (Outcome.COMPLETED, 485, 29)
    assert (job.data_processed, job.memory_total) == (86_000_000, 268_435_456)
    assert job.bandwidth == 1420.5 * 125_000
    assert (job.dirty_rate, job.iterations) == (40960, 4)


def test_copied_disks_count_as_data() -> None:
    body = {**COMPLETED, "disk": {"transferred": 1000, "remaining": 0, "total": 2000}}
    job = parse_query_migrate(json.dumps(body))
    assert (job.data_processed, job.file_processed) == (86_001_000, 1000)


def test_zeros_of_the_moment_after_the_end_are_not_figures() -> None:
    early = {**COMPLETED, "total-time": 0, "downtime": 0}
    assert parse_query_migrate(json.dumps(early)).downtime_ms is None
    told: list[dict[str, Any]] = [
        {"QMP": {"version": {}}},
        {"return": {}},
        {"return": {**COMPLETED, "status": "active", "expected-downtime": 300}},
        {"timestamp": {"seconds": 1}, "event": "MIGRATION", "data": {"status": "completed"}},
        {"return": COMPLETED},
        {"return": early},
    ]
    assert parse_query_migrate("\n".join(map(json.dumps, told))).downtime_ms == 29


def test_a_failed_migration_has_its_reason() -> None:
    job = parse_query_migrate(json.dumps({"status": "failed", "error-desc": "Unable to write"}))
    assert (job.outcome, job.error) == (Outcome.FAILED, "Unable to write")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", InvalidInput, "f: empty"),
        ("{", InvalidInput, "f: line 1: not JSON"),
        ('{"return": {}}', InvalidInput, "no answer to query-migrate"),
        ('{"status": "none"}', NotFound, "no migration"),
        ('{"migrations": []}', NotFound, "no migration of any VM is recorded"),
        ("Job type: None\n", NotFound, "f: libvirt has no finished job"),
    ],
)
def test_what_has_no_figures_is_named(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        parse_figures(text, "f")


def test_the_last_row_of_a_report_counts() -> None:
    text = json.dumps({"migrations": [{**ROW, "guest_blackout_ms": 9.0}, ROW], "ok": True})
    job = parse_figures(text, "report.json", "default/vm1")
    assert (job.outcome, job.downtime_ms, job.network_downtime_ms) == (Outcome.COMPLETED, 50.2, 4.1)
    with pytest.raises(NotFound, match="recorded are vm1"):
        parse_figures(text, "report.json", "vm2")


def test_the_slowest_address_of_the_last_raise_counts() -> None:
    text = "\n".join(
        [
            log_line("route_raised", "virt-launcher-web-aaaaa", latency_ms=90.0, episode=1),
            log_line("sign", "virt-launcher-web-bbbbb", kind="rarp"),
            log_line("route_raised", "virt-launcher-web-bbbbb", latency_ms=1.5, episode=2),
            log_line("route_raised", "virt-launcher-web-bbbbb", latency_ms=2.5, episode=2),
            log_line("route_raised", "virt-launcher-web2-ccccc", latency_ms=70.0, episode=1),
        ]
    )
    assert parse_figures(text, "node.log", "default/web").network_downtime_ms == 2.5
    with pytest.raises(NotFound, match="no cut-over of other/web"):
        parse_figures(text, "node.log", "other/web")


def test_text_says_what_is_not_told() -> None:
    job = Job("QEMU", Outcome.COMPLETED, total_ms=6531, downtime_ms=338)
    text = "\n".join(lines(job, "default/web"))
    assert "total time         6.531 s" in text
    assert "downtime           338 ms" in text
    assert "data processed     not told" in text
    assert "network downtime" not in text
    assert document(job, "default/web")["data_processed_bytes"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.500 KiB"), (456.123 * 1024**2, "456.123 MiB")],
)
def test_sizes(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (4.1, "4.1 ms"),
        (338, "338 ms"),
        (6531, "6.531 s"),
        (125_000, "2 min 5 s"),
        (3_700_000, "1 h 1 min"),
    ],
)
def test_durations(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("text", "value"), [("4Gi", 4 << 30), ("500M", 5e8), ("12", 12), ("1GiB", 1 << 30)]
)
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "-1", "4 G i", "1e999", "nan", "4Xi"])
def test_no_quantities(text: str) -> None:
    with pytest.raises(InvalidInput):
        quantity(text)


def test_the_picture_is_well_formed_whatever_it_is_called() -> None:
    job = parse_query_migrate(json.dumps(COMPLETED))
    title = "<b>a & b"
    drawn = ElementTree.fromstring(chart(job, title))
    texts = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert "downtime: 29 ms" in texts
    assert title in texts
    assert "<b>" not in page(job, title)
    ElementTree.fromstring(chart(Job("QEMU"), ""))


SCALARS = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers()))


@given(st.dictionaries(st.sampled_from([*COMPLETED, "disk", "error-desc"]), SCALARS))
def test_any_answer_is_read_or_refused(body: dict[str, Any]) -> None:
    with suppress(InvalidInput, NotFound):
        parse_query_migrate(json.dumps({**body, "status": "completed"}))


@pytest.mark.parametrize("large", ["1e400", "NaN", "-Infinity", "1" + "0" * 400, "1e30", "true"])
@pytest.mark.parametrize(
    "form",
    [
        '{{"return": {{"status": "completed", "total-time": 5, "downtime": {0},'
        ' "ram": {{"transferred": {0}, "mbps": {0}, "total": {0}}}}}}}',
        '{{"migrations": [{{"vm": "v", "phase": "Succeeded", "guest_blackout_ms": {0},'
        ' "network_downtime_ms": 3}}]}}',
        "Job type: Completed\nTime elapsed: 7 ms\nTotal downtime: {0} ms\nData total: {0} GiB\n",
    ],
    ids=["qmp", "report", "virsh"],
)
def test_what_no_program_can_have_measured_is_not_told(form: str, large: str) -> None:
    job = parse_figures(form.format(large), "saved")
    assert job.downtime_ms is None
    assert "not told" in "\n".join(lines(job, "saved"))
    assert json.dumps(document(job, "v"), allow_nan=False)
    assert page(job, "saved")
