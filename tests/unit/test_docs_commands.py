"""Commands that the documentation names are commands of ours, with options that they have.

What they do is proved where they are tested; here a renamed option or command is found. Links
between pages lead somewhere, also to a heading.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from lab.cli import main as lab
from tortiectl.cli import main as tortiectl

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PROGRAMS: dict[str, click.Command] = {"tortiectl": tortiectl, "lab": lab}
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_SHELL = {"&", "|", ">", ">>", "<", "&&", ";", "||"}
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of ours: a line of a fenced block, or a code span.

    A name with a column of its own is one of a list, not a command.
    """
    blocks = [block.replace("\\\n", " ") for block in _FENCE.findall(text)]
    for line in [line for block in blocks for line in block.splitlines()] + spans(text):
        words = split(line.removeprefix("$ ").strip())
        listed = re.match(r"\S+ {2,}", line)
        if words and not listed and Path(words[0]).name in PROGRAMS:
            yield [Path(words[0]).name, *words[1:]]


def spans(text: str) -> list[str]:
    return _SPAN.findall(_FENCE.sub("", text))


def split(line: str) -> list[str]:
    """A shell's words, up to a comment, a pipe or a redirection; none where it is not a command."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    ends = [number for number, word in enumerate(words) if word in _SHELL]
    return words[: ends[0]] if ends else words


def alternatives(words: list[str]) -> Iterator[list[str]]:
    """`vm start|stop NAME` and `vm list, vm show`: each of them; brackets are left out."""
    words = [word.strip("[],…") for word in words]
    words = [word for word in words if word not in ("", "...")]
    for number, word in enumerate(words):
        if "|" in word and "=" not in word:
            for choice in word.split("|"):
                yield from alternatives([*words[:number], choice, *words[number + 1 :]])
            return
    yield words


def refused(command: click.Command, words: list[str], parent: click.Context | None = None) -> str:
    """Why a program would not take these words; empty if it would."""
    context = click.Context(command, info_name=words[0], parent=parent)
    context.allow_interspersed_args = command.allow_interspersed_args
    context.ignore_unknown_options = bool(command.context_settings.get("ignore_unknown_options"))
    try:
        _, left, _ = command.make_parser(context).parse_args(words[1:])
        if not isinstance(command, click.Group) or not left:
            return ""
        name, found, rest = command.resolve_command(context, left)
    except click.BadOptionUsage as error:  # one that is only named
        return "" if error.option_name == words[-1] else error.format_message()
    except click.ClickException as error:
        return error.format_message()
    assert name is not None
    assert found is not None
    return refused(found, [name, *rest], context)


def placeholder(words: list[str]) -> bool:
    """`tortiectl COMMAND --help`: a word in capitals stands where a command would."""
    return len(words) > 1 and words[1].isupper()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_ours(page: Path) -> None:
    wrong = {
        " ".join(words): why
        for found in commands(page.read_text())
        for words in alternatives(found)
        if not placeholder(words) and (why := refused(PROGRAMS[words[0]], words))
    }
    assert not wrong


def test_a_wrong_command_would_be_found() -> None:
    text = "`tortiectl ipam shwo`\n```\n$ lab up --no-such   # why\n.venv/bin/lab vm fly web\n```\n"
    found = [refused(PROGRAMS[words[0]], words) for words in commands(text)]
    assert len(found) == 3
    assert all(found)


def anchors(page: Path) -> set[str]:
    """What can be linked to: headings, as GitHub names them."""
    text = _FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for path, anchor in _LINK.findall(_FENCE.sub("", page.read_text())):
        if "://" in path:
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            lost.append(f"{path}#{anchor}")
    assert not lost
