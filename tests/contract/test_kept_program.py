"""The agent's keeper as real processes: who dies, who follows, who never stays behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from felix_shim.keeper import CRASHED, STOPS
from tests.fakes.kept_program import WAITS, KeptProgram, alive, kill
from tests.fakes.node_process import until

Start = Callable[..., KeptProgram]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[KeptProgram] = []

    def work(*words: str, **options: Any) -> KeptProgram:
        made.append(KeptProgram(tmp_path, *words, **options))
        return made[-1]

    yield work
    for one in made:
        one.close()


def test_a_killed_agent_is_followed_and_the_next_knows(start: Start) -> None:
    program = start()
    first = program.agent()
    assert program.said("agent") == [(first, "0")]
    kill(first)
    second = program.agent(1)
    assert second not in (first, program.process.pid)
    assert program.said("agent")[1][1] == "1 SIGKILL"
    (line,) = program.told("agent_died")
    assert (line["pid"], line["how"], line["pause_seconds"]) == (first, "SIGKILL", 0.0)
    assert Path(f"/proc/{second}/comm").read_text() == "tortie-node\n"
    assert Path(f"/proc/{program.process.pid}/comm").read_text() == "tortie-keeper\n"


@pytest.mark.parametrize("number", STOPS)
def test_what_the_keeper_is_told_ends_both(start: Start, number: signal.Signals) -> None:
    program = start()
    agent = program.agent()
    program.process.send_signal(number)
    assert program.ends() == 0
    assert not alive(agent)
    assert len(program.pids()) == 1


def test_an_agents_own_status_after_a_stop_is_the_keepers(start: Start) -> None:
    program = start(
        "past = keeper.keep()\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "say('agent'); signal.pause()"
    )
    program.agent()
    program.process.terminate()
    assert program.ends() == 5


def test_every_signal_reaches_the_agent_once(start: Start) -> None:
    """Also what a terminal sends to all that run in it; the second one means haste."""
    program = start(
        "past = keeper.keep()\n"
        "count = []\n"
        "def heard(*_):\n"
        "    count.append(1); say('heard')\n"
        "    if len(count) == 2: sys.exit(0)\n"
        "signal.signal(signal.SIGINT, heard)\n"
        "say('agent')\n"
        "while True: time.sleep(60)"
    )
    program.agent()
    os.killpg(program.process.pid, signal.SIGINT)
    until("it hears", lambda: program.said("heard"))
    assert alive(program.agent())
    os.killpg(program.process.pid, signal.SIGINT)
    assert program.ends() == 0
    assert len(program.said("heard")) == 2


def test_a_killed_keeper_takes_its_agent_along(start: Start) -> None:
    program = start()
    agent = program.agent()
    kill(program.process.pid)
    until("the agent is gone", lambda: not alive(agent))


def test_a_keeper_that_dies_before_its_agent_has_asked_for_that(start: Start) -> None:
    """Between fork and prctl the kernel knows of no promise."""
    program = start(
        "asked = keeper.die_with\n"
        "def late(parent):\n"
        "    say('agent')\n"
        "    while os.getppid() == parent: time.sleep(0.001)\n"
        "    return asked(parent)\n"
        "keeper.die_with = late\n"
        "past = keeper.keep(); say('lives'); signal.pause()"
    )
    agent = program.agent()
    kill(program.process.pid)
    until("the agent is gone", lambda: not alive(agent))
    assert program.said("lives") == []


def test_a_stopped_agent_hears_that_it_is_to_end(start: Start) -> None:
    program = start()
    agent = program.agent()
    os.kill(agent, signal.SIGSTOP)
    until("it stands", lambda: " (tortie-node) T " in Path(f"/proc/{agent}/stat").read_text())
    program.process.terminate()
    assert program.ends() == 0


@pytest.mark.parametrize("_", range(4))
def test_a_stop_while_agents_come_and_go_leaves_nobody(start: Start, _: int) -> None:
    """One that is told just as it kills itself was killed; none comes after."""
    program = start(
        "keeper.LONG_LIFE = 0.0\n"
        "past = keeper.keep(); say('agent'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    program.agent(3)
    program.process.terminate()
    assert program.ends() in (0, 128 + signal.SIGKILL)
    assert not any(map(alive, program.pids()))
    assert not program.told("agent_given_up")


def test_agents_that_die_at_once_are_given_up(start: Start) -> None:
    program = start(
        "keeper.PAUSES = (0.0, 0.0, 0.05, 0.1)\n"
        "past = keeper.keep(); say('agent'); os._exit(keeper.CRASHED)"
    )
    assert program.ends() == CRASHED
    assert len(program.said("agent")) == 4
    pauses = [line["pause_seconds"] for line in program.told("agent_died")]
    assert pauses == [0.0, 0.05, 0.1]
    (line,) = program.told("agent_given_up")
    assert line["how"] == "status 70"


def test_a_keeper_that_pauses_can_be_stopped(start: Start) -> None:
    program = start(
        "keeper.PAUSES = (0.0, 3600.0)\n"
        "past = keeper.keep(); say('agent'); os._exit(keeper.CRASHED)"
    )
    until("it pauses", lambda: program.told("agent_died"))
    program.process.terminate()
    assert program.ends() == 0
    assert len(program.said("agent")) == 1


@pytest.mark.parametrize("status", [0, 1, 2])
def test_an_agent_that_ends_by_itself_is_the_end(start: Start, status: int) -> None:
    program = start(f"past = keeper.keep(); say('agent'); sys.exit({status})")
    assert program.ends() == status
    assert len(program.said("agent")) == 1
    assert program.told("agent_died") == []


def test_changed_files_are_a_fresh_keeper(start: Start) -> None:
    program = start()
    first, keeper = program.agent(), program.process.pid
    program.write(WAITS.replace("'agent'", "'agent', 'new'"))
    kill(first)
    second = program.agent(1)
    assert program.said("agent")[1] == (second, "new 0")
    assert program.told("keeper_begins_anew")
    assert program.process.pid == keeper
    program.process.terminate()
    assert program.ends() == 0


def test_files_that_are_gone_are_for_the_supervisor(start: Start) -> None:
    program = start()
    first = program.agent()
    (program.root / "script.py").unlink()
    kill(first)
    assert program.ends() == 2  # Python's: there is no such file
    assert len(program.said("agent")) == 1


def test_where_there_are_threads_nobody_is_forked(start: Start) -> None:
    program = start(
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n" + WAITS
    )
    assert program.agent() == program.process.pid
    (line,) = program.told("keeper_impossible")
    assert line["threads"] == 2


def test_whoever_started_it_may_ignore_its_children_or_a_hangup(start: Start) -> None:
    """A parent's ignored signals are inherited: statuses are told all the same, nohup(1) works."""
    program = start(before=["env", "--ignore-signal=CHLD,HUP"])
    first = program.agent()
    kill(first)
    second = program.agent(1)
    program.process.send_signal(signal.SIGHUP)
    kill(second)
    program.agent(2)
    program.process.terminate()
    assert program.ends() == 0


@pytest.mark.root
def test_as_process_1_it_reaps_strangers_and_their_ends_mean_nothing(start: Start) -> None:
    """A container's first process: whoever loses its parent there is its child."""
    orphan = "os.fork() or (os.fork() and os._exit(0)) or (time.sleep(0.2), os._exit(0))\n"
    program = start(
        "past = keeper.keep()\n" + 3 * orphan + "say('born', past.agents)\n"
        "def children(): return Path('/proc/1/task/1/children').read_text().split()\n"
        "while len(children()) < 2 and not past.agents: time.sleep(0.01)\n"
        "while len(children()) > 1: time.sleep(0.01)\n"
        "say('alone')\n"
        "if not past.agents: os.kill(os.getpid(), signal.SIGKILL)\n"
        "signal.pause()",
        before=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
    )
    until("the second is alone", lambda: len(program.said("alone")) == 2)
    assert [rest for _, rest in program.said("born")] == ["0", "1"]
