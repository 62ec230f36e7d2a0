"""What the agent needs for the overlay, put together: the driver, the file with the MTU, blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from felix_shim.addresses import uplink_mtu
from felix_shim.cluster import BLOCKS
from felix_shim.drivers.vxlan import OverlayDriver
from felix_shim.events import Event
from felix_shim.overlay import Overlay
from felix_shim.overlay_mtu import MtuFile
from felix_shim.overlay_source import BlocksSource
from felix_shim.sources import StoreSource
from libtortie.datastore.port import Datastore
from libtortie.jsonlog import Log
from libtortie.linux.port import Kernel
from libtortie.linux.tunnel import TunnelKernel

Lay = Callable[[tuple[Overlay, ...], object], None]


@dataclass(frozen=True, slots=True)
class Layer:
    """`uplinks` are the links whose MTU workloads' packets have to fit."""

    kernel: Kernel
    tunnels: TunnelKernel
    uplinks: tuple[str, ...]
    mtu_file: Path
    log: Log

    def outlet(self) -> Lay:
        """Makes overlays, and has the MTU of new workloads fit them, on one lane's thread."""
        driver = OverlayDriver(self.kernel, self.tunnels, self.log)
        mtu = MtuFile(self.mtu_file, self.log)

        def lay(overlays: tuple[Overlay, ...], look: object) -> None:
            try:
                driver.apply(overlays, look)
            finally:
                mtu.follow(uplink_mtu(self.kernel, self.uplinks), overlays)

        return lay


def block_sources(
    store: Datastore, post: Callable[[Event], None], log: Log, *, of_api: bool
) -> tuple[BlocksSource, ...]:
    """Where addresses are, of both families; see `StoreSource` for `of_api`."""
    return tuple(BlocksSource(StoreSource(store, scope, post, log, of_api)) for scope in BLOCKS)
