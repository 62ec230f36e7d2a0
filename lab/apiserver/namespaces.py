"""A namespace goes with everything in it: marked first, removed with the last object inside."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from lab.apiserver import errors
from lab.apiserver.deletion import finished, timestamp
from lab.apiserver.errors import ApiError, Json
from lab.apiserver.kind import Kind

if TYPE_CHECKING:
    from lab.apiserver.api import Api


def check_namespace(api: Api, kind: Kind, namespace: str, name: str) -> None:
    """The namespace of a new object exists and is not being deleted. Raises 403 and 404."""
    found = api.store.get("namespaces", ("", namespace))
    if found is None:
        raise errors.not_found("namespaces", namespace)
    if found["metadata"].get("deletionTimestamp"):
        text = (
            f'{kind.resource} "{name}" is forbidden: unable to create new content in '
            f"namespace {namespace} because it is being terminated"
        )
        raise ApiError(403, "Forbidden", text)


def delete_namespace(api: Api, old: Json, now: datetime) -> Json | None:
    """Mark it and delete what is in it; None when it is gone, else what is left. Raises 409."""
    name = old["metadata"]["name"]
    if not old["metadata"].get("deletionTimestamp"):
        marked = {
            **old,
            "metadata": {**old["metadata"], "deletionTimestamp": timestamp(now)},
            "status": {**(old.get("status") or {}), "phase": "Terminating"},
        }
        version = old["metadata"]["resourceVersion"]
        api.store.put("namespaces", ("", name), marked, expected=version)
    for kind in api.catalogue.kinds:
        if kind.namespaced:
            for body in api.store.list(kind.resource, name)[0]:
                try:
                    api.delete(kind, name, body["metadata"]["name"])
                except ApiError as error:
                    if error.code != 404:
                        raise
    finish_namespace(api, name)
    return api.store.get("namespaces", ("", name))


def finish_namespace(api: Api, name: str) -> None:
    """Remove a namespace that is being deleted once it is empty."""
    found = api.store.get("namespaces", ("", name))
    if found is None or not finished(found):
        return
    for kind in api.catalogue.kinds:
        if kind.namespaced and api.store.list(kind.resource, name)[0]:
            return
    try:
        version = found["metadata"]["resourceVersion"]
        api.store.remove("namespaces", ("", name), expected=version)
    except ApiError as error:
        if error.reason != "Conflict":  # another thread removed it
            raise
