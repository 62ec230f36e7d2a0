"""What is wrong with the fields of a resource, each with its path: `spec.ingress.0.protocol: why`.

All of them at once, in the order of the text; pydantic's words only where they help. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

_WORDS = {"extra_forbidden": "no such field is known", "missing": "is missing"}


class InconsistentError(ValueError):
    """Fields of one object that do not go together: (path below the object, why) each."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(why for _, why in self.problems))


def lines_of(error: ValidationError, root: str = "spec") -> tuple[str, ...]:
    """One line for each problem, with the path of its field below `root`."""
    found = []
    for one in error.errors(include_url=False):
        path = ".".join((root, *(str(part) for part in one["loc"])))
        cause = one.get("ctx", {}).get("error")
        if isinstance(cause, InconsistentError):
            found += [f"{path}.{below}: {why}" if below else f"{path}: {why}"
                      for below, why in cause.problems]  # fmt: skip
        else:
            why = _WORDS.get(one["type"]) or one["msg"].removeprefix("Value error, ")
            found.append(f"{path}: {why}")
    return tuple(found)


def summary(problems: tuple[str, ...]) -> str:
    """All problems on one line that is never long: the first, and how many more there are."""
    if not problems:
        return ""
    more = len(problems) - 1
    return problems[0] + (f" (and {more} more)" if more else "")
