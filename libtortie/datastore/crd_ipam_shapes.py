"""IPAMBlock, BlockAffinity and IPAMHandle: the shapes of IPAM's own objects. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from libtortie.datastore import crd_ipam
from libtortie.datastore.crd_names import (
    LABEL_HOSTNAME,
    LABEL_TYPE,
    Group,
    Json,
    Place,
    affinity_labels,
    affinity_place,
    block_place,
    handle_place,
    hostname_hash,
    metadata_of,
    require_name,
)
from libtortie.datastore.crd_shapes import Query, crd_object, mismatch, spec_of, where_of
from libtortie.datastore.port import Value
from libtortie.errors import InvalidInput, Malformed
from libtortie.kube.objects import Api
from libtortie.model.ipam import Block, BlockAffinity, Handle
from libtortie.model.keys import Affinities, AffinityKey, BlockKey, HandleKey, Key, Scope
from libtortie.model.names import block_of_name

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class IpamShape(ABC):
    """What the three have in common: metadata rebuilt on each write, a key that is in the spec."""

    plural: ClassVar[str]
    kind: ClassVar[str]
    group: Group

    @property
    def api(self) -> Api:
        """Where it is served."""
        return self.group.api(self.plural, self.kind)

    def place(self, key: Key) -> Place:
        """See `Shape`."""
        return require_name(self.place_of(key))

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """All objects: the server can tell neither families nor types apart."""
        return (Query(self.api),)

    def key(self, body: Json) -> Key:
        """See `Shape`. An object whose name is not that of its spec is malformed."""
        where = where_of(self.api, body)
        name = str(metadata_of(body).get("name"))
        key = self.key_in(where, name, body)
        try:
            wanted = self.place(key).name
        except InvalidInput as error:
            raise Malformed(f"{where}: {error}") from error
        if name != wanted:
            raise Malformed(f"{where}: its spec is that of {wanted}")
        return key

    def value(self, key: Key, body: Json) -> Value:
        """See `Shape`."""
        where = where_of(self.api, body)
        return self.value_in(where, key, spec_of(where, body))

    def body(self, key: Key, value: Value, old: Json | None, now: str) -> Json:
        """See `CrdShape`."""
        try:
            spec = self.spec(key, value)
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{self.place(key)}: {error}") from error
        labels = self.labels(key)
        meta = {"labels": labels} if labels else {}
        return crd_object(self.place(key), spec, meta, old, group=self.group)

    def labels(self, key: Key) -> dict[str, str]:
        """Labels of the object."""
        return {}

    @abstractmethod
    def place_of(self, key: Key) -> Place:
        """Where a value is, whether or not the name can be stored."""

    @abstractmethod
    def key_in(self, where: str, name: str, body: Json) -> Key:
        """Which value an object of a name is. Raises `Malformed`."""

    @abstractmethod
    def value_in(self, where: str, key: Key, spec: Spec) -> Value:
        """What a spec says. Raises `Malformed`."""

    @abstractmethod
    def spec(self, key: Key, value: Value) -> Json:
        """The spec of a value. Raises `InvalidInput`, ValueError."""


class BlockShape(IpamShape):
    """IPAMBlock."""

    __slots__ = ()
    plural, kind = "ipamblocks", "IPAMBlock"

    def place_of(self, key: Key) -> Place:
        """See `IpamShape`."""
        assert isinstance(key, BlockKey)
        return block_place(self.group, key)

    def key_in(self, where: str, name: str, body: Json) -> Key:
        """See `IpamShape`: the name says it all, whatever became of the spec."""
        try:
            return BlockKey(block_of_name(name))
        except ValueError as error:
            raise Malformed(f"{where}: metadata.name: {error}") from error

    def value_in(self, where: str, key: Key, spec: Spec) -> Value:
        """See `IpamShape`."""
        assert isinstance(key, BlockKey)
        return crd_ipam.block_from_spec(where, key, spec)

    def spec(self, key: Key, value: Value) -> Json:
        """See `IpamShape`."""
        if not isinstance(key, BlockKey) or not isinstance(value, Block) or value.cidr != key.cidr:
            raise mismatch(key, value)
        return crd_ipam.block_to_spec(value)


class AffinityShape(IpamShape):
    """BlockAffinity.

    One without Calico's labels is not found by its node: Calico's own node stamps them at start.
    """

    __slots__ = ()
    plural, kind = "blockaffinities", "BlockAffinity"

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """All affinities, or by label those of one node."""
        if not isinstance(scope, Affinities) or not scope.node:
            return (Query(self.api),)
        labels = f"{LABEL_HOSTNAME}={hostname_hash(scope.node)},{LABEL_TYPE}=host"
        return (Query(self.api, label_selector=labels),)

    def labels(self, key: Key) -> dict[str, str]:
        """Calico's."""
        assert isinstance(key, AffinityKey)
        return affinity_labels(key)

    def place_of(self, key: Key) -> Place:
        """See `IpamShape`."""
        assert isinstance(key, AffinityKey)
        return affinity_place(self.group, key)

    def key_in(self, where: str, name: str, body: Json) -> Key:
        """See `IpamShape`: the name may be cut short and hashed."""
        return crd_ipam.affinity_key(where, spec_of(where, body))

    def value_in(self, where: str, key: Key, spec: Spec) -> Value:
        """See `IpamShape`."""
        return crd_ipam.affinity_from_spec(where, spec)

    def spec(self, key: Key, value: Value) -> Json:
        """See `IpamShape`."""
        if not isinstance(key, AffinityKey) or not isinstance(value, BlockAffinity):
            raise mismatch(key, value)
        return crd_ipam.affinity_to_spec(self.group, key, value)


class HandleShape(IpamShape):
    """IPAMHandle."""

    __slots__ = ()
    plural, kind = "ipamhandles", "IPAMHandle"

    def place_of(self, key: Key) -> Place:
        """See `IpamShape`."""
        assert isinstance(key, HandleKey)
        return handle_place(self.group, key)

    def key_in(self, where: str, name: str, body: Json) -> Key:
        """See `IpamShape`: the name has lost the case of the id."""
        return crd_ipam.handle_key(where, spec_of(where, body))

    def value_in(self, where: str, key: Key, spec: Spec) -> Value:
        """See `IpamShape`."""
        return crd_ipam.handle_from_spec(where, spec)

    def spec(self, key: Key, value: Value) -> Json:
        """See `IpamShape`."""
        if not isinstance(key, HandleKey) or not isinstance(value, Handle):
            raise mismatch(key, value)
        return crd_ipam.handle_to_spec(key, value)
