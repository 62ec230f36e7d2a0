"""Workloads get an MTU that fits the tunnel: at the start, and when a pool changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from felix_shim.overlay import Overlay, overlay
from felix_shim.overlay_layer import Layer
from felix_shim.overlay_mtu import MtuFile, stored_mtu, workload_mtu
from felix_shim.overlay_settings import TunnelSettings
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import KernelError
from libtortie.model.keys import Kind
from tests.fakes.agent_world import RecordingLog, resource_record
from tests.fakes.kernel import FakeKernel
from tests.fakes.overlay_bench import pool_record
from tests.fakes.tunnels import FakeTunnels
from tests.unit.felix_shim.test_overlay_plan import ground, where


@pytest.mark.parametrize(
    ("versions", "settings", "mtu"),
    [
        ((), TunnelSettings(), 1500),
        ((4,), TunnelSettings(), 1450),
        ((6,), TunnelSettings(), 1430),
        ((4, 6), TunnelSettings(), 1430),
        ((4,), TunnelSettings(mtu=1400), 1400),
        ((4,), TunnelSettings(mtu=9000), 1500),
        ((), TunnelSettings(mtu=1400), 1500),
    ],
)
def test_the_smallest_counts(versions: tuple[int, ...], settings: TunnelSettings, mtu: int) -> None:
    assert workload_mtu(1500, settings, versions) == mtu
    assert workload_mtu(0, settings, versions) == 0


@pytest.mark.parametrize(
    ("mode", "felix", "mtu"),
    [
        ("Never", {}, 1500),
        ("Always", {}, 1450),
        ("CrossSubnet", {}, 1450),
        ("Always", {"vxlanMTU": 1400}, 1400),
        ("Always", {"vxlanEnabled": False}, 1500),
        ("Never", {"vxlanEnabled": True}, 1450),
    ],
)
def test_by_what_is_stored(mode: str, felix: dict[str, object], mtu: int) -> None:
    store = MemoryDatastore()
    for record in (
        pool_record(mode),
        resource_record(Kind.FELIX_CONFIGURATION, "default", {"vxlanMTU": 1300}),
        resource_record(Kind.FELIX_CONFIGURATION, "node.n1", {"vxlanMTU": 0, **felix}),
    ):
        store.create(record.key, record.value)
    expected = 1300 if mtu == 1450 else mtu
    assert stored_mtu(1500, store, "n1") == expected


def test_the_file_follows(tmp_path: Path) -> None:
    path, log = tmp_path / "mtu", RecordingLog()
    file = MtuFile(path, log)
    on, off = Overlay(4, wanted=True), Overlay(4)
    file.follow(1500, (off,))
    assert path.read_text() == "1500"
    file.follow(1500, (on,))
    file.follow(1500, (on,))
    assert path.read_text() == "1450"
    assert log.of("mtu") == [{"mtu": 1500, "uplink": 1500}, {"mtu": 1450, "uplink": 1500}]
    file.follow(0, (on,))
    assert path.read_text() == "1450", "an uplink that is away for a moment says nothing"


@pytest.mark.parametrize("broken", [False, True])
def test_a_tunnel_that_cannot_be_made_yet_counts_already(tmp_path: Path, broken: bool) -> None:
    kernel = FakeKernel()
    kernel.add_link("eth0")
    path = tmp_path / "mtu"
    lay = Layer(kernel, FakeTunnels(kernel), ("eth0",), path, RecordingLog()).outlet()
    if broken:
        kernel.add_link("vxlan.calico", "bridge")
        with pytest.raises(KernelError):
            lay((overlay(ground(), where()),), 0)
    else:
        lay((overlay(ground(places={}), where()),), 0)
    assert path.read_text() == "1450"
