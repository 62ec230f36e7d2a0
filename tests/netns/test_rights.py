"""The rights in `conf/rbac/` are what agent and plugin use: no more, and each is missed by name."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from felix_shim.bird_passwords import Secret
from libtortie.datastore.crd_names import Group
from libtortie.kube.objects import KubeNode
from libtortie.kube.policies import KubeNetworkPolicy
from tests.fakes.agent_world import NODE
from tests.fakes.called_node import Answer
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guarded_node import (
    ACCOUNTS,
    RBAC,
    GuardedNode,
    Json,
    Right,
    names,
    rights,
    role_of,
    shipped,
)
from tests.fakes.kubernetes_store import put_object
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

OF_AGENT = [
    ("ClusterRole", "tortie-node"),
    ("Role", "tortie-node"),
    ("ClusterRole", "tortie-node-datastore"),
]
HISTORY = ("ClusterRole", "tortie-node-history")
OF_PLUGIN = [("ClusterRole", "tortie-cni"), ("ClusterRole", "tortie-cni-datastore")]
PASSWORD = {"secretKeyRef": {"name": "bgp", "key": "tor"}}
POD, SHUT = "web", "shut"
LAUNCHER, TARGET, NAMED = (f"virt-launcher-db-{number}" for number in range(3))


class Site(GuardedNode):
    """A node whose API has something of everything that an agent asks for."""

    def __init__(self, root: Path, group: Group | None) -> None:
        self.group = group
        kind = "kubernetes" if group else "sqlite"
        self.settings: Json = {"datastore_type": kind}
        if group:
            self.settings["calico_api_group"] = group.value
        root.mkdir()
        super().__init__(
            root,
            fresh_name("ri"),
            bird={"mode": "supervised"},
            default_pools={"ipv4": {"cidr": "10.66.0.0/26", "block_size": 32}},
            **self.settings,
        )
        self.addresses: dict[str, str] = {}
        self.closing: list[str] = []
        self.world.kube.put({"metadata": {"name": NODE}}, KubeNode)
        self.world.kube.put({"metadata": {"name": "bgp", "namespace": "kube-system"}}, Secret)

    def put(self, plural: str, name: str, spec: Json) -> None:
        """One of Calico's objects, past every check."""
        assert self.group is not None
        where = f"{plural}.{self.group.partition('/')[0]}"
        put_object(self.server, where, {"metadata": {"name": name}, "spec": spec})

    def furnish(self) -> None:
        """Once the agent has made what a cluster has: what makes it ask for Secrets and Services,
        and write an Event."""
        until("the cluster is made", lambda: self.made() <= self.used("tortie-node"))
        clusters = [{"cidr": "10.96.0.0/16"}]
        self.put("bgpconfigurations", "default", {"asNumber": 64512, "serviceClusterIPs": clusters})
        peer = {"peerIP": "172.31.1.1", "asNumber": 65000, "password": PASSWORD}
        self.put("bgppeers", "tor", peer)
        self.shut_by("bad")

    def shut_by(self, name: str) -> None:
        """A policy of which the agent tells by an Event, if it knows the pod already."""
        subject = {"podSelector": {"matchLabels": {"app": SHUT}}}
        policy = {**subject, "ingress": [{"from": [{"nodes": {}}]}]}
        meta = {"name": name, "namespace": "default"}
        self.world.kube.put({"metadata": meta, "spec": policy}, KubeNetworkPolicy)

    def made(self) -> set[Right]:
        """What the first agent of a cluster creates."""
        rules = role_of(shipped("node"), "tortie-node-datastore")["rules"]
        return {one for one in self.here(rules) if one.verb == "create"}

    def used(self, account: str) -> set[Right]:
        """What an account has done."""
        return self.witness.seen(account, allowed=True)

    def add(self, pod: str, **options: Any) -> Answer:
        """An ADD, whatever becomes of it; its sandbox is named after the pod."""
        answer = self.call("ADD", pod, pod, **self.settings | options)
        if answer.status == 0:
            self.addresses[pod] = answer.address
        return answer

    def take(self, pod: str, **options: Any) -> Answer:
        """A DEL."""
        return self.call("DEL", pod, pod, **self.settings | options)

    def pods(self) -> None:
        """Pods of every sort: plain, one that policy closes, a VM's, a migration's target."""
        self.world.put_pod(POD, spec={"nodeName": NODE})
        self.world.put_pod(SHUT, spec={"nodeName": NODE}, labels={"app": SHUT})
        self.world.put_vm()
        self.world.put_launcher(LAUNCHER, spec={"nodeName": NODE})
        self.world.put_migration("m1", phase="Running")
        labels = {"kubevirt.io/migrationJobUID": "vmim-m1"}  # its name has to be looked for
        self.world.put_launcher(TARGET, spec={"nodeName": NODE}, labels=labels)
        self.world.put_launcher(NAMED, spec={"nodeName": NODE}, migration="m1")

    def exercise(self, program: str) -> None:
        """Calls that need everything the plugin may do."""
        first, last = f"{program}-1", f"{program}-2"
        for pod in (first, last):
            self.world.put_pod(pod, spec={"nodeName": NODE})
        self.well(self.add(first, program=program))
        with self.agent_held(program == "tortie-cni"):  # else it might give the block away first
            self.put("ippools", "default-ipv4-ippool", {**POOL, "nodeSelector": "has(never)"})
            self.put("ippools", "other", {**POOL, "cidr": "10.67.0.0/26"})
            self.well(self.take(first, program=program))
            self.well(self.add(last, program=program, policy_setup_timeout_seconds=0))
        self.well(self.add(LAUNCHER, program=program))
        for pod in (TARGET, NAMED):
            self.well(self.add(pod, program=program))
            self.well(self.take(pod, program=program))
        for pod in (LAUNCHER, last):
            self.well(self.take(pod, program=program))
        self.well(self.collect(program))
        self.put("ippools", "default-ipv4-ippool", POOL)

    def collect(self, program: str) -> Answer:
        """A GC by a runtime that knows of all that there is."""
        known = [{"containerID": pod, "ifname": "eth0"} for pod in self.addresses]
        more: Json = {"cni.dev/valid-attachments": known}
        return self.call("GC", POD, POD, program=program, **self.settings, **more)

    @contextmanager
    def agent_held(self, held: bool) -> Iterator[None]:
        """Meanwhile the agent stands still, if it is to."""
        assert self.agent is not None
        if held:
            self.agent.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.agent.send_signal(signal.SIGCONT)

    def well(self, answer: Answer) -> None:
        """It was served."""
        assert answer.status == 0, (answer.body, self.refused())

    def take_role(self, name: str) -> None:
        """A ClusterRole goes."""
        plural = f"clusterroles.{RBAC}"
        old = self.server.api.store.get(plural, ("", name))
        assert old is not None
        at = old["metadata"]["resourceVersion"]
        self.server.api.store.remove(plural, ("", name), expected=at)

    def forget_what_was_made(self) -> None:
        """The cluster is as new, for whoever makes what a cluster has; the node has no network."""
        store = self.server.api.store
        for plural in ("clusterinformations", "ipamconfigurations"):
            where = f"{plural}.{Group.V3.partition('/')[0]}"
            if found := store.get(where, ("", "default")):
                store.remove(where, ("", "default"), expected=found["metadata"]["resourceVersion"])
        found = store.get("nodes", ("", NODE))
        assert found is not None
        body = {key: value for key, value in found.items() if key != "status"}
        store.put("nodes", ("", NODE), body, expected=found["metadata"]["resourceVersion"])

    def standing(self) -> Json:
        """What pods have of the agent: routes, chains, status files."""
        rules = self.rules()
        return {
            pod: (self.metrics(pod), self.host_name(pod) in rules, bool(self.status(pod)))
            for pod in (POD, SHUT)
        }

    @contextmanager
    def routes_watched(self) -> Iterator[Callable[[], list[str]]]:
        """Meanwhile note each route that goes; what is yielded tells them afterwards."""
        path = self.root / "routes.log"
        self.processes.append(self.spawn(["ip", "monitor", "route"], path.name))
        yield lambda: [one for one in path.read_text().splitlines() if one.startswith("Deleted")]

    def told(self, rule: Json, since: int) -> bool:
        """Whether the agent's log says since some line that the rule is missing.

        An Event is of a pod that was known when a policy came: there is another policy then.
        """
        lines = self.lines()[since:]
        newest = f"bad{len(self.closing)}"
        if rule["resources"] == ["events"] and any(newest in str(line) for line in lines):
            self.closing.append(newest)
        if rule["resources"] == ["events"]:
            self.shut_by(f"bad{len(self.closing)}")
        return any(names(rule, " ".join(map(str, line.values()))) for line in lines)

    def links(self) -> list[str]:
        """Names of the node's links."""
        return [one["ifname"] for one in self.ip_json("link")]

    def held(self) -> int:
        """Addresses that are given."""
        found, _ = self.server.api.store.list(f"ipamblocks.{Group.V3.partition('/')[0]}")
        return sum(index is not None for one in found for index in one["spec"]["allocations"])

    def refused(self) -> set[tuple[str, Right]]:
        """Who was refused what."""
        return {
            (account, right)
            for account in ACCOUNTS.values()
            for right in self.witness.seen(account, allowed=False)
        }

    def here(self, rules: list[Json]) -> set[Right]:
        """What some rules allow of what is served in the group that is in use."""
        served = {(kind.group, kind.plural) for kind in self.server.api.catalogue.served()}
        others = {group.partition("/")[0] for group in Group if group is not self.group}
        return {
            right
            for right in rights(rules)
            if (right.group, right.resource.partition("/")[0]) in served
            and right.group not in others
        }

    def use_all(self, account: str, roles: list[tuple[str, str]], file: str) -> None:
        """Wait until an account has done everything that these roles allow."""
        objects = shipped(file)
        wanted = self.here(
            [r for kind, name in roles for r in role_of(objects, name, kind)["rules"]]
        )
        try:
            until(f"{account} uses all", lambda: wanted <= self.used(account))
        except AssertionError:
            assert wanted - self.used(account) == set(), "these are for nothing"


