"""docs/reference.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from scripts.reference import page


def test_the_page_is_up_to_date() -> None:
    """Else: `make reference`."""
    assert (Path(__file__).resolve().parents[2] / "docs" / "reference.md").read_text() == page()
