"""The pages every program serves: `/metrics` for Prometheus, `/livez` and `/readyz` for probes.

`/livez` fails for what a restart cures and for nothing else; `/readyz` for whatever keeps the
program from its work now. Both name each check and what is wrong with it, but only to those who
are let in; others get the status and one word. `/healthz` is `/readyz` by its older name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from libtortie.metrics import CONTENT_TYPE, Metric, exposition
from libtortie.serving import Answer, Asked, Page

PROBES = frozenset({"/livez", "/readyz", "/healthz"})
"""Served to everybody: a kubelet's probe has neither token nor certificate."""

Findings = Mapping[str, str]
"""By check what is wrong; empty where nothing is."""


@dataclass(frozen=True, slots=True)
class Health:
    """Asked at each probe; answers at once."""

    live: Callable[[], Findings]
    ready: Callable[[], Findings]


def pages(metrics: Callable[[], Sequence[Metric]], health: Health) -> dict[str, Page]:
    """By path."""

    def scraped(_: Asked) -> Answer:
        return Answer(exposition(metrics()), CONTENT_TYPE)

    def ready(asked: Asked) -> Answer:
        return probe(health.ready(), trusted=asked.trusted)

    def live(asked: Asked) -> Answer:
        return probe(health.live(), trusted=asked.trusted)

    return {"/metrics": scraped, "/livez": live, "/readyz": ready, "/healthz": ready}


def probe(findings: Findings, *, trusted: bool = True) -> Answer:
    """200 if all is well, else 503; a line for each check, what is wrong first."""
    well = not any(findings.values())
    lines = [f"[-]{name}: {wrong}" for name, wrong in sorted(findings.items()) if wrong]
    lines += [f"[+]{name}" for name, wrong in sorted(findings.items()) if not wrong]
    words = ["ok" if well else "not ok", *(lines if trusted else ())]
    body = "".join(f"{' '.join(line.split())}\n" for line in words)
    return Answer(body, status=200 if well else 503)
