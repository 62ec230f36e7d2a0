"""Resources as people write them: Calico's defaults are filled in, what is wrong has its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from libtortie.model.keys import Kind
from libtortie.model.resources import API_VERSION
from libtortie.model.written import checked

PEER = Path(__file__).parents[2] / "peer/resources.yaml"
NAMES = {
    Kind.FELIX_CONFIGURATION: "default",
    Kind.BGP_CONFIGURATION: "default",
    Kind.IPAM_CONFIGURATION: "default",
    Kind.KUBE_CONTROLLERS_CONFIGURATION: "default",
    Kind.CLUSTER_INFORMATION: "default",
}
WEP: dict[str, Any] = {
    "orchestrator": "k8s",
    "node": "n-1",
    "pod": "web-0",
    "endpoint": "eth0",
    "interfaceName": "cali1",
    "ipNetworks": ["10.0.0.1"],
}


def manifest(kind: Kind, name: str = "", **spec: Any) -> dict[str, Any]:
    meta = {"name": name or NAMES.get(kind, "x")}
    if kind is Kind.WORKLOAD_ENDPOINT and not name:
        del meta["name"]
    return {"apiVersion": API_VERSION, "kind": kind.value, "metadata": meta, "spec": spec}


def spec_of(kind: Kind, **spec: Any) -> dict[str, Any]:
    resource, problems = checked(kind, manifest(kind, **spec))
    assert problems == ()
    assert resource is not None
    found: dict[str, Any] = resource.to_wire()["spec"]
    return found


def wrong(kind: Kind, name: str = "", **spec: Any) -> tuple[str, ...]:
    return checked(kind, manifest(kind, name, **spec))[1]


@pytest.mark.parametrize(
    "body", list(yaml.safe_load_all(PEER.read_text())), ids=lambda body: body["metadata"]["name"]
)
def test_what_calico_takes_is_taken(body: dict[str, Any]) -> None:
    body = yaml.safe_load(yaml.safe_dump(body))
    for rule in body["spec"].get("ingress", []):
        if "http" in rule:
            del rule["http"]  # application layer policy: this agent could not obey it
    if "ingress" in body["spec"]:
        body["spec"]["ingress"] = [rule for rule in body["spec"]["ingress"] if rule]
    resource, problems = checked(Kind(body["kind"]), body)
    assert problems == ()
    assert resource is not None


# --- what is filled in -------------------------------------------------------------------------


def test_a_pool_has_calicos_defaults() -> None:
    assert spec_of(Kind.IP_POOL, cidr="10.1.0.0/16") == {
        "cidr": "10.1.0.0/16",
        "vxlanMode": "Never",
        "ipipMode": "Never",
        "blockSize": 26,
        "nodeSelector": "all()",
        "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic",
    }
    assert spec_of(Kind.IP_POOL, cidr="FD00::/64")["blockSize"] == 122
    assert spec_of(Kind.IP_POOL, cidr="FD00::/64")["cidr"] == "fd00::/64"


def test_durations_are_written_as_go_writes_them() -> None:
    found = spec_of(Kind.FELIX_CONFIGURATION, iptablesRefreshInterval="90s", reportingInterval="0")
    assert (found["iptablesRefreshInterval"], found["reportingInterval"]) == ("1m30s", "0s")
    assert spec_of(Kind.BGP_PEER, peerIP="192.0.2.1", maxRestartTime="3600s") == {
        "peerIP": "192.0.2.1",
        "maxRestartTime": "1h0m0s",
    }


def test_felix_has_what_calico_stores() -> None:
    found = spec_of(Kind.FELIX_CONFIGURATION)
    assert found == {
        "nftablesMode": "Auto",
        "nftablesFlowTableOffload": "Disabled",
        "bpfLogLevel": "",
        "bpfConnectTimeLoadBalancing": "TCP",
        "bpfHostNetworkedNATWithoutCTLB": "Enabled",
        "floatingIPs": "Disabled",
    }
    older = spec_of(Kind.FELIX_CONFIGURATION, bpfConnectTimeLoadBalancingEnabled=False)
    assert older["bpfConnectTimeLoadBalancing"] == "Disabled"
    assert older["bpfHostNetworkedNATWithoutCTLB"] == "Disabled"


def test_tiers_controllers_and_bgp_have_what_calico_stores() -> None:
    assert spec_of(Kind.TIER) == {"order": 1_000_000, "defaultAction": "Deny"}
    resource, problems = checked(Kind.TIER, manifest(Kind.TIER, "kube-baseline"))
    assert problems == ()
    assert resource is not None
    assert resource.to_wire()["spec"] == {"order": 10_000_000, "defaultAction": "Pass"}
    controllers = spec_of(Kind.KUBE_CONTROLLERS_CONFIGURATION, controllers={"node": {}})
    assert controllers["prometheusMetricsPort"] == 9094
    assert controllers["healthChecks"] == "Enabled"
    assert controllers["controllers"]["node"]["leakGracePeriod"] == "15m0s"
    off = spec_of(Kind.KUBE_CONTROLLERS_CONFIGURATION, prometheusMetricsPort=0)
    assert off["prometheusMetricsPort"] == 0
    assert spec_of(Kind.BGP_CONFIGURATION) == {
        "logSeverityScreen": "Info",
        "serviceLoadBalancerAggregation": "Enabled",
    }
    assert spec_of(Kind.IPAM_CONFIGURATION) == {
        "strictAffinity": False,
        "autoAllocateBlocks": True,
    }


def test_an_endpoint_is_named_by_its_fields() -> None:
    resource, problems = checked(
        Kind.WORKLOAD_ENDPOINT, manifest(Kind.WORKLOAD_ENDPOINT, **WEP), "shop"
    )
    assert problems == ()
    assert resource is not None
    assert resource.metadata.name == "n--1-k8s-web--0-eth0"
    assert resource.metadata.namespace == "shop"
    assert resource.metadata.labels == {
        "projectcalico.org/namespace": "shop",
        "projectcalico.org/orchestrator": "k8s",
    }
    assert resource.to_wire()["spec"]["ipNetworks"] == ["10.0.0.1/32"]


def test_as_numbers_are_read_as_people_write_them() -> None:
    for given, found in (("64512", 64512), ("1.10", 65546), (4294967295, 4294967295)):
        assert spec_of(Kind.BGP_PEER, peerIP="192.0.2.1", asNumber=given)["asNumber"] == found


def test_a_staged_policy_is_a_policy_and_what_becomes_of_it() -> None:
    found = spec_of(Kind.STAGED_GLOBAL_NETWORK_POLICY, selector="a == 'b'", egress=[])
    assert found["stagedAction"] == "Set"
    assert (found["tier"], found["types"]) == ("default", ["Ingress"])


# --- what is wrong -----------------------------------------------------------------------------


def test_everything_is_told_at_once() -> None:
    body = {
        "apiVersion": API_VERSION,
        "kind": "BGPPeer",
        "metadata": {"name": "UP", "labels": {"a b": "x"}, "lables": {}},
        "spec": {
            "peerIP": "192.0.2.1:0",
            "asNumber": "2.70000",
            "filters": [1],
            "password": {"secretKeyRef": {"name": "s"}},
            "pearIP": "192.0.2.1",
        },
        "sepc": {},
    }
    paths = [problem.partition(": ")[0] for problem in checked(Kind.BGP_PEER, body)[1]]
    assert paths == [
        "sepc",
        "metadata.lables",
        "metadata.labels.a b",
        "spec.peerIP",
        "spec.asNumber",
        "spec.filters.0",
        "spec.password.secretKeyRef.key",
        "spec.pearIP",
        "metadata.name",
    ]


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        (Kind.IP_POOL, {}, "spec.cidr: is missing"),
        (Kind.IP_POOL, {"cidr": "10.1.0.0"}, "spec.cidr: '10.1.0.0' is not address/prefix"),
        (Kind.IP_POOL, {"cidr": "10.1.0.1/16"}, "spec.cidr: 10.1.0.1/16 has host bits set"),
        (Kind.IP_POOL, {"cidr": "10.1.0.0/16", "blockSize": 33}, "spec.blockSize: 33 is not one"),
        (Kind.IP_POOL, {"cidr": "10.1.0.0/27"}, "spec.blockSize: a block of /26 does not fit"),
        (Kind.IP_POOL, {"cidr": "10.1.0.0/16", "ipipMode": "always"}, "did you mean Always?"),
        (
            Kind.IP_POOL,
            {"cidr": "10.1.0.0/16", "ipipMode": "Always", "vxlanMode": "Always"},
            "spec.vxlanMode: excludes ipipMode",
        ),
        (Kind.IP_POOL, {"cidr": "fd00::/64", "ipipMode": "Always"}, "spec.ipipMode: IPIP is for"),
        (Kind.IP_POOL, {"cidr": "169.254.0.0/24"}, "spec.cidr: 169.254.0.0/24 overlaps the link"),
        (Kind.IP_POOL, {"cidr": "10.1.0.0/16", "nodeSelector": "a ="}, "spec.nodeSelector: "),
        (Kind.IP_POOL, {"cidr": "10.1.0.0/16", "natOutgoing": "yes"}, "'yes' is not true or false"),
        (
            Kind.IP_POOL,
            {"cidr": "10.1.0.0/16", "namespaceSelector": "a == 'b'"},
            "spec.namespaceSelector: not with allowedUses Tunnel",
        ),
        (
            Kind.IP_POOL,
            {"cidr": "10.1.0.0/16", "allowedUses": ["LoadBalancer"], "disableBGPExport": True},
            "spec.disableBGPExport: not for a pool of LoadBalancer",
        ),
        (Kind.IP_RESERVATION, {"reservedCIDRs": ["10.0.0.1/8"]}, "spec.reservedCIDRs.0: "),
        (
            Kind.IPAM_CONFIGURATION,
            {"autoAllocateBlocks": False},
            "spec.autoAllocateBlocks: cannot be false",
        ),
        (Kind.IPAM_CONFIGURATION, {"maxBlocksPerHost": 3}, "spec.maxBlocksPerHost: needs strict"),
        (Kind.IPAM_CONFIGURATION, {"ipCooldownSeconds": 1201}, "is not between 0 and 1200"),
        (
            Kind.IPAM_CONFIGURATION,
            {"kubeVirtVMAddressPersistence": "enabled"},
            "spec.kubeVirtVMAddressPersistence: 'enabled' is not one of Enabled, Disabled; did",
        ),
        (Kind.FELIX_CONFIGURATION, {"reportingInterval": 30}, "30 is not a duration"),
        (Kind.FELIX_CONFIGURATION, {"reportingInterval": "1.5s"}, "want whole numbers of ms, s"),
        (Kind.FELIX_CONFIGURATION, {"natPortRange": "9:8"}, "spec.natPortRange: '9:8' is not a"),
        (Kind.FELIX_CONFIGURATION, {"mtuIfacePattern": "("}, "is not a regular expression"),
        (Kind.FELIX_CONFIGURATION, {"routeTableRange": {"min": 0, "max": 9}}, "Range.min: 0 is no"),
        (
            Kind.FELIX_CONFIGURATION,
            {"routeTableRange": {"min": 1, "max": 9}, "routeTableRanges": [{"min": 1, "max": 2}]},
            "spec.routeTableRanges: excludes routeTableRange",
        ),
        (
            Kind.FELIX_CONFIGURATION,
            {"routeTableRanges": [{"min": 1, "max": 65535}, {"min": 1, "max": 1}]},
            "spec.routeTableRanges: more than 65535 tables",
        ),
        (Kind.FELIX_CONFIGURATION, {"failsafeInboundHostPorts": [{}]}, "Ports.0.port: is missing"),
        (Kind.FELIX_CONFIGURATION, {"natOutgoingAddress": "fd00::1"}, "is not an IPv4 address"),
        (Kind.FELIX_CONFIGURATION, {"ipv4NormalRoutePriority": 0}, "is not between 1 and"),
        (Kind.FELIX_CONFIGURATION, {"nodeSelector": "all()"}, "spec.nodeSelector: not for default"),
        (Kind.FELIX_CONFIGURATION, {"logSeverityScren": "Info"}, "did you mean logSeverityScreen?"),
        (Kind.BGP_CONFIGURATION, {"listenPort": 70000}, "spec.listenPort: 70000 is not between"),
        (
            Kind.BGP_CONFIGURATION,
            {"communities": [{"name": "a", "value": "1:2"}]},
            "spec.communities: needs prefixAdvertisements",
        ),
        (
            Kind.BGP_CONFIGURATION,
            {"prefixAdvertisements": [{"cidr": "10.0.0.0/8", "communities": ["a"]}]},
            "spec.prefixAdvertisements.0.communities.0: 'a' is neither",
        ),
        (
            Kind.BGP_CONFIGURATION,
            {"nodeToNodeMeshEnabled": False, "nodeMeshMaxRestartTime": "1m"},
            "spec.nodeMeshMaxRestartTime: is of the mesh",
        ),
        (Kind.BGP_CONFIGURATION, {"ignoredInterfaces": ["*"]}, "spec.ignoredInterfaces.0: "),
        (
            Kind.BGP_CONFIGURATION,
            {"localWorkloadPeeringIPV6": "169.254.0.179"},
            "spec.localWorkloadPeeringIPV6: '169.254.0.179' is no IPv6 address",
        ),
        (Kind.BGP_PEER, {}, "spec: peerIP, peerSelector or localWorkloadSelector"),
        (Kind.BGP_PEER, {"peerIP": "[fd00::1]:x"}, "spec.peerIP: '[fd00::1]:x': 'x' is not a port"),
        (Kind.BGP_PEER, {"peerIP": "rack1"}, "spec.peerIP: "),
        (
            Kind.BGP_PEER,
            {"peerIP": "192.0.2.1", "node": "a", "nodeSelector": "all()"},
            "spec.nodeSelector: excludes node",
        ),
        (
            Kind.BGP_PEER,
            {"peerIP": "192.0.2.1", "reachableBy": "fd00::1"},
            "spec.reachableBy: is not of peerIP's IP family",
        ),
        (Kind.BGP_PEER, {"localWorkloadSelector": "all()"}, "spec.asNumber: is missing"),
        (Kind.BGP_FILTER, {"exportV4": [{}]}, "spec.exportV4.0.action: is missing"),
        (
            Kind.BGP_FILTER,
            {"exportV4": [{"action": "Accept", "cidr": "10.0.0.0/8"}]},
            "spec.exportV4.0.matchOperator: is missing",
        ),
        (
            Kind.BGP_FILTER,
            {"importV6": [{"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In"}]},
            "spec.importV6.0.cidr: 10.0.0.0/8 is not IPv6",
        ),
        (
            Kind.BGP_FILTER,
            {"exportV4": [{"action": "Reject", "operations": [{"setPriority": {"value": 1}}]}]},
            "spec.exportV4.0.operations: need action Accept",
        ),
        (
            Kind.BGP_FILTER,
            {"exportV4": [{"action": "Accept", "operations": [{}]}]},
            "spec.exportV4.0.operations.0: want exactly one of",
        ),
        (
            Kind.BGP_FILTER,
            {"exportV4": [{"action": "Accept", "prefixLength": {"max": 33}}]},
            "spec.exportV4.0.prefixLength.max: 33 is not between 0 and 32",
        ),
        (
            Kind.BGP_FILTER,
            {"exportV4": [{"action": "Accept", "communities": {"values": ["1:70000"]}}]},
            "each part of it has 16 bits",
        ),
        (Kind.NODE, {"bgp": {}}, "spec.bgp: is empty: leave it out"),
        (Kind.NODE, {"bgp": {"ipv4Address": "fd00::1/64"}}, "spec.bgp.ipv4Address: fd00::1/64 is"),
        (Kind.NODE, {"vxlanTunnelMACAddr": "x"}, "spec.vxlanTunnelMACAddr: 'x' is not a MAC"),
        (Kind.NODE, {"addresses": [{"address": "host"}]}, "spec.addresses.0.address: "),
        (Kind.WORKLOAD_ENDPOINT, {**WEP, "ipNetworks": ["10.0.0.0/24"]}, "is more than one add"),
        (Kind.WORKLOAD_ENDPOINT, {**WEP, "interfaceName": "a" * 16}, "spec.interfaceName: "),
        (Kind.WORKLOAD_ENDPOINT, {**WEP, "node": ""}, "spec.node: is missing: the name of an"),
        (
            Kind.WORKLOAD_ENDPOINT,
            {**WEP, "ipNATs": [{"internalIP": "10.9.9.9", "externalIP": "192.0.2.1"}]},
            "spec.ipNATs.0.internalIP: 10.9.9.9 is not in ipNetworks",
        ),
        (Kind.WORKLOAD_ENDPOINT, {**WEP, "ports": [{"protocol": "TPC", "port": 1}]}, "'TPC' is no"),
        (
            Kind.KUBE_CONTROLLERS_CONFIGURATION,
            {"controllers": {"node": {"syncLabels": "Yes"}}},
            "spec.controllers.node.syncLabels: 'Yes' is not one of",
        ),
        (Kind.CALICO_NODE_STATUS, {}, "spec.node: is missing"),
        (Kind.TIER, {"order": "first"}, "spec.order: 'first' is not a number"),
        (Kind.HOST_ENDPOINT, {"node": "n", "interface": "eth0"}, "did you mean interfaceName?"),
        (Kind.STAGED_GLOBAL_NETWORK_POLICY, {"stagedAction": "Go"}, "spec.stagedAction: 'Go' is"),
        (Kind.STAGED_GLOBAL_NETWORK_POLICY, {"ingress": [{}]}, "spec.ingress.0.action: is missing"),
        (Kind.STAGED_KUBERNETES_NETWORK_POLICY, {"selector": ""}, "did you mean podSelector?"),
    ],
)
def test_what_is_wrong_is_named(kind: Kind, spec: dict[str, Any], words: str) -> None:
    problems = wrong(kind, **spec)
    assert any(words in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("kind", "name", "spec", "words"),
    [
        (Kind.FELIX_CONFIGURATION, "rack", {}, "metadata.name: is default, node.<name"),
        (Kind.BGP_CONFIGURATION, "node.n1", {"asNumber": 1}, "spec.asNumber: only the BGPConf"),
        (Kind.IPAM_CONFIGURATION, "mine", {}, "there is one IPAMConfiguration, named default"),
        (Kind.TIER, "default", {"order": 5}, "spec.order: the tier default has 1000000, always"),
        (Kind.WORKLOAD_ENDPOINT, "other", WEP, "is not 'n--1-k8s-web--0-eth0'"),
        (Kind.IP_POOL, "A", {"cidr": "10.0.0.0/8"}, "'A' cannot be the name of a IPPool"),
    ],
)
def test_names_that_say_what_a_resource_is(
    kind: Kind, name: str, spec: dict[str, Any], words: str
) -> None:
    problems = wrong(kind, name, **spec)
    assert any(words in problem for problem in problems), problems


def test_a_rack_has_a_felix_configuration_by_its_selector() -> None:
    assert wrong(Kind.FELIX_CONFIGURATION, "rack", nodeSelector="rack == 'r1'") == ()
    assert wrong(Kind.FELIX_CONFIGURATION, "node.n1") == ()


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("spec", [7, [], "x", {"": {}}, {1: 2}, None])
def test_no_spec_is_more_than_a_problem(kind: Kind, spec: Any) -> None:
    body = {**manifest(kind), "spec": spec}
    _, problems = checked(kind, body)
    if spec is not None:
        assert problems


@pytest.mark.parametrize("meta", [None, 7, [], {"name": 7}, {"labels": 3}, {"name": ""}])
def test_no_metadata_is_more_than_a_problem(meta: Any) -> None:
    body = {**manifest(Kind.IP_POOL, cidr="10.0.0.0/8"), "metadata": meta}
    _, problems = checked(Kind.IP_POOL, body)
    assert any(problem.startswith("metadata") for problem in problems)


def test_annotations_have_a_limit() -> None:
    body = manifest(Kind.IP_POOL, cidr="10.0.0.0/8")
    body["metadata"]["annotations"] = {"a": "x" * 262144}
    assert "262144 are the most" in checked(Kind.IP_POOL, body)[1][0]


def test_a_fault_that_two_judges_see_is_told_once() -> None:
    spec = {
        "natPortRange": "x",
        "floatingIPs": "maybe",
        "failsafeInboundHostPorts": [{"protocol": "foo", "port": 99999}],
        "interfacePrefix": "eth",
    }
    body = {"apiVersion": API_VERSION, "metadata": {"name": "default"}, "spec": spec}
    _, problems = checked(Kind.FELIX_CONFIGURATION, body)
    assert [one.partition(": ")[0] for one in problems] == [
        "spec.natPortRange",
        "spec.floatingIPs",
        "spec.failsafeInboundHostPorts.0.protocol",
        "spec.failsafeInboundHostPorts.0.port",
        "spec.interfacePrefix",
    ]
