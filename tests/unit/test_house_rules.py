"""Rules of the house that no linter knows: sizes, a reason for each silenced line, and which places
alone may do what hides pitfalls."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES, MOST_LINES_OF_FUNCTION = 500, 60
DAEMONS = ("cni_plugin/", "controllers/", "felix_shim/", "ipam/", "libtortie/", "migration_proxy/")
READING = re.compile(r"\.read_(text|bytes)\(")
OF_THE_KERNEL_OR_OURS = {
    "cni_plugin/conflist.py",
    "cni_plugin/program.py",
    "cni_plugin/units.py",
    "controllers/page/site.py",
    "felix_shim/state.py",
    "libtortie/datastore/sqlite_file.py",
    "libtortie/linux/conntrack.py",
    "migration_proxy/tcp_sockets.py",
}
"""Read what cannot be a pipe: files of the package, and of /proc."""
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


def test_files_of_others_are_read_by_libtortie_files(sources: dict[str, str]) -> None:
    found = {
        name for name, text in sources.items() if name.startswith(DAEMONS) and READING.search(text)
    }
    assert found == OF_THE_KERNEL_OR_OURS


def test_programs_that_are_waited_for_are_run_by_libtortie_deadline(
    sources: dict[str, str],
) -> None:
    """Others stay open: BIRD in the foreground, the migration proxy, a delegate that is fed."""
    found = {
        name
        for name, text in sources.items()
        if name.startswith(DAEMONS) and "subprocess.Popen(" in text
    }
    assert found == {
        "cni_plugin/child.py",
        "felix_shim/drivers/bird.py",
        "felix_shim/proxy_keeper.py",
        "libtortie/deadline.py",
    }
