"""A datastore's contents out of one and into another. May be repeated until it is done.

IPAM's records are never overwritten: one that is there and another is an error, found before
anything is written. The target is locked first and stays locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from libtortie.client_config import KUBERNETES
from libtortie.datastore.default_profile import KEY as DEFAULT_PROFILE
from libtortie.datastore.port import Create, Datastore, Record, Value
from libtortie.errors import AlreadyExists, InvalidInput, TortieError, first_line
from libtortie.kube.port import NotServed
from libtortie.model.history import Lane
from libtortie.model.keys import (
    Affinities,
    Blocks,
    Handles,
    History,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
    Resources,
    path_of,
)
from libtortie.model.resources import ClusterInformation, Node, Resource
from tortiectl.manifests import Wanted, called
from tortiectl.migration_file import KINDS, VIEWS, Contents
from tortiectl.readiness import CLUSTER, set_ready
from tortiectl.writing import BATCH, Verb, write_all

MIRRORED = "knp.default."
"""Names of what calico-kube-controllers makes of Kubernetes' own policies."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Imported:
    """How much was written. `lost` is why the history did not come along, empty if it did."""

    resources: int
    records: int
    history: int = 0
    lost: str = ""


def resources_of(store: Datastore, *, everything: bool) -> Iterator[tuple[Kind, list[Record]]]:
    """What is carried of each kind. Raises `InvalidInput` naming what cannot be read."""
    for kind in (*KINDS, *(VIEWS if everything else ())):
        listing = store.list(Resources(kind))
        if listing.malformed:
            raise InvalidInput("\n".join(listing.malformed))
        yield (
            kind,
            [
                one
                for one in listing.records
                if one.key != DEFAULT_PROFILE
                and not (isinstance(one.key, ResourceKey) and one.key.name.startswith(MIRRORED))
            ],
        )


def ipam_of(store: Datastore) -> Iterator[Record]:
    """IPAM's records: affinities, blocks, handles, the configuration."""
    for scope in (Affinities(), Blocks(4), Blocks(6), Handles()):
        for part in store.parts(scope):
            if part.malformed:
                raise InvalidInput("\n".join(part.malformed))
            yield from part.records
    found = store.snapshot([IPAMConfigKey()]).records.get(IPAMConfigKey())
    if found is not None:
        yield found


def history_of(store: Datastore, unreadable: Callable[[str], None]) -> Iterator[Record]:
    """The history's records; one that cannot be read is told of, and left out."""
    for lane in Lane:
        try:
            for part in store.parts(History(lane)):
                for text in part.malformed:
                    unreadable(text)
                yield from part.records
        except NotServed:
            return


def import_all(
    store: Datastore, contents: Contents, datastore: str, tell: Callable[[int], None]
) -> Imported:
    """Write what a file carries. `tell` is told how many more were looked at.

    Raises `InvalidInput` before anything is written, or with what was.
    """
    wanted = _resources_for(contents.resources, datastore)
    missing = list(_obstacles(store, wanted, contents, datastore))
    if missing:
        more = f"\nand {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise InvalidInput("\n".join(missing[:_SHOWN]) + more)
    set_ready(store, False)
    _take_identity(store, contents.cluster)
    for start in range(0, len(wanted), BATCH):
        batch = wanted[start : start + BATCH]
        outcome = write_all(store, Verb.APPLY, [Wanted("import", one) for one in batch])
        if outcome.errors:
            resource, why = outcome.errors[0]
            raise InvalidInput(
                f"{called(resource)}: {why}\n{start + len(outcome.done)} of {len(wanted)} "
                "resources are written, and nothing of IPAM; mend it and import again"
            )
        tell(len(batch))
    records = _write_ipam(store, contents.ipam, tell)
    kept, lost = _write_history(store, contents.history, tell)
    return Imported(len(wanted), records, kept, lost)


def _resources_for(resources: Iterable[Resource], datastore: str) -> list[Resource]:
    first = {Kind.TIER: 0, Kind.BGP_FILTER: 0}
    kept = [one for one in resources if datastore != KUBERNETES or Kind(one.kind) not in VIEWS]
    return sorted(kept, key=lambda one: first.get(Kind(one.kind), 1))


def _obstacles(
    store: Datastore, resources: Sequence[Resource], contents: Contents, datastore: str
) -> Iterator[str]:
    """Why nothing is to be written."""
    if datastore == KUBERNETES:
        nodes = [one for one in resources if isinstance(one, Node)]
        there = store.snapshot([one.key for one in nodes]).records
        for one in nodes:
            other = _kubernetes_name(one)
            if other not in ("", one.metadata.name):
                yield f"{called(one)} is {other} in Kubernetes: a node's names must be the same"
            elif one.key not in there:
                yield f"{called(one)} is not in the cluster: let its kubelet register it first"
    for start in range(0, len(contents.ipam), BATCH):
        batch = dict(contents.ipam[start : start + BATCH])
        known = store.snapshot(list(batch)).records
        for key, record in known.items():
            if key != IPAMConfigKey() and not _same(record.value, batch[key]):
                yield f"{path_of(key)} is there already, and another: this datastore is in use"


def _kubernetes_name(node: Node) -> str:
    for one in node.to_wire()["spec"].get("orchRefs") or ():
        if one.get("orchestrator") == "k8s":
            return str(one.get("nodeName", ""))
    return ""


def _take_identity(store: Datastore, cluster: ClusterInformation | None) -> None:
    """The cluster is the same one in another place: its GUID, type and version are kept."""
    if cluster is None:
        return
    record = store.get(CLUSTER)
    value = record.value
    if not isinstance(value, ClusterInformation):
        raise InvalidInput(f"ClusterInformation default holds a {value.__class__.__name__}")
    spec = cluster.spec.model_copy(update={"datastore_ready": False})
    if value.spec != spec:
        store.update(CLUSTER, value.model_copy(update={"spec": spec}), record.revision)


def _write_ipam(
    store: Datastore, records: Sequence[tuple[Key, Value]], tell: Callable[[int], None]
) -> int:
    """Create what is not there yet. Raises `InvalidInput` with how far it came."""
    written = 0
    size = BATCH if store.atomic else 1
    for start in range(0, len(records), size):
        batch = dict(records[start : start + size])
        known = store.snapshot(list(batch)).records
        ops = [Create(key, value) for key, value in batch.items() if key not in known]
        config = known.get(IPAMConfigKey())
        try:
            if ops:
                store.commit(ops)
            if config is not None and not _same(config.value, batch[IPAMConfigKey()]):
                store.update(IPAMConfigKey(), batch[IPAMConfigKey()], config.revision)
        except AlreadyExists as error:
            raise InvalidInput(f"somebody else writes into this datastore: {error}") from error
        except TortieError as error:
            raise InvalidInput(
                f"{error}\n{start} of {len(records)} records of IPAM are written, and the "
                "datastore stays locked: import again"
            ) from error
        written += len(ops)
        tell(len(batch))
    return written


def _write_history(
    store: Datastore, records: Sequence[tuple[Key, Value]], tell: Callable[[int], None]
) -> tuple[int, str]:
    """Create what is not there yet; how many, and why not all: nothing depends on them."""
    written = 0
    for key, value in records:
        try:
            store.create(key, value)
            written += 1
        except AlreadyExists:
            pass
        except TortieError as error:
            return written, f"{written} of {len(records)} records are written: {first_line(error)}"
        tell(1)
    return written, ""


def _same(stored: Value, wanted: Value) -> bool:
    return stored == wanted
