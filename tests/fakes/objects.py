"""Bodies of Kubernetes objects, as a client sends them."""

from __future__ import annotations

from typing import Any


def named(name: str, **more: Any) -> dict[str, Any]:
    """A body of any kind; `metadata` is joined with the name."""
    meta = {"name": name, **more.pop("metadata", {})}
    return {"metadata": meta, **more}


def body(kind: str, name: str, api: str = "v1", **more: Any) -> dict[str, Any]:
    """A body that says what it is."""
    return {"apiVersion": api, "kind": kind, **named(name, **more)}


def reference(owner: dict[str, Any]) -> dict[str, Any]:
    """An ownerReference as controllers write it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod(name: str, *, owner: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A pod of one container on node1."""
    spec = {"nodeName": "node1", "containers": [{"name": "main", "image": "pause"}]}
    meta = more.pop("metadata", {})
    if owner is not None:
        meta["ownerReferences"] = [reference(owner)]
    return body("Pod", name, spec=spec | more.pop("spec", {}), metadata=meta, **more)
