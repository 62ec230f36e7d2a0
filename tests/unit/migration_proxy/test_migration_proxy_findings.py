"""From what is seen of a migration to the sentences of `status`."""

from __future__ import annotations

from libtortie.metrics import Readings, exposition
from migration_proxy.model import Side
from migration_proxy.status import QUIET_SECONDS, Seen, findings
from migration_proxy.telemetry import Speed
from tortiectl.proxy_report import report, size, troubled

WELL = Seen("direct", True, 3)


def test_nothing_is_said_of_what_goes_well() -> None:
    assert findings(Side.TARGET, "192.0.2.1", "", 1e6, [WELL, Seen("block", True, 0)]) == []


def test_silence_is_worth_a_word_only_after_a_while() -> None:
    new = [Seen("direct", True, 0)]
    assert findings(Side.TARGET, "192.0.2.1", "", QUIET_SECONDS / 2, new) == []
    (said,) = findings(Side.TARGET, "192.0.2.1", "", QUIET_SECONDS * 2, new)
    assert "open on 192.0.2.1, but nothing has connected for 10 s" in said
    (said,) = findings(Side.SOURCE, "192.0.2.1", "", QUIET_SECONDS * 2, new)
    assert "looks for them in another directory" in said


def test_a_cause_that_is_known_beats_the_guess() -> None:
    failed = Seen("block", True, 1, "why")
    assert findings(Side.TARGET, "a", "", 1e6, [Seen("direct", True, 0), failed]) == ["block: why"]
    closed = Seen("direct", False, 0)
    assert findings(Side.TARGET, "a", "", 1e6, [closed]) == [
        "direct: its listener is closed: start it again"
    ]
    gone = Seen("direct", True, 0, present=False)
    assert findings(Side.SOURCE, "a", "", 1e6, [gone]) == [
        "direct: its socket file was removed: start the source again"
    ]


def test_speed_is_what_moved_between_two_looks() -> None:
    speed = Speed()
    speed.look({("m", "source"): 100}, 1.0)
    assert speed.of("m", "source") == 0
    speed.look({("m", "source"): 1100, ("n", "target"): 5}, 3.0)
    assert speed.of("m", "source") == 500
    speed.look({}, 4.0)
    assert speed.of("m", "source") == 0


def test_readings_are_asked_for_at_each_scrape() -> None:
    values: dict[tuple[str, ...], float] = {("m", "source"): 7}
    page = Readings("x", "Text.", ("migration", "side"), lambda: values)
    assert 'x{migration="m",side="source"} 7\n' in exposition([page])
    values["m", "source"] = (1 << 40) + 1
    assert " 1099511627777\n" in exposition([page])  # a rate of rounded sums would jump
    values.clear()
    assert exposition([page]) == "# HELP x Text.\n# TYPE x gauge\n"


def test_sizes_for_people() -> None:
    assert [size(each) for each in (0, 1023, 1536, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
    ]


def test_a_page_without_migrations() -> None:
    status = {
        "shutting_down": True,
        "listen": "migration0",
        "disable_tls": True,
        "tls": {"server": {"trouble": "its key is\x1b[2J gone"}},
        "migrations": [],
    }
    text = report(status)
    assert "draining" in text
    assert "TLS: OFF" in text
    assert "\x1b" not in text
    assert "no migrations" in text
    assert troubled(status)
