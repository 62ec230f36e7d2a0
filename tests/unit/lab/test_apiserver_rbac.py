"""RBAC: rules, subjects, roles that are missing or aggregated, and the questions about it."""

from __future__ import annotations

from typing import Any

import pytest

from lab.apiserver import reviews
from lab.apiserver.api import Api
from lab.apiserver.auth import User, impersonated, impersonation
from lab.apiserver.errors import ApiError, Attributes, forbidden
from lab.apiserver.kinds import RBAC
from lab.apiserver.rbac import Rbac, allows, authorizer, is_subject

Json = dict[str, Any]
ALICE = User("alice", ("dev", "system:authenticated"))
GET_POD = Attributes("get", resource="pods", namespace="shop", name="web")


def rule(**keys: list[str]) -> Json:
    return {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], **keys}


@pytest.mark.parametrize(
    ("found", "asked", "expected"),
    [
        (rule(), GET_POD, True),
        (rule(verbs=["list"]), GET_POD, False),
        (rule(verbs=["*"]), GET_POD, True),
        (rule(apiGroups=["apps"]), GET_POD, False),
        (rule(apiGroups=["*"]), GET_POD, True),
        (rule(resources=["*"]), GET_POD, True),
        (rule(resourceNames=["web"]), GET_POD, True),
        (rule(resourceNames=["db"]), GET_POD, False),
        (rule(resourceNames=["web"]), Attributes("get", resource="pods"), False),
        (rule(), Attributes("get", resource="pods", subresource="status"), False),
        (
            rule(resources=["pods/status"]),
            Attributes("get", resource="pods", subresource="status"),
            True,
        ),
        (rule(resources=["*/status"]), Attributes("get", "", "pods", "status"), True),
        (rule(resources=["pods/status"]), GET_POD, False),
        (rule(), Attributes("get", path="/api"), False),
        ({"verbs": ["get"], "nonResourceURLs": ["/api"]}, Attributes("get", path="/api"), True),
        ({"verbs": ["get"], "nonResourceURLs": ["/api/*"]}, Attributes("get", path="/api/x"), True),
        ({"verbs": ["get"], "nonResourceURLs": ["/api/*"]}, Attributes("get", path="/apis"), False),
        ({"verbs": ["get"], "nonResourceURLs": ["*"]}, GET_POD, False),
        ({}, GET_POD, False),
    ],
)
def test_one_rule(found: Json, asked: Attributes, expected: bool) -> None:
    assert allows(found, asked) is expected


@pytest.mark.parametrize(
    ("subject", "namespace", "expected"),
    [
        ({"kind": "User", "name": "alice"}, "", True),
        ({"kind": "User", "name": "dev"}, "", False),
        ({"kind": "Group", "name": "dev"}, "", True),
        ({"kind": "Group", "name": "alice"}, "", False),
        ({"kind": "ServiceAccount", "name": "alice"}, "shop", False),
        ({"kind": "Robot", "name": "alice"}, "", False),
    ],
)
def test_subjects(subject: Json, namespace: str, expected: bool) -> None:
    assert is_subject(ALICE, subject, namespace) is expected


def test_service_accounts_are_subjects_of_their_namespace() -> None:
    agent = User("system:serviceaccount:kube-system:agent").authenticated()
    assert "system:serviceaccounts:kube-system" in agent.groups
    named = {"kind": "ServiceAccount", "name": "agent"}
    assert is_subject(agent, {**named, "namespace": "kube-system"}, "")
    assert is_subject(agent, named, "kube-system")
    assert not is_subject(agent, named, "shop")
    assert not is_subject(agent, named, "")


@pytest.fixture
def api() -> Api:
    return Api(namespaces_must_exist=False)


def put(api: Api, plural: str, namespace: str, name: str, **more: Any) -> None:
    api.create(api.kind(RBAC, "v1", plural), namespace, {"metadata": {"name": name}, **more})


def bind(api: Api, namespace: str, role: str, kind: str = "ClusterRole", **subject: str) -> None:
    plural = "rolebindings" if namespace else "clusterrolebindings"
    found = subject or {"kind": "User", "name": "alice"}
    put(
        api,
        plural,
        namespace,
        f"to-{role}",
        roleRef={"apiGroup": RBAC, "kind": kind, "name": role},
        subjects=[found],
    )


def test_a_role_binding_is_for_its_namespace_only(api: Api) -> None:
    put(api, "clusterroles", "", "reader", rules=[rule()])
    bind(api, "shop", "reader")
    rbac = Rbac(api.store)
    decision = rbac.decide(ALICE, GET_POD)
    assert decision.allowed
    assert decision.reason == (
        'RBAC: allowed by RoleBinding "to-reader/shop" of ClusterRole "reader" to User "alice"'
    )
    assert not rbac.decide(ALICE, Attributes("get", resource="pods", namespace="other")).allowed
    assert not rbac.decide(ALICE, Attributes("get", resource="pods")).allowed
    assert not rbac.decide(User("bob"), GET_POD).allowed


def test_a_role_binding_grants_no_paths(api: Api) -> None:
    paths = {"verbs": ["get"], "nonResourceURLs": ["/metrics"]}
    put(api, "clusterroles", "", "metrics", rules=[paths])
    bind(api, "shop", "metrics")
    asked = Attributes("get", path="/metrics")
    assert not Rbac(api.store).decide(ALICE, asked).allowed
    assert Rbac(api.store).rules(ALICE, "shop") == ()
    bind(api, "", "metrics")
    assert Rbac(api.store).decide(ALICE, asked).allowed
    assert Rbac(api.store).rules(ALICE, "shop") == (paths,)


