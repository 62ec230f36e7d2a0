"""Questions about oneself and others: who am I, may I, what may I. Never stored.

Kinds of authentication.k8s.io/v1 and authorization.k8s.io/v1, as `kubectl auth` asks them.
"""

from __future__ import annotations

from typing import Any

from lab.apiserver import errors
from lab.apiserver.auth import User
from lab.apiserver.errors import Attributes, Json
from lab.apiserver.kind import Kind
from lab.apiserver.rbac import Authorizer


def answer(kind: Kind, body: Any, user: User, authorizer: Authorizer) -> Json:
    """The question with its answer in `status`. Raises 400 and 422."""
    if not isinstance(body, dict) or not isinstance(body.get("spec") or {}, dict):
        raise errors.bad_request("the body is not an object with a spec")
    spec: Json = body.get("spec") or {}
    match kind.kind:
        case "SelfSubjectReview":
            status: Json = {"userInfo": {"username": user.name, "groups": list(user.groups)}}
        case "SelfSubjectRulesReview":
            status = _rules(authorizer.rules(user, str(spec.get("namespace") or "")))
        case "SelfSubjectAccessReview":
            status = _access(kind, spec, user, authorizer)
        case _:
            status = _access(kind, spec, _subject(kind, spec), authorizer)
    found = {**body, "kind": kind.kind, "apiVersion": kind.api_version, "status": status}
    return {"metadata": {}, **found}


def _subject(kind: Kind, spec: Json) -> User:
    name, groups = str(spec.get("user") or ""), tuple(map(str, spec.get("groups") or ()))
    if not name and not groups:
        why = "Invalid value: at least one of user or group must be specified"
        raise errors.invalid(kind.resource, kind.kind, "", "spec.user", why)
    return User(name, groups)


def _access(kind: Kind, spec: Json, user: User, authorizer: Authorizer) -> Json:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if isinstance(resource, dict) and path is None:
        parts = ("verb", "group", "resource", "subresource", "namespace", "name")
        asked = Attributes(**{part: str(resource.get(part) or "") for part in parts})
    elif isinstance(path, dict) and resource is None:
        asked = Attributes(str(path.get("verb") or ""), path=str(path.get("path") or "/"))
    else:
        why = (
            "Invalid value: exactly one of nonResourceAttributes or resourceAttributes "
            "must be specified"
        )
        raise errors.invalid(kind.resource, kind.kind, "", "spec.resourceAttributes", why)
    decision = authorizer.decide(user, asked)
    status: Json = {"allowed": decision.allowed}
    return status | ({"reason": decision.reason} if decision.reason else {})


def _rules(rules: tuple[Json, ...]) -> Json:
    return {
        "resourceRules": [rule for rule in rules if not rule.get("nonResourceURLs")],
        "nonResourceRules": [rule for rule in rules if rule.get("nonResourceURLs")],
        "incomplete": False,
    }
