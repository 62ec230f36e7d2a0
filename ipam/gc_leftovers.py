"""Records beside IPAM's that nobody needs any more: told, and left to whoever made them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .gc import Opinions
from .gc_cluster import kube_name
from .gc_verdicts import Unknown

SHOWN = 3


def leftovers(seen: Opinions) -> Iterator[str]:
    """A line for each kind: stored Nodes without their node, endpoints of pods that are gone.

    Only what is known: an API that does not say who lives makes nothing a leftover.
    """
    nodes, pods = seen.cluster.nodes, seen.cluster.pods
    if not isinstance(nodes, Unknown):
        lost = [name for name, one in seen.inventory.nodes.items() if kube_name(one)]
        yield from _line("Nodes of removed nodes", [name for name in lost if name not in nodes])
    if not isinstance(pods, Unknown):
        gone = [
            f"{one.namespace}/{one.name}"
            for one in seen.inventory.endpoints
            if one.kubernetes and one.pod and (one.namespace, one.pod) not in pods
        ]
        yield from _line("WorkloadEndpoints of pods that are gone", gone)


def _line(what: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        more = ", …" if len(names) > SHOWN else ""
        yield f"{len(names)} {what}: {', '.join(sorted(names)[:SHOWN])}{more}"
