"""The log's file across agents that were killed in the middle of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from libtortie.jsonlog import open_log


@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("{}\n", "{}\n"), ('{}\n{"event": "ha', '{}\n{"event": "ha\n')],
)
def test_a_line_is_one_line_whatever_was_before(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "node.log"
    path.write_text(before)
    open_log(str(path), "info", "n1").info("again")
    text = path.read_text()
    assert text.startswith(after)
    (line,) = text.removeprefix(after).splitlines()
    assert line.startswith("{") and '"event": "again"' in line


def test_a_log_that_is_no_file_is_only_written(tmp_path: Path) -> None:
    open_log("/dev/null", "info", "n1").info("gone")
    open_log(str(tmp_path / "new" / "node.log"), "info", "n1").info("here")
    assert '"event": "here"' in (tmp_path / "new" / "node.log").read_text()
