"""Policies from files into the datastore: what is wrong is refused, all of it at once, by path."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from lab.apiserver import kubeconfig
from libtortie.datastore.crd_names import Group
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.policy_wire import read_policy
from libtortie.model.resources import Resource
from tests.fakes.kubernetes_store import kubernetes_api, stores_of
from tortiectl.cli import main

API = "projectcalico.org/v3"
RULE = {"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}


def policy(name: str = "web", namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec or {"selector": "app == 'web'", "ingress": [RULE]},
    }


def thing(kind: Kind, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind.value, "metadata": {"name": name}, "spec": spec}


class Ctl:
    """The command line, a datastore, and files to write."""

    def __init__(self, root: Path, store: Datastore, environ: dict[str, str]) -> None:
        self._root, self.store, self._environ = root, store, environ

    def __call__(
        self, verb: str, *documents: Any, ok: bool = True, args: tuple[str, ...] = ()
    ) -> Result:
        file = self._root / "policies.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        return self.run(verb, "-f", str(file), *args, ok=ok)

    def run(self, *args: str, ok: bool = True, text: str = "") -> Result:
        done = CliRunner().invoke(main, args, env=self._environ, input=text, catch_exceptions=False)
        assert done.exit_code == (0 if ok else 1), done.output
        return done

    def stored(self, kind: Kind, name: str, namespace: str = "") -> Resource:
        value = self.store.get(ResourceKey(kind, name, namespace)).value
        assert isinstance(value, Resource)
        return value

    def nothing(self, kind: Kind = Kind.NETWORK_POLICY) -> bool:
        return self.store.list(Resources(kind)).records == ()


@contextmanager
def on_sqlite(root: Path) -> Iterator[Ctl]:
    path = root / "t.db"
    store = SqliteDatastore(path)
    try:
        yield Ctl(root, store, {"DATASTORE_TYPE": "sqlite", "TORTIE_SQLITE_PATH": str(path)})
    finally:
        store.close()


@contextmanager
def on_kubernetes(root: Path) -> Iterator[Ctl]:
    with kubernetes_api() as server, stores_of(server, Group.V3) as (store,):
        config = root / "kubeconfig"
        kubeconfig.write(config, kubeconfig.render(server.url, {}, None))
        yield Ctl(
            root,
            store,
            {
                "DATASTORE_TYPE": "kubernetes",
                "KUBECONFIG": str(config),
                "CALICO_API_GROUP": Group.V3.value,
            },
        )


@pytest.fixture(params=[on_sqlite, on_kubernetes])
def ctl(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ctl]:
    open_one: Callable[[Path], Any] = request.param
    with open_one(tmp_path) as made:
        yield made


def test_what_is_applied_is_stored_with_calicos_defaults(ctl: Ctl) -> None:
    said = ctl("apply", policy(), policy("other", egress=[RULE]))
    assert said.output == "Successfully applied 2 'NetworkPolicy' resource(s)\n"
    found = ctl.stored(Kind.NETWORK_POLICY, "web", "shop")
    assert found.metadata.labels == {"projectcalico.org/tier": "default"}
    wire = found.to_wire()["spec"]
    assert (wire["tier"], wire["types"]) == ("default", ["Ingress"])
    assert read_policy(found).problem == ""
    assert ctl.stored(Kind.NETWORK_POLICY, "other", "shop").to_wire()["spec"]["types"] == ["Egress"]
    uid = found.metadata.uid
    assert uid
    ctl("apply", policy(selector="app == 'db'"))
    changed = ctl.stored(Kind.NETWORK_POLICY, "web", "shop")
    assert changed.metadata.uid == uid, "the same resource, changed"
    assert changed.to_wire()["spec"]["selector"] == "app == 'db'"


WRONG = policy(
    "web",
    selector="app ==",
    ingress=[
        {
            "action": "Allow",
            "protocol": "TCP",
            "source": {"nets": ["10.0.0.0/33"], "ports": ["x y"]},
        },
        {"action": "Deny", "protocol": "UDP", "icmp": {"type": 8}},
        {"action": "Allow", "http": {"methods": ["GET"]}},
    ],
)


@pytest.mark.parametrize("verb", ["create", "apply", "replace", "validate"])
def test_what_is_wrong_is_refused_all_at_once_and_nothing_is_written(ctl: Ctl, verb: str) -> None:
    bad_set = thing(Kind.GLOBAL_NETWORK_SET, "s", nets=["203.0.113.0/33"])
    said = ctl(verb, policy("good"), WRONG, bad_set, ok=False).output
    for path in (
        "document 2: NetworkPolicy shop/web: spec.selector: ",
        "spec.ingress.0.source.nets.0: ",
        "spec.ingress.0.source.ports.0: ",
        "spec.ingress.1.icmp: ",
        "spec.ingress.2.http: ",
        "document 3: GlobalNetworkSet s: spec.nets.0: ",
    ):
        assert path in said
    assert "good" not in said
    assert ctl.nothing()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([1], "item 1: expected a resource, got int"),
        ("text", "expected a resource, got str"),
        ({**policy(), "kind": "NetworkPolicies"}, "kind: 'NetworkPolicies'; did you mean NetworkP"),
        ({**policy(), "kind": "Pod"}, "kind: 'Pod' is none of IPPool, "),
        ({**policy(), "apiVersion": "v1"}, "apiVersion: 'v1' is not projectcalico.org/v3"),
        ({**policy(), "sepc": {}}, "sepc: no such field is known"),
        ({**policy(), "spec": 7}, "spec: "),
        (policy("a.b.c"), "metadata.name: 'a.b.c' cannot be the name of a NetworkPolicy"),
        (policy(""), "metadata.name: '' cannot be"),
        (policy("web", "No"), "metadata.namespace: 'No' is no DNS label"),
        (policy(doNotTrack=True), "spec.doNotTrack: only a GlobalNetworkPolicy has it"),
        (policy(tier="nowhere"), "spec.tier: there is no tier 'nowhere'"),
        (thing(Kind.GLOBAL_NETWORK_POLICY, "p", preDNAT=True), "spec.preDNAT: needs apply"),
        (thing(Kind.TIER, "a.b"), "metadata.name: 'a.b' cannot be the name of a Tier"),
        (thing(Kind.TIER, "a", defaultAction="Maybe"), "spec.defaultAction: "),
        (thing(Kind.TIER, "a", order=float("inf")), "spec.order: "),
        (thing(Kind.PROFILE, "p", ingress=[{}]), "spec.ingress.0.action: is missing"),
        (thing(Kind.HOST_ENDPOINT, "h", node="n1"), "interfaceName or expectedIPs"),
    ],
)  # fmt: skip
def test_every_refusal_names_the_field(tmp_path: Path, document: Any, words: str) -> None:
    with on_sqlite(tmp_path) as ctl:
        assert words in ctl("apply", document, ok=False).output
        assert ctl.nothing()


def test_create_and_replace_mind_what_is_there(ctl: Ctl) -> None:
    missing = ctl("replace", policy(), ok=False).output
    assert "resource does not exist: NetworkPolicy(shop/web)" in missing
    assert ctl("create", policy()).output == "Successfully created 1 'NetworkPolicy' resource(s)\n"
    twice = ctl("create", policy(selector="all()"), ok=False).output
    assert "failed to create 'NetworkPolicy' resource: [resource already exists: Net" in twice
    ctl("replace", policy(selector="all()"))
    assert ctl.stored(Kind.NETWORK_POLICY, "web", "shop").to_wire()["spec"]["selector"] == "all()"


def test_a_tier_may_come_with_its_policies_in_any_order(ctl: Ctl) -> None:
    tier = thing(Kind.TIER, "security", order=10)
    said = ctl("apply", policy(tier="security"), tier)
    assert said.output == "Successfully applied 2 resource(s)\n"
    assert read_policy(ctl.stored(Kind.NETWORK_POLICY, "web", "shop")).tier == "security"


def test_lists_namespaces_and_standard_input(ctl: Ctl) -> None:
    plain = policy()
    del plain["metadata"]["namespace"]
    body = {"apiVersion": API, "kind": "NetworkPolicyList", "items": [plain, policy("b")]}
    ctl.run("apply", "-f", "-", "-n", "kube-system", text=json.dumps(body))
    assert ctl.stored(Kind.NETWORK_POLICY, "web", "kube-system")
    assert ctl.stored(Kind.NETWORK_POLICY, "b", "shop").metadata.namespace == "shop"


def test_validate_asks_no_datastore(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(policy()))
    done = CliRunner().invoke(
        main, ["validate", "-f", str(file)], env={"TORTIE_SQLITE_PATH": "/nowhere/x.db"}
    )
    assert (done.exit_code, done.output) == (
        0,
        "Successfully validated 1 'NetworkPolicy' resource(s)\n",
    )


def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    with on_sqlite(tmp_path) as ctl:
        text = yaml.safe_dump(policy()) + "spec: {}\n"
        assert "duplicate key spec" in ctl.run("apply", "-f", "-", text=text, ok=False).output