POOL = {"cidr": "10.66.0.0/26", "blockSize": 32, "nodeSelector": "all()"}


def site(tmp_path: Path, group: Group | None) -> Iterator[Site]:
    made = Site(tmp_path / "site", group)
    try:
        yield made
    finally:
        if made.agent is not None:
            made.stop(signal.SIGKILL)  # else it would start another BIRD
        made.close()


@pytest.fixture(params=list(Group))
def either(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from site(tmp_path, request.param)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Site]:
    yield from site(tmp_path, None)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Site]:
    yield from site(tmp_path, Group.V3)


def test_what_they_may_do_is_what_they_do(either: Site) -> None:
    node = either
    node.start()
    node.pods()
    node.well(node.add(SHUT))
    node.furnish()
    for program in ("tortie-cni", "tortie") if node.group is Group.V3 else ("tortie-cni",):
        node.exercise(program)
    node.use_all("tortie-cni", OF_PLUGIN, "cni")
    node.use_all("tortie-node", [*OF_AGENT, HISTORY], "node")
    assert node.refused() == set()


def test_they_are_enough_beside_a_datastore_of_its_own(alone: Site) -> None:
    """Without the roles that are for the Kubernetes datastore."""
    node = alone
    for name in ("tortie-node-datastore", "tortie-cni-datastore"):
        node.take_role(name)
    node.start()
    node.pods()
    program = {POD: "tortie", LAUNCHER: "tortie", TARGET: "tortie-cni"}
    for pod, called in program.items():
        node.well(node.add(pod, program=called))
    node.well(node.take(TARGET, program="tortie-cni"))
    watched = {
        Right("watch", "kubevirt.io", "virtualmachineinstancemigrations"),
        Right("watch", "policy.networking.k8s.io", "clusternetworkpolicies"),
    }
    until("all is followed", lambda: watched <= node.used("tortie-node"))
    assert node.refused() == set()


