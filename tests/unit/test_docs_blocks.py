"""Every block of the documentation is run by a test, or says why it is not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.doc_pages import (
    INFOS,
    NOT_RUN,
    PAGES,
    ROOT,
    STAGES,
    Block,
    Command,
    blocks,
    commands,
    shape,
    unsaid,
)

EXCUSED = {
    "README.md": 2,
    "admission.md": 1,
    "bgp.md": 1,
    "hosts.md": 4,
    "migrate-from-calico.md": 2,
    "runbook.md": 3,
    "vm-operators.md": 1,
}
"""How many blocks of a page no test runs. One more needs a better reason than that it fails."""
PROGRAMS = re.compile(
    r"^(\$ )?(\S*/)?(tortie\S*|lab|kubectl|helm|make|python3?|systemctl|openssl|nft|ip|curl|sed)\s"
)
BY_PAGE = {page: list(blocks(page)) for page in PAGES}
ALL = [block for found in BY_PAGE.values() for block in found]


def test_every_block_says_what_it_is() -> None:
    strange = [f"{one}: {one.info!r}" for one in ALL if not _known(one.info)]
    assert strange == []


def _known(info: str) -> bool:
    return info in INFOS or len(info.removeprefix(NOT_RUN)) in range(10, len(info))


def test_what_is_not_run_is_a_short_list_with_reasons() -> None:
    found = Counter(one.page for one in ALL if one.info.startswith(NOT_RUN))
    assert found == EXCUSED


def test_no_command_hides_in_a_block_of_another_kind() -> None:
    hidden = [
        f"{one}: {line}"
        for one in ALL
        if one.info in ("yaml", "json", "text")
        for line in one.text.splitlines()
        if PROGRAMS.match(line) and not re.match(r"\S+ {2,}", line)
    ]
    assert hidden == []


def test_each_page_with_commands_has_a_test_that_runs_them() -> None:
    assert {one.page for one in ALL if one.runs} == set(STAGES)
    for stage in set(STAGES.values()):
        assert (ROOT / stage).exists(), stage


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("n1 Skylake-Server -", "n1   Skylake-Server  -", True),
        ("n1 Skylake-Server -", "n2 Skylake-Server -", False),
        ("pass: 8 kept, ipam_blocks 2", "pass: 12 kept, ipam_blocks 0", True),
        ("pass: 8 kept", "pass: many kept", False),
        ('{"at": "2026-11-30T15:57:36.345Z"}', '{"at": "2027-01-01T00:00:00Z"}', True),
        ("free: 10.65.0.85 of handle h-85", "free: 10.65.1.9 of handle h-85", True),
        ("free: 10.65.0.85 of handle h-85", "free: 10.65.1.9 of handle h-9", False),
        ("downtime 338 ms (335 ms without it)", "downtime 3.5 ms (1 ms without it)", True),
        ("a … b", "a long way to b", True),
    ],
)
def test_shapes(shown: str, printed: str, same: bool) -> None:
    assert bool(shape(shown).fullmatch(printed)) is same


def test_lines_are_looked_for_in_order() -> None:
    assert unsaid(("a", "c"), "a\nb\nc\n") == ""
    assert unsaid(("c", "a"), "a\nb\nc\n") == "a"


def test_how_commands_are_found(tmp_path: Path) -> None:
    page = tmp_path / "p.md"
    page.write_text(
        "```sh\na   # exit status 2: no\nb \\\n  c   # until SIGTERM\n```\n"
        "```sh\nx <<E\n  y\nE\n```\n```console\n$ one\nsaid\n$ two\n```\n"
    )
    first, second, third = blocks(page)
    assert commands(first) == [
        Command("a   # exit status 2: no", 2, ("…no…",)),
        Command("b    c   # until SIGTERM", endless=True),
    ]
    assert commands(second) == [Command("x <<E\n  y\nE\n")]
    assert commands(third) == [Command("one", says=("said",)), Command("two")]
    assert isinstance(first, Block)
