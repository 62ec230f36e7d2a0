"""Keeper, agent and worker together: whichever dies, one agent with one worker serves, or none."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from cni_plugin.frame import Response
from felix_shim.keeper import LONG_LIFE
from libtortie.errors import Unavailable
from libtortie.linux.space import MOST_IDLE
from tests.fakes.kept_program import alive, kill
from tests.fakes.node_process import DEADLINE, until
from tests.netns.test_agent_cni_workers import PODS, Crowd, crowd_on

pytestmark = pytest.mark.root
ORDERS = [*permutations(("keeper", "agent", "worker")), ("worker",), ("agent",), ("keeper",)]


class KeptCrowd(Crowd):
    """Pods that call a node that has all three."""

    def pids(self) -> dict[str, int]:
        """Keeper, agent and worker that serve now."""
        assert self.node.agent is not None
        keeper = self.node.agent.pid
        return {"keeper": keeper, "agent": _children(keeper)[0], "worker": self.worker()}

    def follow(self, *, kept: bool) -> dict[str, int]:
        """The three that serve after those that died."""
        served = len(self.node.lines("cni_worker_serves"))
        if not kept:
            assert self.node.agent is not None
            self.node.agent.wait(DEADLINE)
            self.node.start()
        until("its worker serves", lambda: len(self.node.lines("cni_worker_serves")) > served)
        return self.pids()

    def add(self) -> None:
        """One ADD and one DEL of each pod, all at once, come to a good end."""
        for verb in ("ADD", "DEL"):
            calls = [self.call(verb, pod) for pod in PODS]
            assert [call.result(DEADLINE).code for call in calls] == [0, 0, 0]


def _children(pid: int) -> list[int]:
    def read() -> list[int]:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    return until("it has a child", read)


def _open_files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [str(one.readlink()) for one in folder.iterdir() if one.is_symlink()]


def _kinds(pid: int) -> Counter[str]:
    """How many descriptors of each kind a process has."""
    return Counter(one.split(":")[0] for one in _open_files(pid))


def _end_badly(calls: tuple[Future[Response], ...]) -> None:
    for call in calls:
        with pytest.raises((Unavailable, OSError)):  # the executable makes code 11 of it
            call.result(DEADLINE)


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[KeptCrowd]:
    with crowd_on(KeptCrowd, tmp_path, "kw", 19092, kept=True) as made:
        yield made


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_whichever_are_killed_in_mid_add_in_whatever_order(
    crowd: KeptCrowd, order: tuple[str, ...]
) -> None:
    """Stopped first, each dies only when its turn comes, or with whom it may not outlive."""
    with ExitStack() as stack:
        calls = crowd.two(stack)
        pids = crowd.pids()
        if len(order) == 3:
            for name in ("keeper", "agent", "worker"):
                os.kill(pids[name], signal.SIGSTOP)
        for name in order:
            if alive(pids[name]):
                kill(pids[name])
        if order == ("worker",):
            until("it is told", lambda: crowd.node.lines("cni_worker_lost"))
            (gone,) = until("its call ends", lambda: [one for one in calls if one.done()])
            _end_badly((gone,))
            assert alive(pids["agent"])
            until("it is buried", lambda: not Path("/proc", str(pids["worker"])).exists())
        else:
            until("all of them are gone", lambda: not any(map(alive, _below(order, pids))))
            _end_badly(calls)
    if order != ("worker",):
        now = crowd.follow(kept="keeper" not in order)
        assert not {now["agent"], now["worker"]} & {pids["agent"], pids["worker"]}
        assert crowd.number("tortie_cni_workers") == 1
    crowd.add()
    assert crowd.node.lines("agent_failed") == []  # no two at once
    assert crowd.node.stop() == 0


def _below(order: tuple[str, ...], pids: dict[str, int]) -> list[int]:
    return [pids["agent"], pids["worker"], *([pids["keeper"]] if "keeper" in order else [])]


def test_a_stop_of_the_keeper_waits_for_what_a_worker_has(crowd: KeptCrowd) -> None:
    with ExitStack() as stack:
        calls = crowd.two(stack)
        pids = crowd.pids()
        os.kill(pids["keeper"], signal.SIGTERM)
        until("no more is taken", lambda: not (crowd.node.root / "run" / "cni.sock").exists())
        assert alive(pids["worker"])
    assert [call.result(DEADLINE).code for call in calls] == [0, 0]
    assert crowd.node.agent is not None
    assert crowd.node.agent.wait(DEADLINE) == 0
    assert not any(map(alive, pids.values()))


def test_nothing_grows_over_many_calls_and_agents(crowd: KeptCrowd) -> None:
    """Descriptors, zombies, threads of the keeper; and the lock is the agent's alone."""
    first = crowd.pids()
    keeper = _kinds(first["keeper"])
    for _ in range(5):
        crowd.add()
    before = {name: _kinds(crowd.pids()[name]) for name in ("agent", "worker")}
    for _ in range(30):
        crowd.add()
    until("descriptors of calls are closed", lambda: _none_more(crowd, before))
    for name in ("keeper", "worker"):
        assert not [one for one in _open_files(first[name]) if one.endswith("agent.lock")]
    assert len([one for one in _open_files(first["agent"]) if one.endswith("agent.lock")]) == 1
    _kill_agents(crowd, 5)
    began = time.monotonic()  # more in a row, each of a short life, would be given up
    until("one has lived long", lambda: time.monotonic() - began > LONG_LIFE)
    _kill_agents(crowd, 5)
    now = crowd.pids()
    assert now["keeper"] == first["keeper"]
    assert _kinds(now["keeper"]) == keeper
    assert _children(now["keeper"]) == [now["agent"]]
    assert _children(now["agent"]) == [now["worker"]]
    assert Path("/proc", str(now["worker"]), "comm").read_text() == "tortie-worker\n"
    assert crowd.number("tortie_agent_restarts_total") == 10
    crowd.add()
    until("the last one has no more than the first", lambda: _none_more(crowd, before))


def _kill_agents(crowd: KeptCrowd, count: int) -> None:
    for _ in range(count):
        kill(crowd.pids()["agent"])
        crowd.follow(kept=True)


def _none_more(crowd: KeptCrowd, before: dict[str, Counter[str]]) -> bool:
    pids = crowd.pids()
    more = (_kinds(pids[name]) - counts for name, counts in before.items())
    return all(one.total() <= MOST_IDLE for one in more)


def test_on_one_core_there_is_no_worker(crowd: KeptCrowd) -> None:
    crowd.node.stop()
    del crowd.node.config["cni_workers"]
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        crowd.node.start()
    finally:
        os.sched_setaffinity(0, mine)
    assert crowd.number("tortie_cni_workers") == 0
    crowd.add()
    assert len(crowd.node.lines("cni_worker_serves")) == 1  # of the first start
