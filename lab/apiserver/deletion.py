"""How an object goes: grace, finalizers, and what becomes of its dependents. Pure.

Sources: Kubernetes, "Finalizers", "Owners and Dependents", "Garbage Collection".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from lab.apiserver import errors
from lab.apiserver.errors import Json
from lab.apiserver.kind import Kind

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
_POLICIES = {"Orphan": (ORPHAN,), "Foreground": (FOREGROUND,), "Background": ()}


def timestamp(moment: datetime) -> str:
    """RFC 3339, whole seconds, UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def finalizers(body: Json) -> list[str]:
    """Finalizers still set."""
    return list(body["metadata"].get("finalizers") or ())


def deleting(kind: Kind, old: Json, options: Mapping[str, Any], now: datetime) -> Json | None:
    """`old` marked for deletion, or None when it may go at once. Raises 400 and 422.

    A pod on a node goes gracefully when it or the request says so with a positive period; the
    kubelet then deletes it with period 0. An object that is to orphan its dependents, or to
    outlive them, waits for the collector, by a finalizer.
    """
    grace = _grace(kind, old, options)
    held = _held(kind, old, options)
    if not held and grace == 0:
        return None
    meta = dict(old["metadata"])
    if held != finalizers(old):
        meta["finalizers"] = held
    if meta.get("deletionTimestamp"):
        if grace < int(meta.get("deletionGracePeriodSeconds") or 0):
            meta["deletionGracePeriodSeconds"] = grace
    else:
        meta["deletionTimestamp"] = timestamp(now + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
        meta["generation"] = int(meta.get("generation", 1)) + 1
    return {**old, "metadata": meta}


def _held(kind: Kind, old: Json, options: Mapping[str, Any]) -> list[str]:
    """The finalizers of an object that is deleted with these options."""
    policy, orphan = options.get("propagationPolicy"), options.get("orphanDependents")
    name = old["metadata"]["name"]
    if policy is not None and orphan is not None:
        why = "Invalid value: orphanDependents and propagationPolicy cannot be both set"
        raise errors.invalid("", "DeleteOptions", name, "propagationPolicy", why)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if policy is None:
        return finalizers(old)
    if policy not in _POLICIES:
        known = ", ".join(f'"{one}"' for one in (*sorted(_POLICIES), "nil"))
        why = f'Unsupported value: "{policy}": supported values: {known}'
        raise errors.refused(
            "", "DeleteOptions", name, [("propagationPolicy", "FieldValueNotSupported", why)]
        )
    own = [one for one in finalizers(old) if one not in (ORPHAN, FOREGROUND)]
    return [*own, *_POLICIES[policy]]


def _grace(kind: Kind, old: Json, options: Mapping[str, Any]) -> int:
    if kind.resource != "pods":
        return 0
    spec, status = old.get("spec") or {}, old.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    period = spec.get("terminationGracePeriodSeconds", 0) if asked is None else asked
    if not isinstance(period, int) or period < 0:
        raise errors.bad_request("gracePeriodSeconds is not a non-negative number")
    return period


def finished(body: Json) -> bool:
    """Whether an object being deleted has nothing left to wait for."""
    meta = body["metadata"]
    graceful = int(meta.get("deletionGracePeriodSeconds") or 0) > 0
    return bool(meta.get("deletionTimestamp")) and not finalizers(body) and not graceful