def test_a_missing_role_is_named(api: Api) -> None:
    bind(api, "", "ghost")
    bind(api, "shop", "spook", kind="Role")
    decision = Rbac(api.store).decide(ALICE, GET_POD)
    assert not decision.allowed
    assert decision.reason == (
        f'RBAC: [clusterrole.{RBAC} "ghost" not found, role.{RBAC} "spook" not found]'
    )


def test_aggregated_roles(api: Api) -> None:
    chosen = {"metadata": {"name": "part", "labels": {"to": "sum"}}, "rules": [rule()]}
    api.create(api.kind(RBAC, "v1", "clusterroles"), "", chosen)
    selectors = {"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]}
    put(api, "clusterroles", "", "sum", aggregationRule=selectors)
    bind(api, "", "sum")
    assert Rbac(api.store).decide(ALICE, GET_POD).allowed


def test_masters_and_modes(api: Api) -> None:
    master = User("root", ("system:masters",))
    assert Rbac(api.store).decide(master, GET_POD).allowed
    assert authorizer("AlwaysAllow", api.store).decide(ALICE, GET_POD).allowed
    lenient = authorizer("AllowUntilRBAC", api.store)
    assert lenient.decide(ALICE, GET_POD).allowed
    assert not authorizer("RBAC", api.store).decide(ALICE, GET_POD).allowed
    put(api, "roles", "shop", "any", rules=[])
    assert not lenient.decide(ALICE, GET_POD).allowed


@pytest.mark.parametrize(
    ("plural", "more"),
    [
        ("roles", {"rules": [{"verbs": "get"}]}),
        ("roles", {"rules": [{"resources": ["pods"]}]}),
        ("rolebindings", {"roleRef": {"kind": "Robot", "name": "x"}}),
        ("rolebindings", {"subjects": []}),
        ("clusterroles", {"rules": 7}),
    ],
)
def test_roles_that_could_not_be_judged_by_are_refused(api: Api, plural: str, more: Json) -> None:
    with pytest.raises(ApiError, match="is invalid") as caught:
        put(api, plural, "" if plural.startswith("cluster") else "shop", "bad", **more)
    assert caught.value.code == 422


def test_the_role_of_a_binding_cannot_be_changed(api: Api) -> None:
    bind(api, "shop", "reader")
    kind = api.kind(RBAC, "v1", "rolebindings")
    with pytest.raises(ApiError, match=r"roleRef: Invalid value.*field is immutable"):
        api.patch(kind, "shop", "to-reader", {"roleRef": {"name": "admin"}})


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            Attributes("list", resource="pods", namespace="shop"),
            'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the '
            'namespace "shop"',
        ),
        (
            Attributes("patch", "kubevirt.io", "virtualmachines", "status", "shop", "vm"),
            'virtualmachines.kubevirt.io "vm" is forbidden: User "alice" cannot patch resource '
            '"virtualmachines/status" in API group "kubevirt.io" in the namespace "shop"',
        ),
        (
            Attributes("get", resource="nodes", name="node1"),
            'nodes "node1" is forbidden: User "alice" cannot get resource "nodes" in API group "" '
            "at the cluster scope",
        ),
        (
            Attributes("get", path="/metrics"),
            'forbidden: User "alice" cannot get path "/metrics"',
        ),
    ],
)
def test_the_words_of_a_refusal(asked: Attributes, text: str) -> None:
    assert forbidden("alice", asked).message == text
    assert forbidden("alice", asked, "RBAC: x").message == f"{text}: RBAC: x"


def test_questions(api: Api) -> None:
    put(api, "roles", "shop", "reader", rules=[rule()])
    bind(api, "shop", "reader", kind="Role")
    rbac = Rbac(api.store)

    def ask(plural: str, spec: Json) -> Json:
        kind = next(k for k in api.catalogue.kinds if k.plural == plural)
        found: Json = reviews.answer(kind, {"spec": spec}, ALICE, rbac)["status"]
        return found

    about = {"verb": "get", "resource": "pods", "namespace": "shop"}
    assert ask("selfsubjectaccessreviews", {"resourceAttributes": about})["allowed"] is True
    about["verb"] = "delete"
    assert ask("selfsubjectaccessreviews", {"resourceAttributes": about}) == {"allowed": False}
    path = {"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}
    assert ask("selfsubjectaccessreviews", path) == {"allowed": False}
    other = {"user": "bob", "resourceAttributes": {**about, "verb": "get"}}
    assert ask("subjectaccessreviews", other) == {"allowed": False}
    rules = ask("selfsubjectrulesreviews", {"namespace": "shop"})
    assert (rules["resourceRules"], rules["nonResourceRules"]) == ([rule()], [])
    assert ask("selfsubjectreviews", {})["userInfo"]["username"] == "alice"
    for spec in ({}, {"resourceAttributes": about, **path}):
        with pytest.raises(ApiError, match="exactly one of"):
            ask("selfsubjectaccessreviews", spec)
    with pytest.raises(ApiError, match="at least one of user or group"):
        ask("subjectaccessreviews", {"resourceAttributes": about})


def test_impersonation() -> None:
    assert impersonation("", []) == ()
    assert impersonation("bob", ["dev"]) == (
        Attributes("impersonate", resource="users", name="bob"),
        Attributes("impersonate", resource="groups", name="dev"),
    )
    (account,) = impersonation("system:serviceaccount:shop:agent", [])
    assert (account.resource, account.namespace, account.name) == (
        *("serviceaccounts", "shop", "agent"),
    )
    assert impersonated(ALICE, "", []) is ALICE
    assert impersonated(ALICE, "bob", ["x"]).groups == ("x", "system:authenticated")
    with pytest.raises(ApiError, match="without impersonating a user"):
        impersonated(ALICE, "", ["x"])
