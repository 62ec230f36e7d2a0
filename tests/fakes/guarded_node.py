"""A node whose API wants tokens: agent and plugin are two accounts with the roles of `conf/rbac/`.

Who asked for what, and whether it was allowed, is noted; a rule can be taken away while they run.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lab.apiserver.auth import SERVICE_ACCOUNT, User
from lab.apiserver.errors import Attributes
from lab.apiserver.rbac import Authorizer, Decision
from lab.apiserver.server import ApiServer
from tests.fakes.called_node import CalledNode
from tests.fakes.node_process import API_PORT

Json = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
AGENT, PLUGIN = "agent-token", "plugin-token"
ACCOUNTS = {AGENT: "tortie-node", PLUGIN: "tortie-cni"}


class Right(NamedTuple):
    """One thing that may be done: a verb of a resource (`pods/status`)."""

    verb: str
    group: str
    resource: str


def shipped(name: str) -> tuple[Json, ...]:
    """The objects of a file of `conf/rbac/`."""
    text = files("conf").joinpath("rbac", f"{name}.yaml").read_text()
    return tuple(yaml.safe_load_all(text))


def role_of(objects: tuple[Json, ...], name: str, kind: str = "ClusterRole") -> Json:
    """One role of a file."""
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def rights(rules: list[Json]) -> set[Right]:
    """Everything that some rules allow."""
    return {
        Right(verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def install(server: ApiServer, objects: tuple[Json, ...]) -> None:
    """What `kubectl apply` makes of them; accounts are tokens here."""
    for body in objects:
        if body["kind"] == "ServiceAccount":
            continue
        kind = next(k for k in server.api.catalogue.kinds if k.kind == body["kind"])
        namespace = body["metadata"].get("namespace", "")
        server.api.create(kind, namespace, copy.deepcopy(body))


def names(rule: Json, said: str) -> bool:
    """Whether a text says that something a rule allows is not allowed, as the server does."""
    return any(
        f'cannot {right.verb} resource "{right.resource}" in API group "{right.group}"' in said
        for right in rights([rule])
    )


class Witness:
    """An authorizer that notes what another decides."""

    def __init__(self, judge: Authorizer) -> None:
        self._judge = judge
        self._lock = threading.Lock()
        self._seen: list[tuple[str, Right, bool]] = []

    def decide(self, user: User, asked: Attributes) -> Decision:
        """As the judge does."""
        decision = self._judge.decide(user, asked)
        if asked.resource:
            below = f"/{asked.subresource}" if asked.subresource else ""
            right = Right(asked.verb, asked.group, asked.resource + below)
            with self._lock:
                self._seen.append((user.name, right, decision.allowed))
        return decision

    def rules(self, user: User, namespace: str) -> tuple[Json, ...]:
        """As the judge says."""
        return self._judge.rules(user, namespace)

    def seen(self, account: str, *, allowed: bool) -> set[Right]:
        """What an account of kube-system asked for, and got or did not."""
        name = f"{SERVICE_ACCOUNT}kube-system:{account}"
        with self._lock:
            return {right for user, right, said in self._seen if (user, said) == (name, allowed)}

    def all(self) -> tuple[tuple[str, Right, bool], ...]:
        """Everything, in order."""
        with self._lock:
            return tuple(self._seen)


class GuardedNode(CalledNode):
    """One node, its API with RBAC, and what `conf/rbac/` gives to its two accounts."""

    def __init__(self, root: Path, name: str, **config: Any) -> None:
        self.token = root / "token"
        self.kubeconfig = root / "plugin.kubeconfig"
        super().__init__(root, name, k8s_token_file=str(self.token), **config)
        self.token.write_text(AGENT)
        self.kubeconfig.write_text(self._plugins())
        for file in ("node", "cni"):
            install(self.server, shipped(file))

    def _start_api(self, stack: ExitStack) -> None:
        tokens = {token: f"{SERVICE_ACCOUNT}kube-system:{name}" for token, name in ACCOUNTS.items()}
        api = self.world.kube.api
        self.server = ApiServer(api=api, port=API_PORT, tokens=tokens, authorization="RBAC")
        self.witness = Witness(self.server.authorizer)
        self.server.authorizer = self.witness
        super()._start_api(stack)

    def _plugins(self) -> str:
        """The plugin's kubeconfig."""
        at = f"http://127.0.0.1:{API_PORT}"
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": at}}],
            "users": [{"name": "cni", "user": {"token": PLUGIN}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "cni"}}],
            "current-context": "here",
        }
        return yaml.safe_dump(body)

    def plugin(self, **settings: Any) -> dict[str, Any]:
        """With its own identity."""
        own = {"kubernetes": {"kubeconfig": str(self.kubeconfig)}}
        return super().plugin(**own | settings)

    @contextmanager
    def without(self, kind: str, name: str, index: int) -> Iterator[Json]:
        """A role without one of its rules, for a while; yields the rule."""
        plural = f"{kind.lower()}s.{RBAC}"
        key = ("" if kind == "ClusterRole" else "kube-system", name)
        whole = self.server.api.store.get(plural, key)
        assert whole is not None
        less = copy.deepcopy(whole)
        rule = less["rules"].pop(index)
        self._put(plural, key, less)
        try:
            yield rule
        finally:
            self._put(plural, key, whole)

    def _put(self, plural: str, key: tuple[str, str], body: Json) -> None:
        store = self.server.api.store
        now = store.get(plural, key)
        assert now is not None
        store.put(plural, key, copy.deepcopy(body), expected=now["metadata"]["resourceVersion"])
