"""What several files of this directory share."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.shim_node import SECONDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def memory() -> Iterator[Path]:
    """A directory in memory: thousands of files at a time would have all others wait for the disk.
    It has a short name, as podman wants it."""
    directory = Path(tempfile.mkdtemp(prefix="tortie-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def image_root(memory: Path) -> Path:
    """The image's root file system, by the commands of its Dockerfile. Nobody may change it."""
    root = memory / "image" / "root.new"
    script = ROOT / "scripts/image_root.sh"
    done = subprocess.run(
        [script, sys.executable, root],
        capture_output=True,
        text=True,
        check=False,
        timeout=5 * SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return root
