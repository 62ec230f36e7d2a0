"""Rules of the house that no linter knows: sizes, and a reason for each silenced line."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES, MOST_LINES_OF_FUNCTION = 500, 60
SILENCED = re.compile(r"# type: ignore(?!\[[a-z-]+(, ?[a-z-]+)*\]  # \S)")


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Every module's text by its path, as it stands in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\n") if name]
    found = {str(path.relative_to(ROOT)): path.read_text() for path in paths if path.exists()}
    assert len(found) > 1000
    return found


def test_no_file_is_too_long(sources: dict[str, str]) -> None:
    lengths = {name: text.count("\n") for name, text in sources.items()}
    assert {name: count for name, count in lengths.items() if count > MOST_LINES} == {}


def test_no_function_is_too_long(sources: dict[str, str]) -> None:
    lengths = {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, text in sources.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in lengths.items() if count > MOST_LINES_OF_FUNCTION} == {}


def test_each_silenced_type_error_has_a_reason(sources: dict[str, str]) -> None:
    silent = [
        f"{name}:{number}"
        for name, text in sources.items()
        if name != Path(__file__).relative_to(ROOT).as_posix()
        for number, line in enumerate(text.splitlines(), 1)
        if SILENCED.search(line)
    ]
    assert silent == []
