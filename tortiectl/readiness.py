"""The lock of a datastore: ClusterInformation's `datastoreReady`, as Calico's nodes obey it."""

from __future__ import annotations

from libtortie.datastore.port import Datastore, Record
from libtortie.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import ClusterInformation, ClusterInformationSpec, ObjectMeta

CLUSTER = ResourceKey(Kind.CLUSTER_INFORMATION, "default")
_ATTEMPTS = 20


def cluster_of(store: Datastore) -> tuple[Record | None, ClusterInformationSpec | None]:
    """The ClusterInformation, if there is one that can be read."""
    record = store.snapshot([CLUSTER]).records.get(CLUSTER)
    if record is None or not isinstance(record.value, ClusterInformation):
        return None, None
    return record, record.value.spec


def is_locked(store: Datastore) -> bool:
    """Whether nobody allocates or frees."""
    spec = cluster_of(store)[1]
    return spec is not None and spec.datastore_ready is False


def set_ready(store: Datastore, ready: bool) -> None:
    """Lock or unlock. Raises `Conflict` when others always were quicker."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _set(store, ready)
            return
        except (Conflict, AlreadyExists):
            if attempt == _ATTEMPTS:
                raise


def require_locked(store: Datastore) -> None:
    """Raises `InvalidInput`, with the way to lock."""
    if not is_locked(store):
        raise InvalidInput(
            "the datastore is not locked: run `tortiectl datastore migrate lock` first"
        )


def _set(store: Datastore, ready: bool) -> None:
    try:
        record = store.get(CLUSTER)
    except NotFound:
        meta = ObjectMeta(name=CLUSTER.name)
        spec = ClusterInformationSpec(datastore_ready=ready)
        store.create(CLUSTER, ClusterInformation(metadata=meta, spec=spec))
        return
    value = record.value
    if not isinstance(value, ClusterInformation):
        raise InvalidInput(f"ClusterInformation default holds a {value.__class__.__name__}")
    spec = value.spec.model_copy(update={"datastore_ready": ready})
    store.update(CLUSTER, value.model_copy(update={"spec": spec}), record.revision)
