"""How long pods wait for policy, as a conflist says; any other file is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from libtortie.errors import InvalidInput
from tortiectl.preflight.read_network import conflist_timeout


def test_the_seconds_of_the_plugin(tmp_path: Path) -> None:
    plugin: dict[str, Any] = {"type": "tortie", "policy_setup_timeout_seconds": 7}
    path = tmp_path / "10-tortie.conflist"
    path.write_text(json.dumps({"plugins": [{"type": "portmap"}, plugin]}))
    assert conflist_timeout(path) == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "not JSON"),
        ("\udcff", "not JSON"),
        ('{"plugins": 7}', "no plugin of type"),
        ("[]", "no plugin of type"),
    ],
)
def test_what_is_no_conflist_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.conflist"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(InvalidInput, match=rf"x\.conflist: {words}"):
        conflist_timeout(path)
