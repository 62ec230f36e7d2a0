"""Calico's stored texts, by path, and small changes to what they hold.

`calico_etcd.txt` is what Calico stores of each kind. `calico_etcd_unknown.txt` is the same with
fields that we do not know or do not use, at the top, in the metadata, in the spec, and deeper.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from libtortie.datastore.port import Value
from libtortie.model.history import Facts
from libtortie.model.ipam import AffinityState, Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.resources import Resource

GOLDEN = Path(__file__).parents[1] / "unit" / "libtortie" / "golden"


def stored_texts(name: str) -> dict[str, str]:
    """The texts of a golden file."""
    found: dict[str, str] = {}
    for entry in (GOLDEN / name).read_text(encoding="utf-8").strip().split("\n\n"):
        path, text = entry.split("\n", 1)
        found[path] = text
    return found


def changed(value: Value) -> Value:
    """The value with one field changed that we know."""
    match value:
        case Block():
            return replace(value, sequence_number=value.sequence_number + 1)
        case BlockAffinity():
            return replace(value, state=AffinityState.PENDING)
        case Handle():
            return replace(value, blocks={cidr: count + 1 for cidr, count in value.blocks.items()})
        case IPAMConfig():
            return replace(value, cooldown_seconds=31)
        case Facts():
            raise AssertionError("the history is not Calico's")
        case Resource():
            labels = {**value.metadata.labels, "a-label": "new"}
            metadata = value.metadata.model_copy(update={"labels": labels})
            return value.model_copy(update={"metadata": metadata})


def changed_text(text: str) -> str:
    """What is to be stored of a value so changed: not a byte differs elsewhere."""
    for old, new in (
        ('"labels":{', '"labels":{"a-label":"new",'),
        ('"ownerReferences":', '"labels":{"a-label":"new"},"ownerReferences":'),
        ('"sequenceNumber":1787405400000000004', '"sequenceNumber":1787405400000000005'),
        ('"state":"confirmed"', '"state":"pending"'),
        ('{"10.250.0.4/30":1}', '{"10.250.0.4/30":2}'),
        ('"ipCooldownSeconds":30', '"ipCooldownSeconds":31'),
    ):
        if old in text:
            return text.replace(old, new, 1)
    raise AssertionError(f"nothing to change in {text}")
