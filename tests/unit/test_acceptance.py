"""The tables of tests/e2e/README.md: every row is there, and every test that a row names."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "e2e" / "README.md"
ROWS = ("1", "2", "3", "4", "5", "6", "7a", "7b", "7c", "7d", "7e", "7f", "FV")
TEST = re.compile(r"\[(?P<words>[^]]+)\]\((?P<file>[^)]+\.py)\) `(?P<test>test_\w+)`")


def rows(heading: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def functions_of(file: Path) -> dict[str, str]:
    """The test functions of a module, and what their docstrings say."""
    found = ast.parse(file.read_text()).body
    functions = [one for one in found if isinstance(one, ast.FunctionDef)]
    return {one.name: ast.get_docstring(one) or "" for one in functions}


def asked_by(cell: str) -> tuple[Path, str]:
    """The test that a row names."""
    match = TEST.fullmatch(cell)
    assert match is not None, cell
    file = (PAGE.parent / match["file"]).resolve()
    assert file.name == match["words"], cell
    return file, match["test"]


def test_the_whole_list_is_there_and_every_row_is_asked_by_a_test() -> None:
    table = rows("Calico's acceptance list")
    assert tuple(dict.fromkeys(row[0] for row in table)) == ROWS
    for row in table:
        file, test = asked_by(row[-1])
        assert test in functions_of(file), row


def test_a_test_that_says_its_row_is_that_rows() -> None:
    said = {}
    for file in PAGE.parent.glob("test_*.py"):
        for test, words in functions_of(file).items():
            for match in re.finditer(r"Row (\w+): ", words):
                said[match[1]] = (file, test)
    assert {row for row in said if row not in ROWS} == set()
    listed = {row[0]: asked_by(row[-1]) for row in rows("Calico's acceptance list")}
    assert {row: listed[row] for row in said} == said


@pytest.mark.parametrize(
    ("heading", "least"),
    [
        ("Live migration as asked for", 16),
        ("The state machine, and beyond", 20),
        ("Field reports", 40),
    ],
)
def test_every_row_is_asked_by_a_test(heading: str, least: int) -> None:
    table = rows(heading)
    assert len(table) >= least
    for row in table:
        file, test = asked_by(row[-1])
        assert test in functions_of(file), row
