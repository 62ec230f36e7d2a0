"""A migration that costs connections out of the cluster is told of: once, and only such a one."""

from __future__ import annotations

import pytest

from felix_shim.cluster import POOLS
from felix_shim.events import Stored
from libtortie.metrics import exposition
from tests.fakes.agent_world import Bench, endpoint_record, migration
from tests.fakes.migrating_bench import succeed, target_bench
from tests.fakes.overlay_bench import pool_record


def pool(bench: Bench, cidr: str = "10.65.0.0/16", *, nat: bool = True) -> None:
    bench.tell(Stored(POOLS, pool_record("Never", cidr, natOutgoing=nat)))


def told(bench: Bench) -> list[str]:
    return [text for _, text in bench.warned if "natOutgoing" in text]


def counted(bench: Bench) -> str:
    return exposition(bench.reconciler.metrics())


def test_a_target_of_such_a_pool_is_told_of_once() -> None:
    bench = Bench()
    pool(bench)
    target_bench(bench=bench)
    assert len(told(bench)) == 0, "the lists of the start say that there is no pool"
    pool(bench)
    assert len(told(bench)) == 1
    assert told(bench)[0].startswith("IP pool pool has natOutgoing: this VM's connections")
    bench.sign("tgt")
    succeed(bench)
    bench.advance(100)
    assert len(told(bench)) == 1
    assert 'tortie_migrations_with_nat_outgoing_total{pool="pool"} 1' in counted(bench)
    assert bench.log.of("nat_outgoing_migration")[0]["migration_uid"] == "m1"


@pytest.mark.parametrize(("cidr", "nat"), [("10.65.0.0/16", False), ("10.66.0.0/16", True)])
def test_other_pools_are_none_of_it(cidr: str, nat: bool) -> None:
    bench = target_bench()
    pool(bench, cidr, nat=nat)
    bench.sign("tgt")
    succeed(bench)
    assert told(bench) == []


def test_the_next_migration_is_told_of_again() -> None:
    bench = target_bench()
    pool(bench)
    bench.sign("tgt")
    succeed(bench)
    bench.advance(100)
    bench.detach(endpoint_record("tgt", migration="m1"))
    bench.seen(migration("m2", source="tgt2", target="back"))
    bench.attach(endpoint_record("back", migration="m2"))
    assert len(told(bench)) == 2


def test_a_vm_that_goes_nowhere_is_not_told_of() -> None:
    bench = Bench()
    bench.start()
    pool(bench)
    bench.attach(endpoint_record("vm"))
    assert told(bench) == []
