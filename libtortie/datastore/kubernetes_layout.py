"""Which shape and which shelf each kind of value has in Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from libtortie.datastore.crd_endpoint import EndpointShape
from libtortie.datastore.crd_history import HistoryShape
from libtortie.datastore.crd_ipam_shapes import AffinityShape, BlockShape, HandleShape, IpamShape
from libtortie.datastore.crd_names import Group
from libtortie.datastore.crd_node import NodeShape
from libtortie.datastore.crd_profile import ProfileShape
from libtortie.datastore.crd_shapes import ConfigShape, CrdShape, ResourceShape, Shape
from libtortie.datastore.kubernetes_core import EndpointShelf, NodeShelf, ProfileShelf
from libtortie.datastore.kubernetes_policies import PolicyShelf
from libtortie.datastore.kubernetes_shelves import CrdShelf, IpamShelf, Shelf
from libtortie.kube.raw import RawObjects
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    History,
    HistoryKey,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
    Resources,
    Scope,
)

_VIEWS: Mapping[Kind, Callable[[], Shape]] = {
    Kind.NODE: NodeShape,
    Kind.WORKLOAD_ENDPOINT: EndpointShape,
    Kind.PROFILE: ProfileShape,
}
_VIEW_SHELVES: Mapping[Kind, Callable[[RawObjects], Shelf]] = {
    Kind.NODE: NodeShelf,
    Kind.WORKLOAD_ENDPOINT: EndpointShelf,
    Kind.PROFILE: ProfileShelf,
}
_OWN: Mapping[type, Callable[[Group], CrdShape]] = {
    BlockKey: BlockShape,
    Blocks: BlockShape,
    AffinityKey: AffinityShape,
    Affinities: AffinityShape,
    HandleKey: HandleShape,
    Handles: HandleShape,
    IPAMConfigKey: ConfigShape,
    HistoryKey: HistoryShape,
    History: HistoryShape,
}


class Layout:
    """The choice, for one server; its group is asked for only where it matters."""

    def __init__(
        self, objects: RawObjects, group: Callable[[], Group], now: Callable[[], str]
    ) -> None:
        self._objects = objects
        self._group = group
        self._now = now

    def shape(self, scope: Scope) -> Shape:
        """How the values of a scope look."""
        if isinstance(scope, ResourceKey | Resources) and scope.kind in _VIEWS:
            return _VIEWS[scope.kind]()
        return self._crd(scope)

    def shelf(self, key: Key) -> Shelf:
        """Where a value is kept."""
        if isinstance(key, ResourceKey) and key.kind in _VIEW_SHELVES:
            return _VIEW_SHELVES[key.kind](self._objects)
        shape = self._crd(key)
        if isinstance(shape, ResourceShape) and shape.has_former_names:
            return PolicyShelf(self._objects, shape, self._now)
        kept = IpamShelf if isinstance(shape, IpamShape) else CrdShelf
        return kept(self._objects, shape, self._now)

    def _crd(self, what: Key | Scope) -> CrdShape:
        if isinstance(what, ResourceKey | Resources):
            return ResourceShape(self._group(), what.kind)
        return _OWN[type(what)](self._group())
