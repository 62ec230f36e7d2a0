"""The addresses by which workloads that speak BGP know this node, on their own veths.

Which veths have one is written down before they get it, and crossed out when it is taken back:
killed in between, the agent finishes the next time. An address goes with its link by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path

from cni_plugin.durable import read_file, replace_file
from felix_shim.bgp_model import Peer
from libtortie.errors import KernelError, NotFound
from libtortie.linux.port import Kernel
from libtortie.model.names import INTERFACE_PREFIX

Given = frozenset[tuple[str, str]]
"""Link and address."""


def peering_addresses(peers: Iterable[Peer]) -> Given:
    """What the veths of these neighbours need. Pure."""
    return frozenset(
        (peer.interface, str(peer.source)) for peer in peers if peer.source is not None
    )


@dataclass(slots=True)
class PeeringAddresses:
    """One node's. `file` is where it is written down what was given."""

    kernel: Kernel
    file: Path

    def give(self, wanted: Given) -> str:
        """Before BIRD speaks from them; a link that is not there gets none.

        Returns what was refused of one of them, or "": no workload's link keeps BIRD from its other
        neighbours. Raises OSError.
        """
        known = self._read()
        if not wanted <= known:
            self._write(known | wanted)
        refused = ""
        for link, address in sorted(wanted):
            try:
                self.kernel.ensure_address(link, ip_interface(address))
            except NotFound:
                continue
            except KernelError as error:
                refused = str(error)
        return refused

    def take_back(self, wanted: Given) -> None:
        """After BIRD has let go of all others. Raises `KernelError`, OSError."""
        known = self._read()
        for link, address in sorted(known - wanted):
            self.kernel.delete_address(link, ip_interface(address))
        if known != wanted:
            self._write(wanted)

    def _read(self) -> Given:
        """A file that is none says nothing, and no link but a workload's is ever touched."""
        try:
            found = json.loads(read_file(self.file) or b"[]")
            pairs = [(str(link), str(ip_interface(address).ip)) for link, address in found]
        except (ValueError, TypeError, RecursionError):
            return frozenset()
        return frozenset(one for one in pairs if one[0].startswith(INTERFACE_PREFIX))

    def _write(self, given: Given) -> None:
        replace_file(self.file, json.dumps(sorted(given)).encode(), 0o644)
