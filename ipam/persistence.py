"""Whether a VM's addresses persist (`kubeVirtVMAddressPersistence`): one setting, several places.

A kubectl user sets it on the API's IPAMConfiguration `default`, whatever the datastore is. So where
an API is configured, serves the kind and its object sets the field, that decides; otherwise the
datastore does (`settings.stored_persistence`). An API that does not answer, or answers something
that cannot be read, is an error and never a value (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Mapping

from libtortie.datastore.port import Datastore
from libtortie.errors import Malformed, NotFound
from libtortie.kube.objects import IPAMSettings, IPAMSettingsV1
from libtortie.kube.port import KubeReader
from libtortie.model.ipam import Persistence

from .settings import Setting, stored_persistence
from .transaction import Transaction

API_KINDS: tuple[type[IPAMSettings], ...] = (IPAMSettings, IPAMSettingsV1)
"""Where the API may have it, in order: the first object that exists is the one."""

NAME = "default"
FIELD = "kubeVirtVMAddressPersistence"


def persistence(store: Datastore, kube: KubeReader | None) -> Setting:
    """The value in force and what decides it: one read of the API's object, if there is one.

    Raises what API and store raise, and `Malformed`; it never guesses.
    """
    found = find_api_object(kube) if kube is not None else None
    value = None if found is None else value_in(found)
    if found is not None and value is not None:
        return Setting(value, place_of(type(found)))
    return stored_persistence(Transaction(store))


def find_api_object(kube: KubeReader) -> IPAMSettings | None:
    """The API's object; None where there is none, or its kind is not served."""
    for kind in API_KINDS:
        try:
            return kube.get(kind, NAME)
        except NotFound:
            continue
    return None


def value_in(found: IPAMSettings) -> Persistence | None:
    """What an object of the API sets, None for nothing. Raises `Malformed`."""
    spec = {} if found.spec is None else found.spec
    where = place_of(type(found))
    if not isinstance(spec, Mapping):
        raise Malformed(f"{where}: spec: not an object")
    value = spec.get(FIELD)
    if value is None or value == "":
        return None
    if value not in tuple(Persistence):
        raise Malformed(f"{where}: spec.{FIELD}: {value!r} is none of {', '.join(Persistence)}")
    return Persistence(value)


def place_of(kind: type[IPAMSettings]) -> str:
    """How kubectl names the object of a kind."""
    return f"{kind.api.plural}.{kind.api.group}/{NAME}"
