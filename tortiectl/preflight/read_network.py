"""Calico's configuration for a preflight: from the datastore, whichever it is, and the API.

A resource that cannot be read is told and leaves the others. Never writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ipam.persistence import persistence
from libtortie.datastore import gojson
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput, NotFound, TortieError, first_line
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.objects import Api
from libtortie.model.keys import Kind, Resources
from libtortie.model.resources import (
    BGPConfiguration,
    BGPPeer,
    FelixConfiguration,
    IPPool,
    Resource,
)
from libtortie.model.resources import Node as CalicoNode
from tortiectl.kubevirt.reading import Objects, Unreadable
from tortiectl.preflight.world import Network

R = TypeVar("R", bound=Resource)
INSTALLATION = Api("operator.tigera.io", "v1", "installations", "Installation", False)
NODE_STATUS = Api("projectcalico.org", "v3", "caliconodestatuses", "CalicoNodeStatus", False)
_PLUGINS = ("tortie", "calico")


@dataclass
class NetworkReading:
    """The network, and what of it could not be read; the datastore is opened when it is read."""

    open_store: Callable[[], Datastore]
    objects: Objects
    client: HttpKubeClient
    holes: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def read(self, conflist: str = "") -> Network:
        """All of it. Raises `InvalidInput` for a conflist that cannot be read."""
        timeouts = {conflist: conflist_timeout(Path(conflist))} if conflist else {}
        try:
            return self._read(timeouts)
        except TortieError as error:
            self.holes.append(f"the network's configuration: {first_line(error)}")
            return Network(plugin_timeouts=timeouts)

    def _read(self, timeouts: Mapping[str, int]) -> Network:
        store = self.open_store()
        found = persistence(store, self.client)
        bgp = self._named(store, Kind.BGP_CONFIGURATION, BGPConfiguration).get("default")
        policies = [
            *self._all(store, Kind.GLOBAL_NETWORK_POLICY),
            *self._all(store, Kind.NETWORK_POLICY),
        ]
        return Network(
            pools=list(self._named(store, Kind.IP_POOL, IPPool).values()),
            felix=self._named(store, Kind.FELIX_CONFIGURATION, FelixConfiguration),
            nodes=self._named(store, Kind.NODE, CalicoNode),
            bgp=bgp,
            peers=list(self._named(store, Kind.BGP_PEER, BGPPeer).values()),
            filters=self._named(store, Kind.BGP_FILTER, Resource),
            host_endpoints=self._all(store, Kind.HOST_ENDPOINT),
            policies=policies,
            tiers=self._all(store, Kind.TIER),
            profiles=self._all(store, Kind.PROFILE),
            sets=self._all(store, Kind.GLOBAL_NETWORK_SET),
            installation=self._installation(),
            persistence=found.value,
            persistence_place=found.place,
            sessions_down=self._sessions_down(),
            plugin_timeouts=timeouts,
        )

    def _all(self, store: Datastore, kind: Kind) -> list[Resource]:
        """A kind's resources; one that cannot be read is told."""
        listing = store.list(Resources(kind))
        for text in listing.malformed:
            self.unreadable.append(Unreadable(kind.value, "", text))
        return [one.value for one in listing.records if isinstance(one.value, Resource)]

    def _named(self, store: Datastore, kind: Kind, model: type[R]) -> dict[str, R]:
        found = self._all(store, kind)
        return {one.metadata.name: one for one in found if isinstance(one, model)}

    def _installation(self) -> Mapping[str, Any] | None:
        """The operator's `spec.calicoNetwork`; None where there is no operator."""
        try:
            body = self.objects.get(INSTALLATION, "default")
        except NotFound:
            return None
        except TortieError as error:
            self.gaps.append(f"who owns the IPPools: {first_line(error)}")
            return None
        spec = body.get("spec")
        network = spec.get("calicoNetwork") if isinstance(spec, Mapping) else None
        return network if isinstance(network, Mapping) else {}

    def _sessions_down(self) -> dict[str, int]:
        """Sessions that a CalicoNodeStatus reports as not established, by node."""
        try:
            bodies, _ = self.objects.list(NODE_STATUS)
        except TortieError:
            return {}  # a kind that few clusters have
        found: dict[str, int] = {}
        for body in bodies:
            spec, status = body.get("spec") or {}, body.get("status") or {}
            bgp = status.get("bgp") if isinstance(status, Mapping) else None
            if isinstance(bgp, Mapping) and isinstance(spec, Mapping):
                counts = (bgp.get(f"numberNotEstablishedV{version}") for version in (4, 6))
                down = sum(one for one in counts if isinstance(one, int))
                found[str(spec.get("node"))] = down
        return found


def conflist_timeout(path: Path) -> int:
    """`policy_setup_timeout_seconds` of a conflist's plugin; 0 where it is not set."""
    try:
        body = gojson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"{path}: not JSON") from error
    plugins = body.get("plugins") if isinstance(body, Mapping) else None
    for one in plugins if isinstance(plugins, list) else ():
        if isinstance(one, Mapping) and one.get("type") in _PLUGINS:
            value = one.get("policy_setup_timeout_seconds", 0)
            return value if isinstance(value, int) else 0
    raise InvalidInput(f"{path}: no plugin of type {' or '.join(_PLUGINS)} is in it")
