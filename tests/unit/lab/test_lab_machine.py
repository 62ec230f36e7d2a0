"""What a report says about the machine, also when a program cannot be asked."""

from __future__ import annotations

import sys

from lab.machine import first_line, machine, versions
from libtortie import __version__


def test_versions_name_everything_that_takes_part() -> None:
    found = versions()
    assert set(found) == {"tortie", "commit", "bird", "nft", "iproute2", "kubectl"}
    assert found["tortie"] == __version__
    assert all(found.values())
    assert machine()["python"] == sys.version.split()[0]


def test_the_first_line_of_either_stream() -> None:
    for stream in ("stdout", "stderr"):
        code = f"import sys; print('one\\ntwo', file=sys.{stream})"
        assert first_line([sys.executable, "-c", code]) == "one"
    assert first_line([sys.executable, "-c", ""]) == ""
    assert first_line(["/nonexistent/program"]) == "not found"
