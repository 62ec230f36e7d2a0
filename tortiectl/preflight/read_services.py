"""Rights, certificates, leases and budgets for a preflight: what the user may read of them.

All of it is worth having and none of it is needed: what may not be read is told. Never writes, and
of a secret only the certificate is looked at.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from libtortie.errors import Malformed, NotFound, TortieError, first_line
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.migrations import Migration
from libtortie.kube.objects import Api
from libtortie.kube.port import NotServed
from libtortie.model.times import parse_rfc3339
from libtortie.validity import validities
from tortiectl.kubevirt.objects import GROUP, Lease
from tortiectl.kubevirt.reading import Gap, Json, Objects, read_list
from tortiectl.kubevirt.spec import LabelSelector
from tortiectl.preflight.world import Budget, Certificate, Quota, Rule

SECRETS = (
    "kubevirt-virt-handler-certs",
    "kubevirt-virt-handler-server-certs",
    "kubevirt-virt-handler-migration-client-certs",
)
CA_MAP, CA_KEY = "kubevirt-ca", "ca-bundle"
_RULE = ("apiGroups", "resources", "verbs")
_RBAC = ("rbac.authorization.k8s.io", "v1")
_SECRET = Api("", "v1", "secrets", "Secret", True)
_CONFIG_MAP = Api("", "v1", "configmaps", "ConfigMap", True)
_BUDGET = Api("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True)
_QUOTA = Api("", "v1", "resourcequotas", "ResourceQuota", True)
_ROLE = Api(*_RBAC, "clusterroles", "ClusterRole", False)
_BINDING = Api(*_RBAC, "clusterrolebindings", "ClusterRoleBinding", False)
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_NODE_LEASES = "kube-node-lease"


@dataclass
class ServiceReading:
    """What is asked of the API, and what could not be had."""

    objects: Objects
    client: HttpKubeClient
    gaps: list[str] = field(default_factory=list)

    def _bodies(self, api: Api, what: str, namespace: str = "") -> tuple[Json, ...] | None:
        """A kind's objects; None, and a gap, where they may not be read."""
        try:
            return self.objects.list(api, namespace)[0]
        except NotServed:
            return ()
        except TortieError as error:
            self.gaps.append(f"{what}: {first_line(error)}")
            return None

    def rules(self) -> tuple[Rule, ...] | None:
        """What service accounts may do cluster-wide; None where that may not be read."""
        roles, bindings = self._bodies(_ROLE, "roles"), self._bodies(_BINDING, "role bindings")
        if roles is None or bindings is None:
            return None
        return tuple(rules_of(roles, bindings))

    def renewals(self) -> dict[str, datetime]:
        """When each node's lease was renewed, by the node's own clock."""
        listed = read_list(self.objects, Lease, _NODE_LEASES)
        if listed.gap is Gap.FORBIDDEN:
            self.gaps.append(f"clocks: {listed.reason}")
        found: dict[str, datetime] = {}
        for one in listed.objects:
            try:
                found[one.metadata.name] = parse_rfc3339(str(one.spec.get("renewTime") or ""))
            except ValueError:
                continue
        return found

    def certificates(self, namespace: str) -> tuple[Certificate, ...]:
        """KubeVirt's own, which the two ends of a migration show each other."""
        found: list[Certificate] = []
        for api, name, key in (
            (_CONFIG_MAP, CA_MAP, CA_KEY),
            *((_SECRET, name, "tls.crt") for name in SECRETS),
        ):
            try:
                body = self.objects.get(api, name, namespace)
            except NotFound:
                continue
            except TortieError as error:
                self.gaps.append(f"certificate {namespace}/{name}: {first_line(error)}")
                continue
            found += certificates_in(body, key, f"{namespace}/{name}")
        return tuple(found)

    def budgets(self, namespace: str) -> tuple[Budget, ...]:
        """PodDisruptionBudgets."""
        found = []
        for body in self._bodies(_BUDGET, "disruption budgets", namespace) or ():
            try:
                found.append(budget_of(body))
            except ValueError:
                name = _meta(body).get("name")
                self.gaps.append(f"disruption budget {name}: its selector cannot be read")
        return tuple(found)

    def quotas(self, namespace: str) -> tuple[Quota, ...]:
        """ResourceQuotas that count every pod."""
        bodies = self._bodies(_QUOTA, "quotas", namespace) or ()
        return tuple(one for one in map(quota_of, bodies) if one is not None)

    def may_migrate(self, namespace: str) -> bool | None:
        """Whether the user may create migrations; None where the API does not say."""
        attributes = {
            "verb": "create", "group": GROUP, "resource": Migration.api.plural,
            "namespace": namespace,
        }  # fmt: skip
        body = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }  # fmt: skip
        try:
            answer = self.client.raw("POST", _REVIEW, body)
        except TortieError:
            return None
        status = answer.get("status") if isinstance(answer, Mapping) else None
        allowed = status.get("allowed") if isinstance(status, Mapping) else None
        return allowed if isinstance(allowed, bool) else None


