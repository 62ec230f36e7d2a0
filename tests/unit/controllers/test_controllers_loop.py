"""The loop of `tortie-controllers gc`: when it looks again, when it gives up, what it tells."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from controllers.gc import SPACING_SECONDS, TROUBLE_SECONDS, Collector, Settings
from controllers.report import SHOWN, counts, line, text
from ipam.annals import Annals
from ipam.gc import Means
from ipam.gc_inventory import Inventory
from libtortie.datastore.port import Record, Value
from libtortie.errors import Unauthorized, Unavailable
from libtortie.history import Direct, history, keep
from libtortie.model.history import Fact, What
from libtortie.model.keys import Affinities, History, Key, Scope
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.gc_world import BOTH, Town
from tests.fakes.ipam_world import START, UNHURRIED


@dataclass
class Waits(threading.Event):
    """An event whose waiting is time passing; it is set after so many waits."""

    town: Town
    left: int = 3
    waited: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        self.town.seconds += timeout
        self.left -= 1
        if self.left <= 0:
            self.set()
        return self.is_set()


@dataclass
class Bench:
    """A collector over a town."""

    town: Town = field(default_factory=Town)
    said: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stop = Waits(self.town)
        self.store: Any = self.town.world.store

    def collector(self, **settings: Any) -> Collector:
        history = Direct(self.store, "test")
        means = Means(
            self.store,
            self.town.reader,
            self.town.world.now,
            monotonic=lambda: self.town.seconds,
            sleep=lambda _: None,
            retry=UNHURRIED,
            annals=Annals("tortie-controllers", self.town.world.now, history.write),
        )
        wanted = Settings(**{"grace": 900.0, "period": 450.0} | settings)
        return Collector(
            means, wanted, self.stop, self.say, self.complaints.append, history=history
        )

    def say(self, line: Iterable[str]) -> None:
        self.said.append("".join(line))


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.town.start("app")
    return made


def leak(bench: Bench) -> None:
    bench.town.start("web")
    bench.town.remove_pod("web")


def test_what_it_frees_is_kept_and_what_is_too_old_goes(bench: Bench) -> None:
    leak(bench)
    old = Fact(START - timedelta(days=99), What.GRANTED, "n1")
    keep(bench.store, [old], "before")
    assert bench.collector(grace=0.0, once=True).run()
    (fact,) = history(bench.store).facts
    assert (fact.what, fact.by, fact.pod) == (What.RELEASED, "tortie-controllers", "web")
    assert bench.complaints == []


def test_a_dry_run_leaves_the_history_alone(bench: Bench) -> None:
    leak(bench)
    keep(bench.store, [Fact(START - timedelta(days=99), What.GRANTED, "n1")], "before")
    assert bench.collector(grace=0.0, once=True, dry_run=True).run()
    assert [one.what for one in history(bench.store).facts] == [What.GRANTED]


def test_a_history_that_is_refused_is_complained_of_once_and_frees_all_the_same(
    bench: Bench,
) -> None:
    class Refusing(FaultyStore):
        def create(self, key: Key, value: Value) -> Record:
            raise Unauthorized("create historyrecords: 403")

        def names(self, scope: Scope) -> tuple[Key, ...]:
            if isinstance(scope, History):
                raise Unauthorized("list historyrecords: 403")
            return super().names(scope)

    leak(bench)
    bench.store = Refusing(bench.store)
    assert bench.collector(grace=0.0, period=0.0).run()
    assert len(bench.town.held) == 1
    assert bench.complaints == [
        "history: list historyrecords: 403",
        "history: create historyrecords: 403",
    ]


def test_with_nothing_to_do_it_looks_every_period(bench: Bench) -> None:
    assert bench.collector().run()
    assert bench.stop.waited == [450.0] * 3


def test_what_waits_is_looked_at_when_it_is_due(bench: Bench) -> None:
    leak(bench)
    assert bench.collector(period=10_000.0).run()
    assert bench.stop.waited == [900.0, 10_000.0, 10_000.0]
    assert len(bench.town.held) == 1


def test_however_short_the_period_there_is_a_pause(bench: Bench) -> None:
    leak(bench)
    assert bench.collector(grace=0.0, period=0.0).run()
    assert bench.stop.waited == [SPACING_SECONDS] * 3


@pytest.mark.parametrize(("period", "pause"), [(450.0, TROUBLE_SECONDS), (5.0, 5.0)])
def test_a_datastore_that_is_away_is_asked_again(bench: Bench, period: float, pause: float) -> None:
    class Away(FaultyStore):
        def list(self, scope: object) -> Any:
            raise Unavailable("nobody there")

    bench.store = Away(bench.store)
    assert bench.collector(period=period).run()
    assert bench.stop.waited == [pause] * 3
    assert bench.complaints == ["nobody there"] * 3
    bench.stop = Waits(bench.town)
    assert not bench.collector(once=True).run()
    assert bench.stop.waited == []


def test_once_looks_twice_only_if_something_is_doubtful(bench: Bench) -> None:
    assert bench.collector(once=True).run()
    assert bench.stop.waited == []
    leak(bench)
    assert bench.collector(once=True).run()
    assert bench.stop.waited == [900.0]
    assert len(bench.town.held) == 1


def test_once_and_dry_looks_once(bench: Bench) -> None:
    leak(bench)
    assert bench.collector(once=True, dry_run=True).run()
    assert bench.stop.waited == []
    assert len(bench.town.held) == 2


def test_once_stopped_while_it_waits_frees_nothing(bench: Bench) -> None:
    leak(bench)
    bench.stop.left = 1
    assert bench.collector(once=True).run()
    assert len(bench.town.held) == 2


def test_once_fails_when_the_api_says_nothing_and_not_when_there_is_none(bench: Bench) -> None:
    bench.town.kube.fail(Unavailable("away"), verb="list", plural="nodes")
    assert not bench.collector(once=True).run()
    assert bench.complaints == ["what the API does not speak for is kept: nodes: away"]
    bench.town.reader = None
    assert bench.collector(once=True).run()


def test_the_pass_in_numbers_in_words_and_as_json(bench: Bench) -> None:
    town = bench.town
    (address,) = town.start("web")
    town.remove_pod("web")
    town.rewrite(address, {"namespace": "shop", "pod": "web", "node": "n2"})
    town.start("both", "n2", want=BOTH)
    swept = town.sweep()
    assert counts(swept) == {
        "ipam_allocations_in_use": 4,
        "ipam_allocations_borrowed": 1,
        "ipam_allocations_gc_candidates": 1,
        "ipam_allocations_gc_reclamations": 0,
        "ipam_blocks": 3,
    }
    told = list(text(swept, dry_run=False))
    assert told[0].startswith(f"wait (in 900 s): {address} of handle k8s-pod-network.c-web: pod ")
    assert len(told) == 2
    assert len(list(text(swept, dry_run=True))) == len(swept.verdicts) + 1
    body = json.loads("".join(line(swept, START, dry_run=False)))
    assert body["time"] == "2026-08-22T13:30:00Z"
    assert [one["kind"] for one in body["verdicts"]] == ["address"]
    full = json.loads("".join(line(swept, START, dry_run=True)))
    assert len(full["verdicts"]) == len(swept.verdicts)


def test_of_many_reasons_for_not_knowing_a_few_are_shown(bench: Bench) -> None:
    for number in range(10):
        bench.town.start(f"p{number}")
    bench.town.kube.fail(Unavailable("away"), verb="list", plural="pods")
    swept = bench.town.sweep()
    told = list(text(swept, dry_run=False))
    assert len(told) == SHOWN + 2
    assert told[SHOWN] == f"keep ({11 - SHOWN}): unknown, for {11 - SHOWN} more reasons"
    body = json.loads("".join(line(swept, START, dry_run=False)))
    assert body["verdicts"] == []
    assert body["unknown"]["count"] == 11
    assert [one["count"] for one in body["unknown"]["reasons"]] == [1] * SHOWN
    assert body["unknown"]["reasons"][0]["reason"].endswith(": away")
    assert len(json.loads("".join(line(swept, START, dry_run=True)))["verdicts"]) == len(
        swept.verdicts
    )


def test_a_pass_gives_up_what_the_one_before_saw(bench: Bench) -> None:
    """A large cluster's records fill the memory once, never twice."""
    alive: list[int] = []

    class Counting(FaultyStore):
        def list(self, scope: Any) -> Any:
            if scope == Affinities():
                alive.append(sum(isinstance(one, Inventory) for one in gc.get_objects()))
            return super().list(scope)

    gc.collect()
    bench.store = Counting(bench.store)
    assert bench.collector().run()
    assert len(alive) > 2
    assert set(alive) == {alive[0]}


def test_cycles_are_not_searched_for_during_a_pass_and_are_after_it(bench: Bench) -> None:
    searched: list[bool] = []

    class Asking(FaultyStore):
        def list(self, scope: Any) -> Any:
            searched.append(gc.isenabled())
            raise Unavailable("away")

    bench.store = Asking(bench.store)
    assert bench.collector().run()
    assert set(searched) == {False}
    assert gc.isenabled()
