"""The MTU that workloads get: what an uplink carries, less what the overlay's encapsulation takes.

A guest keeps the MTU of its first boot, and a packet too large for the tunnel is lost without a
word, so the file is right before the first ADD, and follows what is stored. Never: touch the MTU
of what runs already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cni_plugin.durable import replace_file
from felix_shim.cluster import FELIX, POOLS, Cluster
from felix_shim.overlay import Overlay
from felix_shim.overlay_places import overlay_pools
from felix_shim.overlay_settings import TunnelSettings
from libtortie.datastore.port import Datastore
from libtortie.files import read_text
from libtortie.jsonlog import Log


def workload_mtu(underlay: int, settings: TunnelSettings, versions: Iterable[int]) -> int:
    """The smallest of the uplink's MTU and that of each of these families' tunnels; 0: unknown."""
    if not underlay:
        return 0
    return min([underlay, *(settings.mtu_of(version, underlay) for version in versions)])


def stored_mtu(underlay: int, store: Datastore, node: str) -> int:
    """The same by what is stored. Raises what the store raises."""
    cluster = Cluster(node)
    for scope in (POOLS, FELIX):
        cluster.replace(scope, store.list(scope).records)
    settings = cluster.settings().tunnel
    wanted = (
        version
        for version in (4, 6)
        if settings.wanted(version, bool(overlay_pools(cluster.pools(), version)))
    )
    return workload_mtu(underlay, settings, wanted)


@dataclass(frozen=True, slots=True)
class MtuFile:
    """The file that the CNI plugin reads."""

    path: Path
    log: Log

    def follow(self, underlay: int, overlays: tuple[Overlay, ...]) -> None:
        """Write it if these overlays want another one. Raises OSError."""
        wanted = [one.version for one in overlays if one.wanted]
        mtu = workload_mtu(underlay, overlays[0].settings, wanted)
        text = str(mtu)
        if not mtu or self._says(text):
            return
        replace_file(self.path, text.encode(), 0o644)
        self.log.info("mtu", mtu=mtu, uplink=underlay)

    def _says(self, text: str) -> bool:
        try:
            return read_text(self.path).strip() == text
        except OSError:
            return False
