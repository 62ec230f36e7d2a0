"""`conf/rbac/users.yaml`: who looks may see it all, who acts may act, no rule is for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipam.client import AddressRequest, IPAMClient
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.model.keys import Kind
from tests.fakes.guarded_node import Right, Witness, install, names, role_of, shipped
from tests.fakes.kubernetes_store import put_object, stores_of
from tests.fakes.vm_api import put_site, vm_api
from tests.fakes.vm_cluster import healthy
from tests.fakes.vm_ctl import Ctl
from tortiectl.cli import main

TOKEN = "0123456789"
VIEWER, OPERATOR, WRITES = "tortie-viewer", "tortie-operator", "tortie-operator-writes"
POOL = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "IPPool",
    "metadata": {"name": "more"},
    "spec": {"cidr": "10.99.0.0/24"},
}


class Person:
    """Somebody with one of the roles, and the command line."""

    def __init__(
        self, api: ApiServer, root: Path, role: str, *, without: int | None = None, of: str = ""
    ) -> None:
        self.server = ApiServer(tokens={TOKEN: "ann"}, authorization="RBAC", api=api.api)
        self.witness = Witness(self.server.authorizer)
        self.server.authorizer = self.witness
        self.server.start()
        given = shipped("users")
        if without is not None:
            del role_of(given, of or role)["rules"][without]
        install(self.server, given)
        binding = {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "ann"},
            "roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": "ann"}],
        }
        install(self.server, (binding,))
        self.ctl = Ctl(self.server, root)

    def say(self, *words: str, given: str = "") -> str:
        """A command, whatever its end; what it says."""
        done = CliRunner().invoke(
            main, words, env=self.ctl.environ, input=given, catch_exceptions=False
        )
        return done.output

    def look(self) -> str:
        """At everything."""
        every = [("get", one.value, *(("-A",) if one.namespaced else ())) for one in Kind]
        return "\n".join(self.say(*words) for words in (*every, *LOOKS))

    def refused(self) -> set[Right]:
        """What was refused, the questions what may be done among them."""
        return {right for _, right, allowed in self.witness.all() if not allowed}


LOOKS = (
    ("ipam", "show", "--show-blocks"),
    ("ipam", "show", "--show-configuration"),
    ("ipam", "check"),
    ("vm", "list", "-A"),
    ("vm", "show", "vm1", "-n", "shop"),
    ("vm", "preflight", "--all"),
    ("vm", "trace", "m1", "-n", "shop"),
    ("cpu-models",),
    ("node", "drain-plan", "n1"),
    ("version",),
)
SECRETS = Right("get", "", "secrets")
MIGRATE = Right("create", "kubevirt.io", "virtualmachineinstancemigrations")
CLUSTER = {"metadata": {"name": "default"}, "spec": {"datastoreReady": True}}
MIGRATION = {
    "metadata": {"name": "m1", "namespace": "shop"},
    "spec": {"vmiName": "vm2"},
    "status": {"phase": "Succeeded"},
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with vm_api(hooks=True) as server:
        put_site(server, healthy(vms=2, nodes=3, now=datetime.now(UTC)))
        put_object(server, "virtualmachineinstancemigrations.kubevirt.io", MIGRATION)
        put_object(server, "clusterinformations.projectcalico.org", CLUSTER)
        yield server


def test_who_looks_sees_everything_but_secrets_and_changes_nothing(
    api: ApiServer, tmp_path: Path
) -> None:
    ann = Person(api, tmp_path, VIEWER)
    said = ann.look()
    assert ann.refused() == {SECRETS, MIGRATE}, "the second is what preflight asks about"
    assert 'cannot get resource "secrets"' in said
    version = api.api.store.version
    for words in (("apply", "-f", "-"), ("delete", "ippool", "pods")):
        assert 'resource "ippools"' in ann.say(*words, given=json.dumps(POOL))
    assert "cannot" in ann.say("vm", "migrate", "vm1", "-n", "shop")
    assert api.api.store.version == version


@pytest.mark.parametrize("index", range(len(role_of(shipped("users"), VIEWER)["rules"])))
def test_without_a_rule_what_cannot_be_seen_is_named(
    api: ApiServer, tmp_path: Path, index: int
) -> None:
    ann = Person(api, tmp_path, VIEWER, without=index)
    rule = role_of(shipped("users"), VIEWER)["rules"][index]
    assert names(rule, ann.look()), rule


ACTS = {
    ("apply", "-f", "-"): "Successfully",
    ("patch", "ippool", "more", "-p", '{"spec":{"disabled":true}}'): "Successfully",
    ("delete", "ippool", "more"): "Successfully",
    ("label", "node", "n1", "rack=r1"): "Successfully",
    ("ipam", "configure", "--strictaffinity=true"): "Successfully",
    ("ipam", "release", "--ip=10.66.0.9"): "Successfully",
    ("datastore", "migrate", "lock"): "locked",
    ("datastore", "migrate", "unlock"): "unlocked",
    ("vm", "migrate", "vm1", "-n", "shop"): "asked for",
    ("vm", "migrate", "vm1", "-n", "shop", "--cancel"): "cancelled",
    ("vm", "evacuate-cancel", "vm2", "-n", "shop"): "evacuation from",
}
UNSERVED = "subresources.kubevirt.io"
"""The lab's server does not know it: there `evacuate-cancel` goes its second way."""


def act(person: Person, api: ApiServer) -> dict[tuple[str, ...], str]:
    """Everything that an operator does, and what comes of it."""
    with stores_of(api, Group.V3) as (store,):
        client = IPAMClient(store, "n1", now=lambda: datetime.now(UTC))
        client.assign("leaked", {}, AddressRequest(addresses=(ip_address("10.66.0.9"),)))
    vmis, key = "virtualmachineinstances.kubevirt.io", ("shop", "vm2")
    found = json.loads(json.dumps(api.api.store.get(vmis, key)))
    found["status"]["evacuationNodeName"] = found["status"]["nodeName"]
    put_object(api, vmis, found)
    return {words: person.say(*words, given=json.dumps(POOL)) for words in ACTS}


def test_who_acts_acts(api: ApiServer, tmp_path: Path) -> None:
    olga = Person(api, tmp_path, OPERATOR)
    olga.look()
    for words, said in act(olga, api).items():
        assert ACTS[words] in said, (words, said)
    assert olga.refused() == {SECRETS}


@pytest.mark.parametrize("index", range(len(role_of(shipped("users"), WRITES)["rules"])))
def test_without_a_rule_what_cannot_be_done_is_named(
    api: ApiServer, tmp_path: Path, index: int
) -> None:
    olga = Person(api, tmp_path, OPERATOR, without=index, of=WRITES)
    rule = role_of(shipped("users"), WRITES)["rules"][index]
    said = "\n".join(act(olga, api).values())
    assert names(rule, said) or rule["apiGroups"] == [UNSERVED], (rule, said)
