"""The world most of these tests begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.cni_world import CniWorld


@pytest.fixture
def world(tmp_path: Path) -> CniWorld:
    """A cluster with one pool, on fakes; files go below the test's own directory."""
    return CniWorld(tmp_path)
