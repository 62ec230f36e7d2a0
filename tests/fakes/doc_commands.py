"""The commands of a page of the documentation, block by block, and how each is to end."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_STATUS = re.compile(r"#.*\bexit status (\d+)(?:: (.+))?$")


@dataclass(frozen=True, slots=True)
class Command:
    """One line; `status` is how it ends, `says` what it then says."""

    words: tuple[str, ...]
    status: int = 0
    says: str = ""


def commands_of(page: str) -> Iterator[Command]:
    """Lines of blocks marked `sh` alone: others need what only a real cluster has."""
    for block in _FENCE.findall(page):
        for line in block.splitlines():
            ending = _STATUS.search(line)
            status, says = (int(ending[1]), ending[2] or "") if ending else (0, "")
            yield Command(tuple(shlex.split(line, comments=True)), status, says)
