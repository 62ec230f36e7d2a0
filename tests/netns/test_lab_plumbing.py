"""The cables between a guest's switch and its pods, in a real kernel."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from lab.plumbing import POD_BRIDGE, PodInterface, lay_cable, make_guest
from tests.fakes.fresh_names import fresh_name

pytestmark = pytest.mark.root

CABLE = "c0123456789ab"
ETH0 = PodInterface("02:00:00:00:00:01", 1440, ("10.65.0.2/32",))
FIRST_STEP = f"link add {CABLE} type veth peer name tap0 netns"
PLUGGED_IN = f"link set {CABLE} master hv up"


def ip(netns: str, *words: str) -> None:
    subprocess.run(["ip", "-n", netns, *words], check=True, timeout=120)


def link(netns: str, name: str) -> Any:
    command = ["ip", "-n", netns, "-j", "-d", "link", "show", name]
    (found,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """A guest's switch, and a pod with its bridge."""
    hypervisor, guest, pod = (fresh_name(end) for end in ("hv", "vm", "pod"))
    with ExitStack() as stack:
        for name in (hypervisor, guest, pod):
            stack.callback(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
        make_guest(hypervisor, guest, ETH0)
        subprocess.run(["ip", "netns", "add", pod], check=True, timeout=120)
        ip(pod, "link", "add", POD_BRIDGE, "type", "bridge")
        ip(pod, "link", "set", POD_BRIDGE, "up")
        yield hypervisor, pod


@pytest.mark.parametrize("done", [(), (FIRST_STEP,), (FIRST_STEP, PLUGGED_IN)])
def test_a_cable_that_was_laid_half_way_is_laid_anew(
    spaces: tuple[str, str], done: tuple[str, ...]
) -> None:
    hypervisor, pod = spaces
    for step in done:
        words = step.split()
        ip(hypervisor, *words, *([pod] if words[-1] == "netns" else []))
    for _ in range(2):
        lay_cable(hypervisor, CABLE, pod, 1440)
        cable, tap = link(hypervisor, CABLE), link(pod, "tap0")
        assert cable["master"] == "hv"
        assert cable["linkinfo"]["info_slave_data"]["state"] == "disabled"
        assert tap["master"] == POD_BRIDGE
        assert (cable["mtu"], tap["mtu"]) == (1440, 1440)
