"""HistoryRecord, our own CRD: the shape of the history's records in Kubernetes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from libtortie.datastore.crd_names import OWN_GROUP, Group, Json, Place, metadata_of, require_name
from libtortie.datastore.crd_shapes import Query, mismatch, spec_of, where_of
from libtortie.datastore.history_codec import facts_from_wire, facts_to_wire
from libtortie.datastore.port import Value
from libtortie.errors import Malformed
from libtortie.kube.objects import Api
from libtortie.model.history import Facts, Lane
from libtortie.model.keys import HistoryKey, Key, Scope

API = Api(OWN_GROUP, "v1", "historyrecords", "HistoryRecord", False)


@dataclass(frozen=True, slots=True)
class HistoryShape:
    """See `CrdShape`. The lane begins the name: `vm-1767225600000-0123456789ab`."""

    group: Group

    def place(self, key: Key) -> Place:
        """See `Shape`."""
        assert isinstance(key, HistoryKey)
        return require_name(Place(API, f"{key.lane}-{key.name}"))

    def queries(self, scope: Scope) -> tuple[Query, ...]:
        """All records: there are two lanes of them."""
        return (Query(API),)

    def key(self, body: Json) -> Key:
        """See `Shape`: the name says it all."""
        name = str(metadata_of(body).get("name"))
        lane, _, rest = name.partition("-")
        if lane not in tuple(Lane) or not rest:
            raise Malformed(f"{where_of(API, body)}: metadata.name: not of a record of ours")
        return HistoryKey(Lane(lane), rest)

    def value(self, key: Key, body: Json) -> Value:
        """See `Shape`."""
        where = where_of(API, body)
        return facts_from_wire(f"{where}: spec", spec_of(where, body))

    def body(self, key: Key, value: Value, old: Json | None, now: str) -> Json:
        """See `CrdShape`."""
        if not isinstance(key, HistoryKey) or not isinstance(value, Facts):
            raise mismatch(key, value)
        return {"metadata": {"name": self.place(key).name}, "spec": facts_to_wire(value)}
