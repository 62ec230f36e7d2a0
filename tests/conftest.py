"""Shared rules of the suite: what needs root says so, and as root nothing is skipped."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.fakes")  # their assertions say what they saw, too

TOOLS = (
    "ip",
    "nft",
    "bird",
    "birdc",
    "etcd",
    "nsenter",
    "unshare",
    "setpriv",
    "systemd-analyze",
    "qemu-system-x86_64",
    "libvirtd",
    "virsh",
)

# By itself Hypothesis fails an example that takes 0.2 s, whatever else the machine is doing then.
# CI draws the same examples each time; what is new is found by `make soak`.
settings.register_profile(
    "tortie",
    deadline=None,
    derandomize="TORTIE_SOAK" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tortie")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without root, tests marked `root` are skipped; as root a missing tool is a failure."""
    if os.geteuid() == 0:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing and any(item.get_closest_marker("root") for item in items):
            raise pytest.UsageError(f"missing system tools: {', '.join(missing)}; run `make setup`")
        return
    skip = pytest.mark.skip(reason="needs root")
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(skip)