def certificates_in(body: Mapping[str, Any], key: str, place: str) -> Iterator[Certificate]:
    """The certificates in a ConfigMap or Secret. Pure.

    Of a bundle of authorities only the one that is valid longest matters: it holds the old ones
    until the last certificate that they signed is gone.
    """
    data = body.get("data")
    text = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        yield Certificate(place, problem=f"it has no {key}")
        return
    try:
        if body.get("kind") == "Secret" or "-----BEGIN" not in text:
            text = base64.b64decode(text, validate=True).decode("ascii", "replace")
        found = validities(text)
    except (Malformed, ValueError, binascii.Error) as error:
        yield Certificate(place, problem=f"{key}: {first_line(error)}")
        return
    if not found:
        yield Certificate(place, problem=f"{key} holds no certificate")
        return
    longest = max(found, key=lambda one: one.not_after) if key == CA_KEY else found[0]
    yield Certificate(place, longest.not_before, longest.not_after)


def rules_of(roles: Sequence[Json], bindings: Sequence[Json]) -> Iterator[Rule]:
    """Who has which rule, by cluster-wide bindings. Pure."""
    by_name = {str(_meta(role).get("name")): role.get("rules") for role in roles}
    for binding in bindings:
        reference = binding.get("roleRef")
        name = str(reference.get("name")) if isinstance(reference, Mapping) else ""
        for subject in _listed(binding.get("subjects")):
            if not isinstance(subject, Mapping) or subject.get("kind") != "ServiceAccount":
                continue
            who = f"{subject.get('namespace')}/{subject.get('name')}"
            yield Rule(who, frozenset(), frozenset(), frozenset())  # it exists, whatever it may
            for rule in _listed(by_name.get(name)):
                if isinstance(rule, Mapping):
                    yield Rule(who, *(_words(rule, key) for key in _RULE))


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _words(rule: Mapping[str, Any], key: str) -> frozenset[str]:
    return frozenset(one for one in _listed(rule.get(key)) if isinstance(one, str))


def budget_of(body: Json) -> Budget:
    """What a PodDisruptionBudget asks for. Raises ValueError for a selector that is none. Pure."""
    spec, meta = body.get("spec"), _meta(body)
    spec = spec if isinstance(spec, Mapping) else {}
    given = spec.get("selector")
    selector = None if given is None else LabelSelector.model_validate(given)
    place = str(meta.get("namespace", ""))
    return Budget(
        place, str(meta.get("name")), selector, spec.get("minAvailable"), spec.get("maxUnavailable")
    )


def quota_of(body: Json) -> Quota | None:
    """What a ResourceQuota allows; None for one of some pods only, by scope or class. Pure."""
    spec, status, meta = _map(body, "spec"), _map(body, "status"), _meta(body)
    if spec.get("scopes") or spec.get("scopeSelector"):
        return None
    hard, used = _map(spec, "hard"), _map(status, "used")
    return Quota(
        str(meta.get("namespace", "")),
        str(meta.get("name")),
        {str(name): str(value) for name, value in hard.items()},
        {str(name): str(value) for name, value in used.items()},
    )


def _map(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def _meta(body: Json) -> Mapping[str, Any]:
    found = body.get("metadata")
    return found if isinstance(found, Mapping) else {}
