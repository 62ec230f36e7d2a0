"""Changing the IPAM configuration, so that every place that holds a setting says the same.

The datastore has two places (`settings`) and a Kubernetes API may have a third for one of the
settings (`persistence`). The API is written first: it decides, so that a change which stops half
way is either not made or made. A change that is refused, or whose API does not answer, writes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from libtortie.datastore.port import Datastore
from libtortie.errors import AlreadyExists, InvalidInput, NotFound, TortieError, first_line
from libtortie.kube.objects import IPAMSettings, KubeObject
from libtortie.kube.port import KubeReader
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey
from libtortie.model.resources import IPAMConfiguration, ObjectMeta

from .attempts import Attempts
from .persistence import API_KINDS, FIELD, NAME, find_api_object, place_of
from .settings import CONFIGURATION, read_config
from .transaction import Transaction

T = TypeVar("T", bound=KubeObject)

MAX_BLOCKS_LIMIT = 1_000_000
COOLDOWN_LIMIT = 1200
"""Seconds."""


class KubeEditor(KubeReader, Protocol):
    """What changing the API's object needs: read, patch, create."""

    def patch(self, model: type[T], name: str, namespace: str, body: dict[str, Any]) -> T:
        """Merge-patch an object. Raises `NotFound`."""
        ...

    def create(self, model: type[T], body: dict[str, Any]) -> T:
        """Create an object. Raises `AlreadyExists`, `NotFound` for a kind that is not served."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """What to set; None leaves a setting as it is. `cooldown_seconds` in seconds."""

    strict_affinity: bool | None = None
    max_blocks_per_host: int | None = None
    persistence: Persistence | None = None
    cooldown_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """The datastore's configuration afterwards; the API's object that was written, or ""."""

    config: IPAMConfig
    api_place: str


def changed(config: IPAMConfig, change: Change) -> IPAMConfig:
    """A configuration after a change. Raises `InvalidInput` for one that Calico refuses, too."""
    wanted: dict[str, Any] = {
        "strict_affinity": change.strict_affinity,
        "max_blocks_per_host": change.max_blocks_per_host,
        "kubevirt_persistence": change.persistence,
        "cooldown_seconds": change.cooldown_seconds,
    }
    new = replace(config, **{name: value for name, value in wanted.items() if value is not None})
    if not new.strict_affinity and not new.auto_allocate_blocks:
        raise InvalidInput(
            "strictAffinity and autoAllocateBlocks cannot both be false: set strictAffinity to true"
        )
    if not 0 <= new.max_blocks_per_host <= MAX_BLOCKS_LIMIT:
        raise InvalidInput(
            f"maxBlocksPerHost is {new.max_blocks_per_host}; want 0 to {MAX_BLOCKS_LIMIT}"
        )
    if new.max_blocks_per_host and not new.strict_affinity:
        raise InvalidInput(
            f"maxBlocksPerHost {new.max_blocks_per_host} needs strictAffinity: set it to true, "
            "or maxBlocksPerHost to 0"
        )
    if not 0 <= new.cooldown_seconds <= COOLDOWN_LIMIT:
        raise InvalidInput(f"ipCooldownSeconds is {new.cooldown_seconds}; want 0 to 1200")
    return new


def configure(
    store: Datastore, kube: KubeEditor | None, change: Change, attempts: Attempts
) -> Changed:
    """Make a change wherever it has to be made.

    Raises `InvalidInput`, and what API and store raise: before the API was written nothing is
    changed; an error after that says what is.
    """
    after = changed(read_config(Transaction(store)), change)
    place = ""
    if kube is not None and change.persistence is not None:
        place = _write_api(kube, change.persistence, after)
    try:
        config = attempts.run("configure IPAM", lambda tx: _stage(tx, change))
    except TortieError as error:
        if not place:
            raise
        raise TortieError(
            f"{FIELD} is {change.persistence} in {place}, which decides, but the datastore was not "
            f"changed: {first_line(error)}; repeat the command"
        ) from error
    return Changed(config, place)


def _stage(tx: Transaction, change: Change) -> IPAMConfig:
    """Record and resource, each only if it differs: where both are one object, once is enough."""
    new = changed(read_config(tx), change)
    if tx.value(IPAMConfigKey(), IPAMConfig) != new:
        tx.put(IPAMConfigKey(), new)
    resource = tx.value(CONFIGURATION, IPAMConfiguration)
    held = resource or IPAMConfiguration(metadata=ObjectMeta(name=CONFIGURATION.name))
    fields: dict[str, Any] = {
        "strict_affinity": new.strict_affinity,
        "auto_allocate_blocks": new.auto_allocate_blocks,
        "max_blocks_per_host": new.max_blocks_per_host,
        "ip_cooldown_seconds": new.cooldown_seconds,
    }
    if change.persistence is not None:
        fields["kubevirt_persistence"] = change.persistence.value
    spec = held.spec.model_copy(update=fields)
    if resource is None or resource.spec != spec:
        tx.put(CONFIGURATION, held.model_copy(update={"spec": spec}))
    return new


def _write_api(kube: KubeEditor, value: Persistence, config: IPAMConfig) -> str:
    """Set the field on the API's object, made if there is none; "" where no kind is served.

    The object is the one that decides: the first that exists.
    """
    patch = {"spec": {FIELD: value.value}}
    found = find_api_object(kube)
    if found is not None:
        kube.patch(type(found), NAME, "", patch)
        return place_of(type(found))
    body = {
        "metadata": {"name": NAME},
        "spec": {
            "strictAffinity": config.strict_affinity,
            "autoAllocateBlocks": config.auto_allocate_blocks,
            FIELD: value.value,
        },
    }
    for kind in API_KINDS:
        try:
            _create(kube, kind, body, patch)
        except NotFound:
            continue
        return place_of(kind)
    return ""


def _create(
    kube: KubeEditor, kind: type[IPAMSettings], body: dict[str, Any], patch: dict[str, Any]
) -> None:
    try:
        kube.create(kind, body)
    except AlreadyExists:
        kube.patch(kind, NAME, "", patch)


__all__ = ["Change", "Changed", "KubeEditor", "changed", "configure"]
