"""What Calico stores beside the fields we know is kept, whatever we change around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from libtortie.datastore.codec import decode, encode
from libtortie.model.keys import ResourceKey, parse_path
from libtortie.model.resources import Resource
from tests.fakes.calico_texts import changed, changed_text, stored_texts

PLAIN = stored_texts("calico_etcd.txt")
UNKNOWN = stored_texts("calico_etcd_unknown.txt")
CREATED = ',"creationTimestamp":"2026-08-22T13:30:00Z"'


def test_every_kind_has_a_variant_with_more_at_every_level() -> None:
    assert list(UNKNOWN) == list(PLAIN)
    for path, text in UNKNOWN.items():
        wire = json.loads(text)
        levels = [wire]
        if isinstance(parse_path(path), ResourceKey):
            levels += [wire["metadata"], wire["spec"]]
        assert all(any(name.startswith("future") for name in level) for level in levels), path


@pytest.mark.parametrize("path", UNKNOWN)
def test_unknown_fields_survive_both_ways(path: str) -> None:
    key, text = parse_path(path), UNKNOWN[path]
    assert encode(key, decode(key, text.encode())).decode() == text


@pytest.mark.parametrize("path", UNKNOWN)
def test_a_change_beside_unknown_fields_changes_nothing_else(path: str) -> None:
    key, text = parse_path(path), UNKNOWN[path]
    assert encode(key, changed(decode(key, text.encode()))).decode() == changed_text(text)


SPECS: list[tuple[str, dict[str, Any], str, str]] = [
    ("/ippools/", {"disabled": True}, '"blockSize"', '"disabled":true,"blockSize"'),
    ("/bgppeers/", {"as_number": 7}, '"asNumber":64513', '"asNumber":7'),
    ("/workloadendpoints/", {"mac": "02:00:00:00:00:01"}, "c6:12:8f:0a:5e:31", "02:00:00:00:00:01"),
    ("/clusterinformations/", {"datastore_ready": False}, 'Ready":true', 'Ready":false'),
    ("/bgpconfigurations/", {"listen_port": 178}, '"listenPort":179', '"listenPort":178'),
    ("/felixconfigurations/", {"reporting_interval": "1s"}, 'Interval":"0s"', 'Interval":"1s"'),
    ("/tiers/", {"order": 10.0}, '"order":1000000', '"order":10'),
    ("/ipamconfigurations/", {"strict_affinity": True}, 'Affinity":false', 'Affinity":true'),
]


@pytest.mark.parametrize(("part", "change", "old", "new"), SPECS, ids=[part for part, *_ in SPECS])
def test_a_change_in_the_spec_changes_nothing_else(
    part: str, change: dict[str, Any], old: str, new: str
) -> None:
    (path,) = (path for path in UNKNOWN if part in path)
    key, text = parse_path(path), UNKNOWN[path]
    value = decode(key, text.encode())
    assert isinstance(value, Resource)
    spec = value.spec.model_copy(update=change)  # type: ignore[attr-defined]  # every kind's own
    assert old in text
    again = encode(key, value.model_copy(update={"spec": spec})).decode()
    assert again == text.replace(old, new, 1)


def every(wire: Any, rearranged: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The same JSON with every object rearranged, at every depth."""
    if isinstance(wire, dict):
        return rearranged({key: every(value, rearranged) for key, value in wire.items()})
    if isinstance(wire, list):
        return [every(value, rearranged) for value in wire]
    return wire


@pytest.mark.parametrize("path", UNKNOWN)
def test_unknown_fields_are_kept_wherever_they_stand(path: str) -> None:
    key, text = parse_path(path), UNKNOWN[path]
    backwards = every(json.loads(text), lambda wire: dict(reversed(wire.items())))
    value = decode(key, json.dumps(backwards).encode())
    assert value == decode(key, text.encode())
    assert json.loads(encode(key, value)) == json.loads(text)


@pytest.mark.parametrize("path", [path for path in PLAIN if "creationTimestamp" in PLAIN[path]])
@pytest.mark.parametrize("texts", [PLAIN, UNKNOWN], ids=["plain", "unknown"])
def test_a_null_creation_time_of_older_writers_is_none(texts: dict[str, str], path: str) -> None:
    key, text = parse_path(path), texts[path]
    older = text.replace(CREATED, ',"creationTimestamp":null')
    assert older != text
    assert encode(key, decode(key, older.encode())).decode() == text.replace(CREATED, "")
