"""The same commands of calicoctl and tortiectl on one etcd: the same objects, the same refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.model.keys import Kind, ResourceKey, parse_path
from libtortie.model.resources import API_VERSION
from tests.fakes.calico import Calicoctl, CalicoError, stored
from tests.fakes.etcd_server import EtcdMember
from tests.peer import story
from tests.peer.shared import Shared
from tests.peer.test_calico_resources import differences
from tortiectl.cli import main

YOUNGER = {
    "IPPool spec.assignmentMode",
    "NetworkPolicy spec.tier",
    "NetworkPolicy metadata.labels.projectcalico.org/tier",
    "WorkloadEndpoint metadata.generateName",
    "GlobalNetworkPolicy spec.tier",
    "GlobalNetworkPolicy metadata.labels",
    "BGPConfiguration spec.logSeverityScreen",
    "BGPConfiguration spec.serviceLoadBalancerAggregation",
    "FelixConfiguration spec.nftablesMode",
    "FelixConfiguration spec.nftablesFlowTableOffload",
    "FelixConfiguration spec.bpfConnectTimeLoadBalancing",
    "FelixConfiguration spec.bpfHostNetworkedNATWithoutCTLB",
    "KubeControllersConfiguration spec.prometheusMetricsPort",
    "KubeControllersConfiguration spec.controllers.node.leakGracePeriod",
}
"""What the newest Calico stores by default and this release does not."""


NOTHING: tuple[Any, ...] = (None, "", [], {})
"""What this release stores for nothing, or does not."""


def documents() -> list[dict[str, Any]]:
    """The manifests, without rules of the application layer, which this agent could not obey."""
    found = list(yaml.safe_load_all((story.HERE / "resources.yaml").read_text()))
    for body in found:
        rules = body["spec"].get("ingress")
        if rules:
            body["spec"]["ingress"] = [rule for rule in rules if "http" not in rule]
    return found


@pytest.fixture
def ctl(member: EtcdMember) -> Callable[..., Result]:
    environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.url}

    def run(*args: str, text: str = "", status: int = 0) -> Result:
        done = CliRunner().invoke(main, args, env=environ, input=text, catch_exceptions=False)
        assert done.exit_code == status, done.output
        return done

    return run


def held(member: EtcdMember) -> dict[str, Any]:
    """Resources by kind and name, without what differs each time and under names as they are."""
    found = {}
    for path, text in stored(member, "/calico/resources/"):
        key, body = parse_path(path), json.loads(text)
        if not isinstance(key, ResourceKey) or key.kind is Kind.CLUSTER_INFORMATION:
            continue
        meta = body["metadata"]
        for field in ("uid", "creationTimestamp", "annotations"):
            meta.pop(field, None)
        meta["name"] = meta["name"].removeprefix("default.")
        found[f"{key.kind} {key.namespace}/{meta['name']}"] = body
    return found


def test_manifests_are_stored_as_calicoctl_stores_them(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl, ctl: Any
) -> None:
    text = yaml.safe_dump_all(documents())
    calicoctl.apply(text)
    theirs = held(member)
    member.remove_all()
    ctl("apply", "-f", "-", text=text)
    ours = held(member)
    assert set(ours) == set(theirs)
    younger = set()
    for name in ours:
        kind = name.partition(" ")[0]
        for path, mine, its in differences(ours[name], theirs[name]):
            if path.startswith("status") or (mine in NOTHING and its in NOTHING):
                continue  # calicoctl's own running configuration, and Go's empty objects
            assert its in NOTHING, f"{name} {path}: {mine!r}, and calicoctl has {its!r}"
            younger.add(f"{kind} {path}")
    assert younger <= YOUNGER


def test_each_shows_what_the_other_wrote(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl, ctl: Any
) -> None:
    calicoctl.apply(yaml.safe_dump_all(documents()))
    ctl("label", "node", "node-1", "zone=z1")
    ctl("patch", "ippool", "pool-a", "-p", '{"spec": {"disabled": true}}')
    ctl("patch", "bgpconfig", "default", "-p", "spec: {asNumber: 64999}")
    for kind, name in (("node", "node-1"), ("ippool", "pool-a"), ("bgpconfig", "default")):
        theirs = json.loads(calicoctl.run("get", kind, name, "-o", "json"))
        mine = json.loads(ctl("get", kind, name, "-o", "json").stdout)
        assert all(its is None for _, _, its in differences(mine, theirs))
    assert (
        json.loads(calicoctl.run("get", "node", "node-1", "-o", "json"))["metadata"]["labels"][
            "zone"
        ]
        == "z1"
    )
    calicoctl.run("patch", "node", "node-1", "-p", '{"spec": {"bgp": {"asNumber": 64513}}}')
    mine = json.loads(ctl("get", "node", "node-1", "-o", "json").stdout)
    assert mine["spec"]["bgp"]["asNumber"] == 64513


@pytest.mark.parametrize(
    "case",
    [
        ("IPPool", "p", {"cidr": "10.1.0.1/16"}),
        ("IPPool", "p", {"cidr": "10.1.0.0/16", "blockSize": 33}),
        ("IPPool", "p", {"cidr": "10.1.0.0/27"}),
        ("IPPool", "p", {"cidr": "10.1.0.0/16", "ipipMode": "Always", "vxlanMode": "Always"}),
        ("IPPool", "p", {"cidr": "fd00::/64", "ipipMode": "Always"}),
        ("IPPool", "p", {"cidr": "10.1.0.0/16", "nodeSelector": "a ="}),
        ("IPPool", "p", {"cidr": "169.254.0.0/16"}),
        ("IPPool", "p", {"cidr": "10.1.0.0/16", "bogus": 1}),
        ("IPReservation", "r", {"reservedCIDRs": ["host"]}),
        ("BGPPeer", "b", {"peerIP": "here", "asNumber": 1}),
        ("BGPPeer", "b", {"peerIP": "192.0.2.1", "node": "a", "nodeSelector": "all()"}),
        ("BGPPeer", "b", {"peerIP": "192.0.2.1", "peerSelector": "all()"}),
        ("BGPPeer", "b", {"peerIP": "192.0.2.1", "reachableBy": "fd00::1"}),
        ("BGPConfiguration", "default", {"listenPort": 70000}),
        ("BGPConfiguration", "default", {"communities": [{"name": "a", "value": "1:2"}]}),
        ("BGPConfiguration", "node.x", {"asNumber": 1}),
        ("BGPFilter", "f", {"exportV4": [{"cidr": "10.0.0.0/8", "action": "Accept"}]}),
        ("FelixConfiguration", "default", {"reportingInterval": "soon"}),
        ("FelixConfiguration", "default", {"natPortRange": "9:8"}),
        ("FelixConfiguration", "default", {"defaultEndpointToHostAction": "Maybe"}),
        ("Node", "n", {"bgp": {}}),
        ("Node", "n", {"bgp": {"ipv4Address": "fd00::1/64"}}),
        ("HostEndpoint", "h", {"node": "n"}),
        ("GlobalNetworkSet", "s", {"nets": ["x"]}),
        ("KubeControllersConfiguration", "other", {"controllers": {}}),
    ],
)
def test_what_calicoctl_refuses_is_refused(
    member: EtcdMember, calicoctl: Calicoctl, ctl: Any, case: tuple[str, str, Any]
) -> None:
    kind, name, spec = case
    body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    text = yaml.safe_dump(body)
    with pytest.raises(CalicoError):
        calicoctl.apply(text)
    assert ctl("apply", "-f", "-", text=text, status=1).stderr
    assert held(member) == {}


def test_what_calicoctl_exports_is_imported(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl, ctl: Any
) -> None:
    shared = Shared(store, calicoctl)
    shared.client().assign("net.one", {"node": "ours", "pod": "p"}, _request())
    for name in ("ours", "theirs"):
        ref = {"spec": {"orchRefs": [{"nodeName": name, "orchestrator": "k8s"}]}}
        ctl("patch", "node", name, "-p", json.dumps(ref))
    calicoctl.run("datastore", "migrate", "lock")
    text = calicoctl.run("datastore", "migrate", "export")
    mine = ctl("datastore", "migrate", "export").stdout
    before = dict(stored(member, "/calico/ipam/"))
    pools = {name: body["spec"] for name, body in held(member).items() if "IPPool" in name}
    for carried in (text, mine):
        member.remove_all()
        ctl("datastore", "migrate", "import", "-f", "-", text=carried)
        found = dict(stored(member, "/calico/ipam/"))
        assert found.keys() == before.keys()
        for path, value in before.items():
            lost = differences(json.loads(value), json.loads(found[path]))
            assert {name for name, _, _ in lost} <= {"affinity_claim_time"}
        after = {name: body["spec"] for name, body in held(member).items() if "IPPool" in name}
        for name, spec in pools.items():
            assert all(its is None for _, _, its in differences(after[name], spec)) or (
                after[name] == spec
            )
    ctl("datastore", "migrate", "unlock")
    assert "10.0.0.0" in calicoctl.run("ipam", "show", "--show-blocks")


def _request() -> Any:
    from ipam.client import AddressRequest

    return AddressRequest()
