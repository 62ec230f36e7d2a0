"""docs/metrics.md from the code: every metric that a component serves, as it describes itself.

`python -m tests.fakes.metric_reference` puts the tables into the page, in place of the old ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cni_plugin.calls import CallMetrics
from controllers.candidate import leads_gauge
from controllers.metrics import PassMetrics
from felix_shim.bird_daemon import bird_metrics
from felix_shim.cni_workers import Workers
from felix_shim.config import NodeConfig
from felix_shim.courtesy import Courtesy
from felix_shim.gate import Gate
from felix_shim.hand_over import HandOver
from felix_shim.inbox import Inbox
from felix_shim.keeper import Past
from felix_shim.monitor import gauges
from felix_shim.nat_moves import NatMoves
from felix_shim.owners import OwnerKeeper
from felix_shim.peering import peer_metrics
from felix_shim.plugin_kubeconfig import KubeconfigKeeper
from felix_shim.roster import Roster
from felix_shim.telemetry import Telemetry
from libtortie.jsonlog import NullLog
from libtortie.metrics import Metric
from migration_proxy.daemon import readings
from migration_proxy.telemetry import Speed
from migration_proxy.telemetry import Telemetry as ProxyTelemetry

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
NOBODY = cast(Any, None)
"""In place of what is only asked at a scrape."""


def of_agent() -> tuple[Metric, ...]:
    """What `tortie-node` serves when it has all it may have."""
    owners = OwnerKeeper(NOBODY, NullLog(), lambda: 0.0)
    return (
        *Telemetry().all(),
        *gauges(Inbox(), Roster(), owners),
        *CallMetrics().all(),
        *Workers((), NullLog(), lambda *_: None, lambda _: None).metrics(),
        *Gate(NullLog(), NOBODY).metrics(),
        *bird_metrics(NodeConfig(nodename="n1")),
        *HandOver(NOBODY, NOBODY, NOBODY, NullLog(), lambda: 0.0).metrics(),
        *peer_metrics(lambda: 0.0, lambda: 0.0),
        KubeconfigKeeper(Path("/none"), NOBODY, NullLog()).metric(),
        *Courtesy().metrics(),
        *NatMoves(NullLog(), NOBODY).metrics(),
        Past().metric(),
    )


def of_controllers() -> tuple[Metric, ...]:
    """What `tortie-controllers gc` serves."""
    return (*PassMetrics().all(), leads_gauge(lambda: False))


def of_proxy() -> tuple[Metric, ...]:
    """What `tortie-migration-proxy` serves."""
    return (*ProxyTelemetry().metrics(), *readings(NOBODY, Speed()))


COMPONENTS: Mapping[str, Sequence[Metric]] = {
    "tortie-node": of_agent(),
    "tortie-controllers": of_controllers(),
    "tortie-migration-proxy": of_proxy(),
}


def table(metrics: Sequence[Metric]) -> Iterator[str]:
    """One component's, by name."""
    yield "| metric | kind | labels | |"
    yield "|---|---|---|---|"
    for one in sorted(metrics, key=lambda metric: metric.name):
        labels = ", ".join(f"`{name}`" for name in one.labels)
        yield f"| `{one.name}` | {one.kind} | {labels} | {one.text} |"


def written(page: str) -> str:
    """The page with the tables of this code."""
    for component, metrics in COMPONENTS.items():
        begin, end = f"<!-- {component} -->\n", "<!-- end -->"
        body = "".join(f"{line}\n" for line in table(metrics))
        pattern = re.compile(f"{re.escape(begin)}.*?{end}", re.DOTALL)
        found = pattern.search(page)
        if found is None:
            raise ValueError(f"{PAGE} has no place for {component}: {begin.strip()} … {end}")
        page = f"{page[: found.start()]}{begin}{body}{end}{page[found.end() :]}"
    return page


def names() -> frozenset[str]:
    """Every series' name there can be."""
    found: set[str] = set()
    for one in (metric for metrics in COMPONENTS.values() for metric in metrics):
        suffixes = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
        found.update(f"{one.name}{suffix}" for suffix in suffixes)
    return frozenset(found)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
