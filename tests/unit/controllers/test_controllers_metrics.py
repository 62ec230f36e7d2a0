"""What passes of the collector count, by what they found and did."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, ip_network
from typing import Any

import pytest

from controllers.gc import Collector, Settings
from controllers.metrics import PassMetrics, PoolState, pool_states
from ipam.gc import Means
from libtortie.errors import Unavailable
from libtortie.metrics import exposition
from libtortie.model.ipam import Handle
from libtortie.model.keys import Blocks, HandleKey, Handles, Kind, Resources
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.gc_world import Town
from tests.fakes.ipam_world import UNHURRIED

GRACE = 900.0
POOLS = Resources(Kind.IP_POOL)


class Away(FaultyStore):
    def list(self, scope: object) -> Any:
        raise Unavailable("nobody there")


@dataclass
class Bench:
    """Passes over a town, each of its own, an hour apart."""

    town: Town = field(default_factory=Town)
    metrics: PassMetrics = field(default_factory=PassMetrics)

    def __post_init__(self) -> None:
        self.store: Any = self.town.world.store
        self.town.start("app")

    def passes(self, count: int, *, dry_run: bool = False) -> dict[str, str]:
        """So many passes of one collector; what a scrape says then."""
        stop = _Ending(self.town, count)
        means = Means(
            self.store,
            self.town.reader,
            self.town.world.now,
            monotonic=lambda: self.town.seconds,
            sleep=lambda _: None,
            retry=UNHURRIED,
        )
        settings = Settings(grace=GRACE, period=GRACE, dry_run=dry_run)
        Collector(means, settings, stop, _nothing, _nothing, self.metrics).run()
        return self.scrape()

    def scrape(self) -> dict[str, str]:
        lines = exposition(self.metrics.all()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: value for name, _, value in pairs}


class _Ending(threading.Event):
    """Set after so many waits, each of which is time passing."""

    def __init__(self, town: Town, waits: int) -> None:
        super().__init__()
        self._town, self._left = town, waits

    def wait(self, timeout: float | None = None) -> bool:
        self._town.seconds += 3600
        self._left -= 1
        if self._left <= 0:
            self.set()
        return self.is_set()


def _nothing(_: object) -> None:
    """Says nothing."""


@pytest.fixture
def bench() -> Bench:
    return Bench()


def leak(bench: Bench, name: str = "web") -> None:
    bench.town.start(name)
    bench.town.remove_pod(name)


def test_before_the_first_pass_there_was_no_success(bench: Bench) -> None:
    said = bench.scrape()
    assert said["tortie_gc_passes_total"] == "0"
    assert said["tortie_gc_last_success_timestamp_seconds"] == "0"
    assert said["ipam_allocations_in_use"] == "0"


def test_a_leak_is_seen_once_and_freed_once(bench: Bench) -> None:
    leak(bench)
    said = bench.passes(1)
    assert said['tortie_gc_leaks_seen_total{kind="address"}'] == "1"
    assert 'tortie_gc_leaks_freed_total{kind="address"}' not in said
    assert said["ipam_allocations_in_use"] == "2"
    assert said["ipam_allocations_gc_candidates"] == "1"
    assert said["ipam_blocks"] == "1"
    leak(bench, "other")
    said = bench.passes(3)
    assert said['tortie_gc_leaks_freed_total{kind="address"}'] == "2"
    assert said["tortie_gc_passes_total"] == "4"
    assert said["tortie_gc_pass_seconds_count"] == "4"
    assert said["ipam_allocations_in_use"] == "1"
    assert said["ipam_allocations_gc_candidates"] == "0"


def test_what_waits_from_pass_to_pass_was_seen_before(bench: Bench) -> None:
    leak(bench)
    said = bench.passes(4, dry_run=True)
    assert said["tortie_gc_passes_total"] == "4"
    assert said['tortie_gc_leaks_seen_total{kind="address"}'] == "1"


def test_a_dry_run_frees_nothing(bench: Bench) -> None:
    leak(bench)
    assert not any("freed" in name for name in bench.passes(4, dry_run=True))


def test_what_could_not_be_freed_is_not_counted_as_freed(bench: Bench) -> None:
    leak(bench)
    bench.town.kube.fail(Unavailable("away"), verb="get", plural="pods", times=100)
    assert not any("freed" in name for name in bench.passes(3))


def test_other_kinds_have_their_own_count(bench: Bench) -> None:
    bench.town.world.store.create(HandleKey("orphan"), Handle({IPv4Network("10.65.0.0/26"): 1}))
    said = bench.passes(2)
    assert said['tortie_gc_leaks_seen_total{kind="handle"}'] == "1"
    assert said['tortie_gc_leaks_freed_total{kind="handle"}'] == "1"
    assert 'tortie_gc_leaks_seen_total{kind="address"}' not in said


def test_success_is_a_pass_that_knew_who_lives(bench: Bench) -> None:
    now = bench.town.world.now().timestamp()
    assert float(bench.passes(1)["tortie_gc_last_success_timestamp_seconds"]) == now
    bench.metrics = PassMetrics()
    bench.town.kube.fail(Unavailable("away"), verb="list", plural="pods")
    said = bench.passes(1)
    assert said["tortie_gc_passes_total"] == "1"
    assert said['tortie_gc_failures_total{reason="api"}'] == "1"
    assert said["tortie_gc_last_success_timestamp_seconds"] == "0"


def test_without_an_api_it_does_not_fail(bench: Bench) -> None:
    bench.town.reader = None
    said = bench.passes(1)
    assert said["tortie_gc_last_success_timestamp_seconds"] != "0"
    assert not any("failures" in name for name in said)


def test_a_datastore_that_is_away_is_a_failure_and_no_pass(bench: Bench) -> None:
    bench.store = Away(bench.store)
    said = bench.passes(2)
    assert said['tortie_gc_failures_total{reason="datastore"}'] == "2"
    assert said["tortie_gc_passes_total"] == "0"
    assert said["tortie_gc_last_success_timestamp_seconds"] == "0"


def test_how_full_pools_are() -> None:
    bench = Bench()
    said = bench.passes(1)
    blocks = bench.store.list(Blocks(4)).records
    held = sum(one is not None for record in blocks for one in record.value.allocations)
    assert held > 0
    assert _total(said, "tortie_ipam_pool_used") == held
    assert _total(said, "tortie_ipam_pool_blocks") == len(blocks)
    pools = {ip_network(pool.value.spec.cidr) for pool in bench.store.list(POOLS).records}
    for pool in pools:
        (labels,) = [name for name in said if f'cidr="{pool}"' in name and "capacity" in name]
        assert said[labels] == str(pool.num_addresses)
    assert said["tortie_ipam_handles"] == str(len(bench.store.list(Handles()).records))


def _total(said: dict[str, str], name: str) -> int:
    return sum(int(value) for series, value in said.items() if series.startswith(f"{name}{{"))


def test_blocks_of_no_pool_are_not_lost_and_what_cooled_down_is_free() -> None:
    bench = Bench()
    (record, *_) = bench.store.list(Blocks(4)).records
    states = pool_states((), [record.value], lambda block: block)
    assert states == {("", ""): PoolState(0, states["", ""].used, 1)}
    free = replace(record.value, allocations=(None,) * len(record.value.allocations))
    assert pool_states((), [record.value], lambda _: free)["", ""].used == 0


def test_verdicts_by_kind_and_outcome() -> None:
    bench = Bench()
    bench.town.start("gone")
    bench.town.remove_pod("gone")
    assert bench.passes(1)['tortie_gc_verdicts{kind="address",outcome="wait"}'] == "1"
    assert bench.passes(1)['tortie_gc_verdicts{kind="address",outcome="keep"}'] == "1"
