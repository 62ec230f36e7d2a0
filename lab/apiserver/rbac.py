"""Who may do what: role-based access control over the stored roles and bindings.

Rules only allow; what no rule allows is refused. `system:masters` may do everything. It does not
guard against escalation: who may write bindings may grant anything.
Source: Kubernetes, "Using RBAC Authorization".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lab.apiserver.auth import SERVICE_ACCOUNT, User
from lab.apiserver.errors import Attributes, Json
from lab.apiserver.kinds import RBAC
from lab.apiserver.selectors import selector_test
from lab.apiserver.store import Store

Mode = Literal["AlwaysAllow", "RBAC", "AllowUntilRBAC"]
MODES: tuple[Mode, ...] = ("AlwaysAllow", "RBAC", "AllowUntilRBAC")
MASTERS = "system:masters"
_ROLES, _CLUSTER_ROLES = f"roles.{RBAC}", f"clusterroles.{RBAC}"
_BINDINGS, _CLUSTER_BINDINGS = f"rolebindings.{RBAC}", f"clusterrolebindings.{RBAC}"


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer, and why."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """The rules one binding gives to a user."""

    rules: tuple[Json, ...]
    reason: str
    missing: str = ""


class Authorizer(Protocol):
    """Decides."""

    def decide(self, user: User, asked: Attributes) -> Decision:
        """Whether a user may do it."""
        ...

    def rules(self, user: User, namespace: str) -> tuple[Json, ...]:
        """Everything a user may do in a namespace, as policy rules."""
        ...


class AlwaysAllow:
    """Everybody may do everything."""

    def decide(self, user: User, asked: Attributes) -> Decision:
        """Yes."""
        return Decision(True)

    def rules(self, user: User, namespace: str) -> tuple[Json, ...]:
        """All."""
        return (
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
            {"verbs": ["*"], "nonResourceURLs": ["*"]},
        )


class Rbac:
    """By the roles and bindings in a store. With `open_while_empty` everybody may do everything
    as long as there are none but those every cluster has."""

    def __init__(self, store: Store, *, open_while_empty: bool = False) -> None:
        self._store = store
        self._open_while_empty = open_while_empty

    def decide(self, user: User, asked: Attributes) -> Decision:
        """See the protocol. The reason of a refusal names roles that do not exist."""
        if self._bypassed(user):
            return Decision(True)
        missing = []
        for grant in self._grants(user, asked.namespace):
            if any(allows(rule, asked) for rule in grant.rules):
                return Decision(True, grant.reason)
            if grant.missing:
                missing.append(grant.missing)
        if not missing:
            return Decision(False)
        named = missing[0] if len(missing) == 1 else f"[{', '.join(missing)}]"
        return Decision(False, f"RBAC: {named}")

    def rules(self, user: User, namespace: str) -> tuple[Json, ...]:
        """See the protocol."""
        if self._bypassed(user):
            return AlwaysAllow().rules(user, namespace)
        return tuple(rule for grant in self._grants(user, namespace) for rule in grant.rules)

    def _bypassed(self, user: User) -> bool:
        if MASTERS in user.groups:
            return True
        return self._open_while_empty and not any(
            "kubernetes.io/bootstrapping" not in (body["metadata"].get("labels") or {})
            for resource in (_ROLES, _CLUSTER_ROLES, _BINDINGS, _CLUSTER_BINDINGS)
            for body in self._store.list(resource)[0]
        )

    def _grants(self, user: User, namespace: str) -> Iterator[Grant]:
        for binding in self._store.list(_CLUSTER_BINDINGS)[0]:
            yield from self._grant(user, binding, "")
        if namespace:
            for binding in self._store.list(_BINDINGS, namespace)[0]:
                for grant in self._grant(user, binding, namespace):
                    resource_rules = tuple(r for r in grant.rules if not r.get("nonResourceURLs"))
                    yield Grant(resource_rules, grant.reason, grant.missing)

    def _grant(self, user: User, binding: Json, namespace: str) -> Iterator[Grant]:
        for subject in binding.get("subjects") or ():
            if not is_subject(user, subject, namespace):
                continue
            reference, name = binding.get("roleRef") or {}, binding["metadata"]["name"]
            kind = "RoleBinding" if namespace else "ClusterRoleBinding"
            where = f"/{namespace}" if namespace else ""
            reason = (
                f'RBAC: allowed by {kind} "{name}{where}" of {reference.get("kind")} '
                f'"{reference.get("name")}" to {_described(subject, namespace)}'
            )
            rules = self._rules_of(reference, namespace)
            missing = ""
            if rules is None:
                role = f"{str(reference.get('kind', '')).lower()}.{RBAC}"
                missing = f'{role} "{reference.get("name")}" not found'
            yield Grant(tuple(rules or ()), reason, missing)
            return

    def _rules_of(self, reference: Json, namespace: str) -> Sequence[Json] | None:
        """The rules of a role, with those it aggregates; None when there is no such role."""
        cluster = reference.get("kind") == "ClusterRole"
        key = ("" if cluster else namespace, str(reference.get("name", "")))
        role = self._store.get(_CLUSTER_ROLES if cluster else _ROLES, key)
        if role is None:
            return None
        rules = list(role.get("rules") or ())
        for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
            matches = selector_test(selector)
            for other in self._store.list(_CLUSTER_ROLES)[0]:
                if other is not role and matches(other):
                    rules += other.get("rules") or ()
        return rules


def authorizer(mode: Mode, store: Store) -> Authorizer:
    """The authorizer of a mode."""
    if mode == "AlwaysAllow":
        return AlwaysAllow()
    return Rbac(store, open_while_empty=mode == "AllowUntilRBAC")


def is_subject(user: User, subject: Json, namespace: str) -> bool:
    """Whether a binding's subject is this user."""
    name = subject.get("name", "")
    match subject.get("kind"):
        case "User":
            return bool(name == user.name)
        case "Group":
            return name in user.groups
        case "ServiceAccount":
            home = subject.get("namespace") or namespace
            return bool(home) and user.name == f"{SERVICE_ACCOUNT}{home}:{name}"
    return False


def _described(subject: Json, namespace: str) -> str:
    if subject.get("kind") == "ServiceAccount":
        home = subject.get("namespace") or namespace
        return f'ServiceAccount "{subject.get("name")}/{home}"'
    return f'{subject.get("kind")} "{subject.get("name")}"'


def allows(rule: Json, asked: Attributes) -> bool:
    """Whether one rule allows it."""
    if not _has(rule, "verbs", asked.verb):
        return False
    if asked.path:
        return any(_path_matches(str(url), asked.path) for url in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames") or ()
    return (
        _has(rule, "apiGroups", asked.group)
        and _resource_matches(rule.get("resources") or (), asked)
        and (not names or asked.name in names)
    )


def _has(rule: Json, key: str, wanted: str) -> bool:
    found: Sequence[Any] = rule.get(key) or ()
    return "*" in found or wanted in found


def _resource_matches(resources: Sequence[Any], asked: Attributes) -> bool:
    if not asked.subresource:
        return "*" in resources or asked.resource in resources
    wanted = (f"{asked.resource}/{asked.subresource}", f"*/{asked.subresource}", "*")
    return any(one in resources for one in wanted)


def _path_matches(url: str, path: str) -> bool:
    return url in ("*", path) or (url.endswith("*") and path.startswith(url[:-1]))
