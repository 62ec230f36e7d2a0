"""What the server knows of one kind of object, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource that is created only, with a kind of its own: `pods/eviction`."""

    name: str
    kind: str
    group: str
    version: str

    @property
    def api_version(self) -> str:
        """`policy/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True)
class Printed:
    """A column of a CRD: the value at a path such as `spec.cidr`, of an OpenAPI type."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """One served kind.

    `on_create` says what becomes of `status` in a create: a mapping replaces it, "keep" and "drop"
    do so. `builtin` kinds take strategic merge patches and unconditional updates, and their
    status subresource also changes labels and annotations; custom resources do none of these.
    A `virtual` kind is a question: it is created, answered and never stored. `immutable` fields
    stay as they are once set. `schema` is a CRD's `openAPIV3Schema` without the metadata, `printed`
    are its columns.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    builtin: bool = False
    virtual: bool = False
    on_create: Literal["keep", "drop"] | tuple[tuple[str, Any], ...] = "keep"
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()
    subresources: tuple[Subresource, ...] = ()
    only_name: str = ""
    schema: Mapping[str, Any] | None = None
    printed: tuple[Printed, ...] = ()

    @property
    def resource(self) -> str:
        """`pods`, `ippools.projectcalico.org`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """`v1`, `kubevirt.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """`PodList`."""
        return f"{self.kind}List"

    @property
    def verbs(self) -> tuple[str, ...]:
        """What can be done with it."""
        return ("create",) if self.virtual else VERBS

    @property
    def qualified(self) -> str:
        """The kind as errors name it: `Pod`, `IPPool.projectcalico.org`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def selectable(self) -> tuple[str, ...]:
        """Fields a field selector may name."""
        return ("metadata.name", "metadata.namespace", *self.fields)

    def subresource(self, name: str) -> Subresource | None:
        """One of its create-only subresources."""
        return next((found for found in self.subresources if found.name == name), None)
