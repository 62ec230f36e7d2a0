"""The cells of a pod's row: how many containers are ready, and one word for its state. Pure.

Source: what `kubectl get pods` shows ("Debug Pods", "Pod Lifecycle").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lab.apiserver.errors import Json


def _statuses(body: Json) -> list[Json]:
    return (body.get("status") or {}).get("containerStatuses") or []


def ready(body: Json) -> str:
    """`1/2`: containers ready, of those in the spec."""
    wanted = len((body.get("spec") or {}).get("containers") or ())
    return f"{sum(bool(one.get('ready')) for one in _statuses(body))}/{wanted}"


def restarts(body: Json) -> int:
    """Restarts of all containers."""
    return sum(int(one.get("restartCount") or 0) for one in _statuses(body))


def status(body: Json) -> str:
    """The phase, or the most telling reason why it is not Running."""
    state = body.get("status") or {}
    meta = body["metadata"]
    if meta.get("deletionTimestamp"):
        return "Unknown" if state.get("reason") == "NodeLost" else "Terminating"
    word = str(state.get("reason") or state.get("phase") or "Unknown")
    for reason in _reasons(_statuses(body)):
        word = reason
    return word


def _reasons(statuses: list[Json]) -> Iterator[str]:
    """What holds containers up, the first container's last."""
    for one in reversed(statuses):
        state: Any = one.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            yield str(waiting["reason"])
        elif ended.get("reason"):
            yield str(ended["reason"])
        elif ended:
            signal = ended.get("signal")
            yield f"Signal:{signal}" if signal else f"ExitCode:{ended.get('exitCode', 0)}"


def gates(body: Json) -> str:
    """`1/2`: readiness gates fulfilled, of all; `<none>` without any."""
    asked = (body.get("spec") or {}).get("readinessGates") or ()
    wanted = [one.get("conditionType") for one in asked]
    conditions = (body.get("status") or {}).get("conditions") or []
    true = {one.get("type") for one in conditions if one.get("status") == "True"}
    return f"{sum(one in true for one in wanted)}/{len(wanted)}" if wanted else "<none>"
