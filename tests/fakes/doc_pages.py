"""The documentation's pages, block by block, and where the commands of each are run.

A fenced block says by its first line what it is. `sh`: commands, which a test runs. `console`:
commands after `$ `, which a test runs, and what they print. `sh not run: WHY`: commands that no
test can run. `usage`: how commands are spelled. Any other (`yaml`, `json`, `text`): no commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
NOT_RUN = "sh not run: "
INFOS = ("sh", "console", "usage", "yaml", "json", "text")


class Stage(StrEnum):
    """Where a page's commands are run: by which test."""

    INSTALL = "tests/contract/test_install_docs.py"
    DESK = "tests/contract/test_docs_desk.py"
    RUNBOOK = "tests/e2e/test_lab_runbook.py"
    LAB = "tests/e2e/test_lab_docs.py"


STAGES = {
    "README.md": Stage.LAB,
    "admission.md": Stage.DESK,
    "apiserver.md": Stage.DESK,
    "bgp.md": Stage.DESK,
    "cni.md": Stage.DESK,
    "gc.md": Stage.DESK,
    "install.md": Stage.INSTALL,
    "node.md": Stage.DESK,
    "page.md": Stage.DESK,
    "policy-timeout.md": Stage.DESK,
    "policy.md": Stage.LAB,
    "runbook.md": Stage.RUNBOOK,
    "simulator.md": Stage.DESK,
    "tortiectl.md": Stage.DESK,
    "vm-operators.md": Stage.DESK,
}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `number` counts a page's own from 1."""

    page: str
    number: int
    info: str
    text: str

    @property
    def runs(self) -> bool:
        """Whether a test is to run it."""
        return self.info in ("sh", "console")

    def __str__(self) -> str:
        return f"{self.page}, block {self.number}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it is typed, how it ends, and what it prints of that a page shows.

    `endless`: it runs until SIGTERM.
    """

    line: str
    status: int = 0
    says: tuple[str, ...] = ()
    endless: bool = False


_STATUS = re.compile(r"#.*\bexit status (\d+)(?:: (.+))?$")
_ENDLESS = re.compile(r"#.*\buntil SIGTERM\b")


def blocks(page: Path) -> Iterator[Block]:
    """A page's blocks, in order."""
    lines: list[str] | None = None
    info, number = "", 0
    for line in page.read_text().splitlines():
        if not line.startswith("```"):
            if lines is not None:
                lines.append(line)
        elif lines is None:
            lines, info, number = [], line.removeprefix("```"), number + 1
        else:
            yield Block(page.name, number, info, "".join(f"{one}\n" for one in lines))
            lines = None
    assert lines is None, f"{page}: a block has no end"


def commands(block: Block) -> list[Command]:
    """The commands of a block that is run: one after the other, whole if it has one story."""
    if block.info == "console":
        return list(_console(block.text))
    text = block.text.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    if not any(_STATUS.search(line) or _ENDLESS.search(line) for line in lines):
        return [Command(block.text)]
    return [_command(line) for line in lines]


def _command(line: str) -> Command:
    ending = _STATUS.search(line)
    status, says = (int(ending[1]), ending[2] or "") if ending else (0, "")
    return Command(line, status, (f"…{says}…",) if says else (), bool(_ENDLESS.search(line)))


def _console(text: str) -> Iterator[Command]:
    line, said = "", []
    for one in [*text.splitlines(), "$ "]:
        if not one.startswith("$ "):
            said.append(one)
            continue
        if line:
            yield Command(line, _command(line).status, tuple(said))
        line, said = one.removeprefix("$ "), []


_NUMBER = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z"  # a time
    r"|(?<![\w.])\d+(?:\.\d+){3}(?:/\d+)?(?![\w.])"  # an address
    r"|(?<![\w-])-?\d+(?:\.\d+)?(?![\w-])"
)


def shape(line: str) -> re.Pattern[str]:
    """What a shown line may be in truth: other numbers, times, addresses, widths; `…` anything."""
    pieces = []
    for part in re.split(r"(\s+|…)", line.strip()):
        if part == "…":
            pieces.append(".*")
        elif not part.strip():
            pieces.append(r"\s+" if part else "")
        else:
            ends = [0, *(at for one in _NUMBER.finditer(part) for at in one.span()), len(part)]
            for number, (begin, end) in enumerate(pairwise(ends)):
                pieces.append(r"[-\d.:TZ/]+" if number % 2 else re.escape(part[begin:end]))
    return re.compile(r"\s*" + "".join(pieces) + r"\s*")


def unsaid(shown: tuple[str, ...], printed: str) -> str:
    """The first shown line that was not printed, in this order; empty if all were.

    A page may also break one long line.
    """
    if shown and shape(" ".join(shown)).fullmatch(" ".join(printed.split())):
        return ""
    rest = iter(printed.splitlines())
    for line in shown:
        wanted = shape(line)
        if not any(wanted.fullmatch(one) for one in rest):
            return line
    return ""
