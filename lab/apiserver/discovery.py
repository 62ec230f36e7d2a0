"""Discovery documents: what a client asks before it asks for anything else. Pure."""

from __future__ import annotations

from lab.apiserver.errors import Json
from lab.apiserver.kind import Kind, Subresource
from lab.apiserver.kinds import Catalogue

VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+tortie-lab",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "python",
    "platform": "linux/amd64",
}


def document(segments: tuple[str, ...], catalogue: Catalogue) -> Json | None:
    """The document at a path, or None when the path is not a discovery path that is served."""
    found: Json | None = None
    match segments:
        case ("version",):
            found = VERSION
        case ("api",):
            found = {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
        case ("apis",):
            groups = [g for g in dict.fromkeys(kind.group for kind in catalogue.served()) if g]
            described = [_group(name, catalogue) for name in groups]
            found = {"kind": "APIGroupList", "apiVersion": "v1", "groups": described}
        case ("apis", group) if any(kind.group == group for kind in catalogue.served()):
            found = {"kind": "APIGroup", "apiVersion": "v1", **_group(group, catalogue)}
        case ("api", version):
            found = _resources("", version, catalogue)
        case ("apis", group, version):
            found = _resources(group, version, catalogue)
    return found


def _group(name: str, catalogue: Catalogue) -> Json:
    versions = sorted({kind.version for kind in catalogue.served() if kind.group == name})
    described = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": described, "preferredVersion": described[0]}


def _resources(group: str, version: str, catalogue: Catalogue) -> Json | None:
    kinds = [k for k in catalogue.served() if (k.group, k.version) == (group, version)]
    if not kinds:
        return None
    found: list[Json] = []
    for kind in kinds:
        found.append(_resource(kind))
        if kind.status:
            found.append(
                {
                    "name": f"{kind.plural}/status",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": kind.kind,
                    "verbs": ["get", "patch", "update"],
                }
            )
        found += [_below(kind, below) for below in kind.subresources]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": found,
    }


def _resource(kind: Kind) -> Json:
    described: Json = {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        described["shortNames"] = list(kind.short_names)
    if kind.categories:
        described["categories"] = list(kind.categories)
    return described


def _below(kind: Kind, below: Subresource) -> Json:
    described: Json = {
        "name": f"{kind.plural}/{below.name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": below.kind,
        "verbs": ["create"],
    }
    if (below.group, below.version) != (kind.group, kind.version):
        described |= {"group": below.group, "version": below.version}
    return described
