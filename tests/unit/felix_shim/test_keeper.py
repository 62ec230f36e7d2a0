"""What follows an agent's end: another, now or later, or the keeper's own."""

from __future__ import annotations

import errno
import os
import re
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from felix_shim import agent, keeper
from felix_shim.keeper import (
    CRASHED,
    LONG_LIFE,
    PAUSES,
    REFUSED,
    Another,
    Ended,
    Over,
    Past,
    decide,
    one_life,
    program_files,
)
from tests.fakes.agent_world import RecordingLog

KILLED = -int(signal.SIGKILL)
TERM = int(signal.SIGTERM)
DIED = (KILLED, -int(signal.SIGSEGV), -int(signal.SIGABRT), -int(signal.SIGHUP), CRASHED)


@pytest.mark.parametrize("status", DIED)
def test_one_that_died_is_followed_at_once(status: int) -> None:
    assert decide(Ended(status, LONG_LIFE), 5) == Another(0.0, 0)
    assert decide(Ended(status, 0.0), 0) == Another(0.0, 1)


@pytest.mark.parametrize("status", [0, REFUSED, 2, 77])
def test_one_that_ended_by_itself_is_not(status: int) -> None:
    assert decide(Ended(status, 3600.0), 0) == Over(status)


@pytest.mark.parametrize(("status", "last"), [(KILLED, 137), (CRASHED, CRASHED)])
def test_ever_longer_pauses_and_then_the_end(status: int, last: int) -> None:
    quick, pauses = 0, []
    while isinstance(verdict := decide(Ended(status, LONG_LIFE - 0.1), quick), Another):
        pauses.append(verdict.pause)
        quick = verdict.quick
    assert verdict == Over(last)
    assert pauses == list(PAUSES[1:])
    assert pauses[0] == 0.0
    assert all(one <= other for one, other in pairwise(pauses))


def test_a_long_life_makes_good_for_all_that_was_before() -> None:
    quick = len(PAUSES) - 1
    assert isinstance(decide(Ended(KILLED, 0.0), quick), Over)
    assert decide(Ended(KILLED, LONG_LIFE), quick) == Another(0.0, 0)


@pytest.mark.parametrize(
    ("status", "ends"),
    [(0, 0), (-TERM, 0), (CRASHED, CRASHED), (REFUSED, REFUSED), (KILLED, 137)],
)
def test_one_that_was_told_to_stop_is_never_followed(status: int, ends: int) -> None:
    """Dying of the very signal is obeying it, before the agent can do so in order."""
    assert decide(Ended(status, 0.0, frozenset({TERM})), 0) == Over(ends)
    assert decide(Ended(status, 99.0, frozenset({TERM})), 0) == Over(ends)


def test_an_agent_that_the_machine_has_no_process_for_is_as_one_that_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", none_left)
    log = RecordingLog()
    ended = one_life(set(), set(), log)
    assert ended == Ended(CRASHED, 0.0)
    assert log.of("agent_not_begun") == [
        {"reason": f"[Errno {errno.EAGAIN}] Resource temporarily unavailable"}
    ]
    assert decide(ended, 0) == Another(0.0, 1)


def test_an_agent_that_fails_on_its_first_steps_is_no_second_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(keeper, "die_with", lambda _: True)
    monkeypatch.setattr(os, "setpgid", refused)
    with pytest.raises(PermissionError):
        one_life(set(), set(), RecordingLog())


def test_words() -> None:
    assert Ended(KILLED, 0).words == "SIGKILL"
    assert Ended(-63, 0).words == "signal 63"
    assert Ended(CRASHED, 0).words == "status 70"


def test_what_an_agent_is_told() -> None:
    assert Past().fields() == {}
    past = Past(3, "SIGKILL")
    assert past.fields() == {"after": "SIGKILL", "restarts": 3}
    assert "tortie_agent_restarts_total 3" in "\n".join(past.metric().lines())


def test_a_program_is_its_interpreter_and_its_modules() -> None:
    files = program_files()
    assert agent.__file__ in files
    assert all(Path(one).exists() for one in files)


def test_systemd_does_not_stop_the_keeper_when_the_kernel_took_the_agents_memory() -> None:
    unit = (Path(agent.__file__).parents[1] / "conf/systemd/tortie-node.service").read_text()
    assert re.search(r"^OOMPolicy=continue$", unit, re.MULTILINE)
    assert re.search(r"^KillMode=process$", unit, re.MULTILINE)
