"""What the cluster says of itself, in calicoctl's words."""

from __future__ import annotations

from collections.abc import Iterator

from libtortie.datastore.port import Datastore
from libtortie.errors import NotFound, TortieError
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import ClusterInformation

_KEY = ResourceKey(Kind.CLUSTER_INFORMATION, "default")
_UNKNOWN = "unknown"


def cluster_lines(store: Datastore) -> Iterator[str]:
    """Lines for `version`. Raises `NotFound` for a cluster that was never initialised."""
    try:
        value = store.get(_KEY).value
    except NotFound as error:
        raise NotFound(
            "Unable to retrieve Cluster Version or Type: there is no ClusterInformation; "
            "no node has been started on this datastore"
        ) from error
    if not isinstance(value, ClusterInformation):
        raise TortieError(f"ClusterInformation default holds a {value.__class__.__name__}")
    spec = value.spec
    yield f"Cluster Version:   {spec.calico_version or _UNKNOWN}"
    yield f"Cluster Type:      {spec.cluster_type or _UNKNOWN}"
    yield f"Cluster GUID:      {spec.cluster_guid or _UNKNOWN}"
    yield f"Datastore Ready:   {_ready(spec.datastore_ready)}"


def _ready(value: bool | None) -> str:
    return _UNKNOWN if value is None else str(value).lower()
