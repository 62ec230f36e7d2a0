"""From method, path and query to what is asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from lab.apiserver import errors, selectors
from lab.apiserver.errors import Attributes
from lab.apiserver.kind import Kind
from lab.apiserver.kinds import Catalogue

_VERBS: Final[Mapping[tuple[str, bool], str]] = {
    ("GET", True): "get",
    ("GET", False): "list",
    ("POST", False): "create",
    ("PUT", True): "update",
    ("PATCH", True): "patch",
    ("DELETE", True): "delete",
    ("DELETE", False): "deletecollection",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A resource request."""

    verb: str
    kind: Kind
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be stored."""
        return self.query.get("dryRun", "") == "All"

    @property
    def resource(self) -> str:
        """`pods`, `pods/status`, `ippools.projectcalico.org`."""
        return (
            f"{self.kind.resource}/{self.subresource}" if self.subresource else (self.kind.resource)
        )

    @property
    def attributes(self) -> Attributes:
        """What an authorizer judges: a list or watch of one name is about that name, and a
        namespace is in itself."""
        name = self.name or selectors.only_name(self.query.get("fieldSelector", ""))
        return Attributes(
            self.verb,
            self.kind.group,
            self.kind.plural,
            self.subresource,
            self.name if self.kind.resource == "namespaces" else self.namespace,
            name,
        )


def split(url: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Path segments, decoded one by one, and the query."""
    parts = urlsplit(url)
    segments = tuple(unquote(step) for step in parts.path.split("/") if step)
    return segments, dict(parse_qsl(parts.query, keep_blank_values=True))


def target(
    method: str, segments: tuple[str, ...], query: Mapping[str, str], catalogue: Catalogue
) -> Target:
    """The resource request of a path below /api or /apis. Raises 404, 405."""
    if segments[:1] == ("api",):
        group, version, rest = "", segments[1] if len(segments) > 1 else "", segments[2:]
    elif segments[:1] == ("apis",) and len(segments) >= 3:
        group, version, rest = segments[1], segments[2], segments[3:]
    else:
        raise errors.not_served()
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces":
        inner = catalogue.find(group, version, rest[2])
        if inner is not None and inner.namespaced:
            namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3:
        raise errors.not_served()
    kind = catalogue.find(group, version, rest[0])
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if kind is None or (kind.namespaced and name and not namespace):
        raise errors.not_served()
    below = kind.subresource(subresource) is not None
    if subresource and not below and method in ("POST", "DELETE"):
        raise errors.not_served()
    if (below or kind.virtual) and method != "POST":
        raise _not_allowed()
    if kind.namespaced and not namespace and method != "GET":
        raise _not_allowed()
    verb = _verb(method, "" if below else name, query)
    return Target(verb, kind, namespace, name, subresource, query)


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    verb = _VERBS.get((method, bool(name)))
    if verb is None:
        raise _not_allowed()
    if verb == "list" and query.get("watch", "") in ("true", "1"):
        return "watch"
    return verb


def _not_allowed() -> errors.ApiError:
    return errors.ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )
