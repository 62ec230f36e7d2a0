"""What fails for long is tried again now and then, however much happens meanwhile."""

from __future__ import annotations

from libtortie.errors import KernelError
from tests.fakes.agent_world import Bench, endpoint_record
from tests.fakes.migrating_bench import target_bench

MOST_A_MINUTE = 60 // 5 + 1
"""Attempts, at the longest delay between two of them."""


def test_a_full_disk_is_written_to_as_often_as_before_whatever_happens() -> None:
    bench = target_bench()
    bench.disk_broken = True
    for _ in range(120):
        bench.raised("172.31.1.9")
        bench.raised("")
        bench.advance(1)
    began = len(bench.log.of("apply_failed"))
    bench.advance(0)
    for _ in range(600):
        bench.advance(0.1)
    assert 0 < len(bench.log.of("apply_failed")) - began <= MOST_A_MINUTE
    bench.disk_broken = False
    bench.advance(5)
    assert bench.log.of("apply_recovered")


def test_many_routes_that_fail_are_tried_together() -> None:
    bench = Bench()
    bench.start()
    tries: list[str] = []

    def refuse(operation: str, subject: str) -> None:
        if operation == "ensure_route":
            tries.append(subject)
            bench.clock.now += 0.0005  # as long as the kernel may take to refuse
            raise KernelError(f"{operation} {subject}")

    bench.kernel.namespaces.before = refuse
    pods = [f"web{number}" for number in range(20)]
    for number, pod in enumerate(pods):
        bench.attach(endpoint_record(pod, vm=False, address=f"10.65.0.{number + 2}"))
    for _ in range(600):
        bench.advance(0.1)
    tries.clear()
    for _ in range(600):
        bench.advance(0.1)
    assert 0 < len(tries) <= 20 * (MOST_A_MINUTE + 2), "and two that look at everything"
    bench.kernel.namespaces.before = lambda *_: None
    bench.advance(6)
    routes = [bench.metrics(pod, f"10.65.0.{number + 2}") for number, pod in enumerate(pods)]
    assert routes == [[1024]] * 20


def test_rules_that_are_refused_for_long_leave_nothing_behind() -> None:
    bench = Bench()
    bench.start()
    bench.nft_broken = True
    bench.attach(endpoint_record("web", vm=False))
    for _ in range(600):
        bench.advance(5)
    chores = bench.reconciler._chores
    assert len(chores._policy_jobs) <= 1
    assert len(chores._job_serials) <= 1
    bench.nft_broken = False
    bench.advance(5)
    assert bench.metrics("web") == [1024]
