"""A trouble is told once, and again when it is another or comes back."""

from __future__ import annotations

from libtortie.complaint import Complaint
from libtortie.errors import Unavailable
from tests.fakes.agent_world import RecordingLog


def test_a_trouble_is_told_once_until_it_is_over_or_another() -> None:
    log = RecordingLog()
    complaint = Complaint(log, "it_waits")
    for reason in ("a", "a", "b", "a", "", "a", ""):
        complaint.about(reason)
    assert [line["reason"] for line in log.of("it_waits")] == ["a", "b", "a", "a"]


def test_a_lost_watch_says_of_what_why_and_until_when() -> None:
    log = RecordingLog()
    complaint = Complaint(log, "api_watch_lost")
    for delay in (0.26, 0.5):
        complaint.watch_lost("Migration", Unavailable("refused\nand more"), delay)
    (line,) = log.of("api_watch_lost")
    assert line["reason"] == "Unavailable: refused"
    assert (line["kind"], line["retry_seconds"]) == ("Migration", 0.3)
