"""virsh's statistics of a migration: several libvirts, languages, orders; others are refused."""

# ruff: noqa: RUF001  # other languages' letters and colons are what is tested
from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libtortie.errors import InvalidInput
from tortiectl.downtime.domjobinfo import NoRecord, parse_domjobinfo
from tortiectl.downtime.job import Job, Outcome

MIB = 1024.0**2
LIBVIRT_9 = """\
Job type:         Completed
Operation:        Incoming migration
Time elapsed:     6531         ms
Time elapsed w/o network: 6528         ms
Data processed:   456.123 MiB
Data remaining:   0.000 B
Data total:       1.004 GiB
Memory processed: 456.123 MiB
Memory remaining: 0.000 B
Memory total:     1.004 GiB
Memory bandwidth: 70.123 MiB/s
Dirty rate:       12           pages/s
Page size:        4096         bytes
Iteration:        3
Postcopy requests: 0
Constant pages:   150000
Normal pages:     116000
Normal data:      453.125 MiB
Total downtime:   338          ms
Downtime w/o network: 335          ms
Setup time:       5            ms
"""

LIBVIRT_1 = """\
Job type:         Completed
Time elapsed:     7004         ms
Data processed:   456.100 MiB
Data remaining:   0.000 B
Data total:       1.004 GiB
Memory processed: 456.100 MiB
Memory remaining: 0.000 B
Memory total:     1.004 GiB
Memory bandwidth: 65.111 MiB/s
Constant pages:   150000
Normal pages:     116000
Normal data:      453.125 MiB
Total downtime:   490          ms
Setup time:       4            ms
"""

COPIED_DISKS = """\
Job type:         Completed
Operation:        Outgoing migration
Time elapsed:     61000        ms
Data processed:   10.250 GiB
Data remaining:   0.000 B
Data total:       12.004 GiB
Memory processed: 512.000 MiB
Memory remaining: 0.000 B
Memory total:     2.004 GiB
Memory bandwidth: 100.000 MiB/s
Iteration:        5
File processed:   9.750 GiB
File remaining:   0.000 B
File total:       10.000 GiB
File bandwidth:   200.000 MiB/s
Constant pages:   1
Normal pages:     2
Normal data:      8.000 KiB
Total downtime:   17           ms
Setup time:       5            ms
Auto converge throttle: 20
"""

# As virsh prints them with its own translations; what is not translated stays English.
GERMAN = """\
Job-Typ:          Completed
Operation:        Incoming migration
Verstrichene Zeit: 6531         ms
Time elapsed w/o network: 6528         ms
Verarbeitete Daten: 456,123 MiB
Verbleibende Daten: 0,000 B
Gesamte Daten:    1,004 GiB
Verarbeiteter Speicher: 456,123 MiB
Verbleibender Speicher: 0,000 B
Gesamter Speicher: 1,004 GiB
Memory bandwidth: 70,123 MiB/s
Dirty rate:       12           pages/s
Page size:        4096         bytes
Iteration:        3
Postcopy requests: 0
Ständige Seiten:  150000
Normale Seiten:   116000
Normale Daten:    453,125 MiB
Total downtime:   338          ms
Downtime w/o network: 335          ms
Setup time:       5            ms
"""
RUSSIAN_LABELS = (
    "Тип задания:", "Операция:", "Прошло:", "Прошло без учёта сети:", "Обработано данных:",
    "Осталось данных:", "Всего данных:", "Обработано памяти:", "Осталось памяти:",
    "Всего памяти:", "Пропускная способность памяти:", "Брутто-скорость:", "Размер страницы:",
    "Итерация:", "Запросы postcopy:", "Неизменяемые страницы:", "Обычные страницы:",
    "Обычные данные:", "Общее время простоя:", "Время простоя без учёта сети:",
    "Время подготовки:",
)  # fmt: skip
CHINESE_LABELS = (
    "任务类型：", "操作：", "消耗的时间：", "没有网络的时间：", "处理的数据：", "剩余的数据：",
    "数据总计：", "处理的内存：", "剩余的内存：", "内存总量：", "内存带宽：", "脏率：",
    "页面大小：", "迭代：", "复制后请求：", "常数页：", "正常页：", "正常数据：", "总停机时间：",
    "没有网络的停机时间：", "设置时间：",
)  # fmt: skip


def relabelled(labels: tuple[str, ...], kind: str, operation: str) -> str:
    values = [line.partition(":")[2].strip() for line in LIBVIRT_9.splitlines()]
    values[:2] = kind, operation
    pairs = zip(labels, values, strict=True)
    return "".join(f"{label:<17} {value.replace('.', ',')}\n" for label, value in pairs)


EXPECTED = parse_domjobinfo(LIBVIRT_9)


def figures(job: Job) -> tuple[object, ...]:
    return (
        job.outcome, job.total_ms, job.total_net_ms, job.downtime_ms, job.downtime_net_ms,
        job.data_processed, job.data_remaining, job.data_total, job.memory_total, job.bandwidth,
        job.dirty_rate, job.iterations, job.constant_pages, job.normal_pages, job.normal_data,
        job.setup_ms, job.file_processed,
    )  # fmt: skip


