"""Kubernetes' strategic merge patch for the built-in kinds. Pure.

Mappings merge as in a merge patch. A list whose elements have a merge key merges element by
element; a set of plain values is united; any other list is replaced. Directives: `$patch`
(`replace`, `delete`, `merge`) in a mapping or list element, `$retainKeys`,
`$deleteFromPrimitiveList/<list>` and `$setElementOrder/<list>`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from lab.apiserver.errors import ApiError

# Field name → merge key. The names are unambiguous among the kinds served here, except `ports`,
# which only merges in containers (a NetworkPolicy's lists around its ports are replaced whole).
MERGE_KEYS: Mapping[str, str] = {
    "conditions": "type",
    "addresses": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "ports": "containerPort",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "secrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "hostIPs": "ip",
}
SETS = frozenset({"finalizers", "podCIDRs"})
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_DIRECTIVES = ("$patch", "$retainKeys")


def strategic_merge(target: Any, patch: Any) -> Any:
    """Apply a patch to an object. Raises 400 for malformed directives."""
    if not isinstance(patch, Mapping):
        raise ApiError(400, "BadRequest", "a strategic merge patch is an object")
    merged = _merge_map(target if isinstance(target, Mapping) else {}, patch)
    return {} if merged is None else merged


def _merge_map(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any] | None:
    """Merge two mappings; None when the patch deletes the whole."""
    directive = patch.get("$patch", "merge")
    if directive == "delete":
        return None
    if directive == "replace":
        return _bare_map(patch)
    if directive != "merge":
        raise ApiError(400, "BadRequest", f"unknown $patch directive {directive!r}")
    result = dict(target)
    retain = patch.get("$retainKeys")
    if retain is not None:
        if not isinstance(retain, list):
            raise ApiError(400, "BadRequest", "$retainKeys is not a list")
        result = {key: value for key, value in result.items() if key in retain}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            _delete_from(result, key.removeprefix(_DELETE_FROM), value)
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(result, key, value)
        elif key not in _DIRECTIVES and not key.startswith((_DELETE_FROM, _ORDER)):
            raise ApiError(400, "BadRequest", f"unknown directive {key!r}")
    for key, value in patch.items():
        if key.startswith(_ORDER):
            _reorder(result, key.removeprefix(_ORDER), value)
    return result


def _merge_field(result: dict[str, Any], key: str, value: Any) -> None:
    """One field of a patch, in place on our own copy."""
    old = result.get(key)
    if value is None:
        result.pop(key, None)
    elif isinstance(value, Mapping):
        merged = _merge_map(old if isinstance(old, Mapping) else {}, value)
        if merged is None:
            result.pop(key, None)
        else:
            result[key] = merged
    elif isinstance(value, list):
        result[key] = _merge_list(key, old if isinstance(old, list) else [], value)
    else:
        result[key] = value


def _merge_list(name: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if name in SETS:
        if any(not isinstance(item, str) for item in patch):
            raise ApiError(400, "BadRequest", f"{name}: elements must be strings")
        return old + [item for item in dict.fromkeys(patch) if item not in old]
    merge_key = MERGE_KEYS.get(name)
    if merge_key is None:
        return [_bare(item) for item in patch if not _is_directive(item, "replace")]
    if any(not isinstance(item, Mapping) for item in patch):
        raise ApiError(400, "BadRequest", f"{name}: elements must be objects")
    if any(item == {"$patch": "replace"} for item in patch):
        return [_bare(item) for item in patch if item != {"$patch": "replace"}]
    result = list(old)
    for item in patch:
        if merge_key not in item:
            raise ApiError(400, "BadRequest", f"{name}: an element has no {merge_key}")
        _merge_element(result, merge_key, item)
    return result


def _merge_element(result: list[Any], merge_key: str, item: Mapping[str, Any]) -> None:
    """Merge, delete, or append one element of a keyed list."""
    wanted = item[merge_key]
    places = [
        place
        for place, old in enumerate(result)
        if isinstance(old, Mapping) and old.get(merge_key) == wanted
    ]
    old = result[places[0]] if places else {}
    merged = _merge_map(old, item)
    if merged is None:
        for place in reversed(places):
            del result[place]
    elif places:
        result[places[0]] = merged
    else:
        result.append(merged)


def _delete_from(result: dict[str, Any], name: str, values: Any) -> None:
    if not isinstance(values, list):
        raise ApiError(400, "BadRequest", f"{_DELETE_FROM}{name} is not a list")
    old = result.get(name)
    if isinstance(old, list):
        result[name] = [item for item in old if item not in values]


def _reorder(result: dict[str, Any], name: str, order: Any) -> None:
    """Bring listed elements into the given order; unlisted ones keep their place behind."""
    if not isinstance(order, list):
        raise ApiError(400, "BadRequest", f"{_ORDER}{name} is not a list")
    found = result.get(name)
    if not isinstance(found, list):
        return
    merge_key = MERGE_KEYS.get(name, "")

    def identity(item: Any) -> Any:
        return item.get(merge_key) if isinstance(item, Mapping) else item

    wanted = [identity(item) for item in order]
    result[name] = sorted(
        found,
        key=lambda item: wanted.index(identity(item)) if identity(item) in wanted else len(wanted),
    )


def _is_directive(item: Any, directive: str) -> bool:
    return isinstance(item, Mapping) and item == {"$patch": directive}


def _bare(value: Any) -> Any:
    """A deep copy without directives: what a new value becomes."""
    if isinstance(value, Mapping):
        return _bare_map(value)
    if isinstance(value, list):
        return [_bare(item) for item in value]
    return copy.copy(value)


def _bare_map(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _bare(item) for key, item in value.items() if not key.startswith("$")}
