"""A reconciler on its bench that is the target of a migration, and the migration's end."""

from __future__ import annotations

from tests.fakes.agent_world import NODE, Bench, endpoint_record, instance, migration

CONVERGENCE = 30.0
"""Seconds for which a raised route outlives its migration, by default."""


def target_bench(phase: str = "Running", bench: Bench | None = None) -> Bench:
    """A node that is the target of a migration, before the VM arrives."""
    bench = bench or Bench()
    bench.kernel.add_link("up0")
    bench.start(objects=(migration("m1", phase, source="src", target="tgt"), instance("n0")))
    bench.attach(endpoint_record("tgt", migration="m1"))
    return bench


def succeed(bench: Bench) -> None:
    """The API says that the VM has arrived."""
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"), instance(NODE))