def test_an_agent_without_one_of_its_rules_says_which_and_takes_nothing_down(node: Site) -> None:
    node.start()
    node.furnish()
    node.pods()
    for pod in (POD, SHUT):
        node.well(node.add(pod))
    until("what it cannot obey closes a pod", lambda: node.lines("policy_closes_endpoint"))
    before = node.standing()
    with node.routes_watched() as gone:
        for kind, name in OF_AGENT:
            for index, _ in enumerate(role_of(shipped("node"), name, kind)["rules"]):
                node.forget_what_was_made()
                with node.without(kind, name, index) as rule:
                    node.stop(signal.SIGKILL)
                    told = len(node.lines())
                    node.start(wait=False)
                    until(f"{rule} is named", partial(node.told, rule, told))
                    assert node.standing() == before, rule
        node.stop(signal.SIGKILL)
        node.start()
        until("all stands", lambda: node.standing() == before)
    assert not any(address in line for line in gone() for address in node.addresses.values())


def test_an_agent_that_may_not_write_the_history_says_so_and_serves(node: Site) -> None:
    node.start()
    node.furnish()
    node.pods()
    told = len(node.lines())
    with node.without(*HISTORY, 0) as rule:
        node.well(node.add(POD))
        until(f"{rule} is named", partial(node.told, rule, told))
        node.well(node.take(POD))


def test_a_call_without_one_of_its_rules_says_which_and_leaves_nothing(node: Site) -> None:
    node.start()
    node.furnish()
    node.pods()
    node.put("ippools", "default-ipv4-ippool", {**POOL, "nodeSelector": "!has(never)"})
    program = {"program": "tortie-cni"}
    for name in OF_PLUGIN:
        for index, _ in enumerate(role_of(shipped("cni"), name[1])["rules"]):
            served: list[str] = []
            with node.without(*name, index) as rule:
                for pod in (POD, LAUNCHER, TARGET):
                    answer = node.add(pod, **program)
                    if answer.status:
                        assert node.host_name(pod) not in node.links(), rule
                        break
                    served.append(pod)
                else:
                    answer = node.collect("tortie-cni")
                assert answer.status, f"nobody missed {rule}"
                said = f"{answer.body['msg']} {answer.body.get('details', '')}"
                assert names(rule, said), (rule, said)
            for pod in reversed(served):
                node.well(node.take(pod, **program))
            assert not [one for one in node.links() if one.startswith("cali")]
            assert node.held() <= 1, "only the VM has its address"
