"""Objects from the API with the user's credentials: what can be read, and what cannot and why.

One object that cannot be read hides no other: it is told. A kind that is not served, or that the
user may not list, is told in the words of who can change it. Never writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from pydantic import ValidationError

from libtortie.errors import InvalidInput, Malformed, NotFound, Unauthorized
from libtortie.kube.migrations import Object
from libtortie.kube.objects import Api
from libtortie.kube.port import NotServed
from tortiectl.kubevirt.objects import GROUP, KNOWN_VERSIONS, VMI

T = TypeVar("T", bound=Object)
Json = dict[str, Any]


class Objects(Protocol):
    """What is asked of the API: whole objects by kind."""

    @property
    def server(self) -> str: ...

    def get(self, api: Api, name: str, namespace: str = "") -> Json: ...

    def list(
        self, api: Api, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> tuple[tuple[Json, ...], str]: ...

    def groups(self) -> frozenset[str]: ...


class Gap(Enum):
    """Why a kind has no objects here."""

    NONE = "none"
    NOT_SERVED = "not served"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that is there and that nothing can be said about."""

    kind: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A kind's objects, those that cannot be read, and why there are none at all."""

    objects: tuple[T, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    gap: Gap = Gap.NONE
    reason: str = ""


def decode(model: type[T], body: Mapping[str, Any]) -> T:
    """One object. Raises `Malformed` naming it and the field."""
    group, _, version = str(body.get("apiVersion") or "").rpartition("/")
    if group == GROUP and model.api.group == GROUP and version not in KNOWN_VERSIONS:
        raise Malformed(
            f"{_name(model, body)}: its version {group}/{version} is not known: this one reads "
            f"{GROUP}/{' and '.join(KNOWN_VERSIONS)}; use one that knows it"
        )
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Malformed(f"{_name(model, body)}: {place}: {first['msg']}") from None


def _name(model: type[T], body: Mapping[str, Any]) -> str:
    meta = body.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    parts = [str(part) for part in (meta.get("namespace"), meta.get("name") or "?") if part]
    return f"{model.api.kind} {'/'.join(parts)}"


def read_list(
    objects: Objects,
    model: type[T],
    namespace: str = "",
    *,
    label_selector: str = "",
    field_selector: str = "",
) -> Listed[T]:
    """All objects of a kind; raises only when the API cannot be asked at all."""
    try:
        bodies, _ = objects.list(
            model.api, namespace, label_selector=label_selector, field_selector=field_selector
        )
    except NotServed as error:
        return Listed(gap=Gap.NOT_SERVED, reason=str(error))
    except Unauthorized as error:
        return Listed(gap=Gap.FORBIDDEN, reason=str(error))
    return sorted_out(model, bodies)


def sorted_out(model: type[T], bodies: tuple[Json, ...]) -> Listed[T]:
    """Bodies as objects, and those that cannot be."""
    read: list[T] = []
    unreadable: list[Unreadable] = []
    for body in bodies:
        try:
            read.append(decode(model, body))
        except Malformed as error:
            kind, _, rest = str(error).partition(" ")
            name, _, reason = rest.partition(": ")
            unreadable.append(Unreadable(kind, name, reason))
    return Listed(tuple(read), tuple(unreadable))


def absent(objects: Objects) -> NotFound:
    """What to say where KubeVirt's VMs are not served."""
    if GROUP in objects.groups():
        return NotFound(
            f"{objects.server} serves {GROUP}, but not {VMI.api.plural} in version "
            f"{VMI.api.version}, which this tortiectl reads"
        )
    return NotFound(
        f"no KubeVirt: {objects.server} does not serve {GROUP}; install KubeVirt, or choose its "
        "cluster with --context"
    )


def get_vmi(objects: Objects, name: str, namespace: str) -> VMI:
    """One VMI. Raises `NotFound` that says whether there is a VM of that name that does not run."""
    from tortiectl.kubevirt.objects import VM

    try:
        return decode(VMI, objects.get(VMI.api, name, namespace))
    except NotServed:
        raise absent(objects) from None
    except NotFound:
        pass
    try:
        vm = decode(VM, objects.get(VM.api, name, namespace))
    except NotFound:
        raise NotFound(f"there is no VM and no VMI {namespace}/{name}") from None
    state = vm.status.printable_status or "not running"
    raise NotFound(f"VM {vm.id} has no VMI: it does not run ({state})")


def split_id(text: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of `name` or `namespace/name`. Raises `InvalidInput`."""
    place, slash, name = text.rpartition("/")
    if not name or "/" in place or (slash and not place):
        raise InvalidInput(f"{text!r} is no VM: want NAME or NAMESPACE/NAME")
    return place or namespace, name
