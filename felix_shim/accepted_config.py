"""Which node.yaml an agent of this node has accepted: the way for keys that a newer one knows.

In a rollout the configuration is the new one on all nodes, and agents of the version before are
started with it, too. One that does not know a key goes on without it, and says so (it is not
ready), if all that it does know is what this node had before. Otherwise a wrong name stands where a
right one did, and what that would have said is missing: that is refused, as on a new node.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cni_plugin.durable import replace_file
from libtortie.files import read_text
from libtortie.jsonlog import Log

FILE = "accepted-config"
Place = tuple[str, ...]


def digest_of(data: Mapping[str, Any]) -> str:
    """What stands for a configuration; passwords are not in it."""
    text = json.dumps(data, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def without(data: Mapping[str, Any], places: Sequence[Place]) -> dict[str, Any]:
    """A configuration without some keys, each by its way from the top."""
    kept = dict(data)
    for first, *rest in places:
        if rest and isinstance(kept.get(first), Mapping):
            kept[first] = without(kept[first], [tuple(rest)])
        else:
            kept.pop(first, None)
    return {key: value for key, value in kept.items() if value != {} or data.get(key) == {}}


def is_accepted(state_dir: str, digest: str) -> bool:
    """Whether the last one that an agent of this node understood whole was this."""
    try:
        return read_text(Path(state_dir) / FILE).strip() == digest
    except OSError:
        return False


def accept(state_dir: str, digest: str, unknown: Sequence[str], log: Log) -> None:
    """Remember one that was understood whole (a disk that is full forgets it), or tell why not."""
    if unknown:
        log.warning("config_keys_unknown", keys=unknown)
    elif digest and not is_accepted(state_dir, digest):
        with suppress(OSError):
            replace_file(Path(state_dir) / FILE, f"{digest}\n".encode(), 0o600)