def test_a_migration_of_a_gibibyte() -> None:
    job = EXPECTED
    assert (job.outcome, job.operation) == (Outcome.COMPLETED, "Incoming migration")
    assert (job.total_ms, job.downtime_ms, job.iterations) == (6531, 338, 3)
    assert job.data_processed == pytest.approx(456.123 * MIB)
    assert job.bandwidth == pytest.approx(70.123 * MIB)
    assert job.average_bandwidth == pytest.approx(456.123 * MIB / 6.531)
    assert job.dirty_rate == 12 * 4096


def test_an_old_libvirt_says_less() -> None:
    job = parse_domjobinfo(LIBVIRT_1)
    assert (job.outcome, job.total_ms, job.downtime_ms) == (Outcome.COMPLETED, 7004, 490)
    assert job.data_processed == pytest.approx(456.1 * MIB)
    assert job.iterations is None
    assert job.dirty_rate is None
    assert job.downtime_net_ms is None


def test_copied_disks_are_told_apart() -> None:
    job = parse_domjobinfo(COPIED_DISKS)
    assert job.file_processed == pytest.approx(9.75 * 1024 * MIB)
    assert job.data_processed == pytest.approx(10.25 * 1024 * MIB)
    assert (job.downtime_ms, job.throttle_percent) == (17, 20)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(GERMAN, id="half German"),
        pytest.param(relabelled(RUSSIAN_LABELS, "Завершено", "Входящая миграция"), id="Russian"),
        pytest.param(relabelled(CHINESE_LABELS, "完成", "传入的迁移"), id="Chinese"),
        pytest.param(LIBVIRT_9.replace("\n", "\r\n"), id="line ends of Windows"),
        pytest.param(LIBVIRT_9.replace(".", ","), id="decimal commas"),
    ],
)
def test_any_language(text: str) -> None:
    assert figures(parse_domjobinfo(text)) == figures(EXPECTED)


def test_another_language_without_what_an_old_libvirt_lacks() -> None:
    kept = [line.partition(":")[0] for line in LIBVIRT_1.splitlines()]
    lines = [
        f"{label:<17} {line.partition(':')[2].strip()}"
        for label, line in zip(RUSSIAN_LABELS, LIBVIRT_9.splitlines(), strict=True)
        if line.partition(":")[0] in kept
    ]
    job = parse_domjobinfo("\n".join(lines))
    assert (job.total_ms, job.downtime_ms, job.setup_ms) == (6531, 338, 5)
    assert (job.constant_pages, job.normal_pages) == (150000, 116000)
    assert job.normal_data == pytest.approx(453.125 * MIB)
    assert job.file_processed is None


def test_another_language_with_copied_disks() -> None:
    text = COPIED_DISKS
    for number, label in enumerate(line.partition(":")[0] for line in COPIED_DISKS.splitlines()):
        text = text.replace(f"{label}:", f"Бирка {chr(0x430 + number)}:", 1)
    job = parse_domjobinfo(text)
    assert job.file_total == pytest.approx(10 * 1024 * MIB)
    assert (job.iterations, job.constant_pages, job.normal_pages) == (5, 1, 2)
    assert (job.downtime_ms, job.setup_ms, job.throttle_percent) == (17, 5, 20)


@given(st.randoms(use_true_random=False))
def test_english_lines_in_any_order(rng: random.Random) -> None:
    lines = LIBVIRT_9.splitlines()
    rng.shuffle(lines)
    assert figures(parse_domjobinfo("\n".join(lines))) == figures(EXPECTED)


def test_a_time_below_zero_came_as_a_huge_one() -> None:
    text = LIBVIRT_9.replace("335          ms", f"{2**64 - 3} ms")
    assert parse_domjobinfo(text).downtime_net_ms == -3


def test_a_running_migration_only_expects_its_downtime() -> None:
    text = LIBVIRT_9.replace("Completed", "Unbounded").replace("Total d", "Expected d")
    job = parse_domjobinfo(text)
    assert (job.outcome, job.downtime_ms, job.expected_downtime_ms) == (Outcome.RUNNING, None, 338)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Job type:         None        \n\n", "no finished job"),
        ("Тип задания:      Нет\n", "no finished job"),
        ("Job type: 0\n\n", "no finished job"),
        (LIBVIRT_9.replace("Incoming migration", "Backup"), "no migration: Backup"),
    ],
)
def test_libvirt_has_no_migration_to_tell_of(text: str, words: str) -> None:
    with pytest.raises(NoRecord, match=words):
        parse_domjobinfo(text)


def test_raw_statistics() -> None:
    text = (
        "Job type: 3\n\noperation: 4\ntime_elapsed: 6531\ndowntime: 338\n"
        "data_processed: 478279630\nmemory_bps: 73529294\nmemory_iteration: 3\n"
        "data_total: 1078036791\ndata_remaining: 0\n"
    )
    job = parse_domjobinfo(text)
    assert (job.outcome, job.operation) == (Outcome.COMPLETED, "Incoming migration")
    assert (job.total_ms, job.downtime_ms, job.data_processed) == (6531, 338, 478279630)
    assert (job.bandwidth, job.iterations) == (73529294, 3)


@pytest.mark.parametrize(
    "text",
    [
        "error: failed to get domain 'default_web'\n",
        "Id   Name   State\n-----\n 1    web    running\n",
        "x: 1\n" * 5000,
        "y" * (2 << 20),
    ],
)
def test_what_is_none_of_it_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_domjobinfo(text)


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidInput, NoRecord):
        parse_domjobinfo(text)
