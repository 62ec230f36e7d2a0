"""The node's own rules, from what the agent hears to what the kernel gets."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest

from felix_shim.cluster import FELIX, NODES, POOLS
from felix_shim.events import Listed, NetworkChanged, Stored, Unstored
from felix_shim.failsafe import INBOUND
from felix_shim.rules import Chain, Log, Masquerade
from libtortie.datastore.port import Record
from libtortie.linux.port import LinkChanged, Route, RouteAdded, RouteProto
from libtortie.model.felix_values import EndpointToHost
from libtortie.model.keys import Kind, Resources
from tests.fakes.agent_world import NODE, Bench, resource_record
from tests.fakes.host_meaning import DEFAULT_IN
from tests.fakes.packets import TCP, UDP, Packet
from tests.fakes.policy_worlds import resource
from tests.fakes.rule_machine import RuleMachine

HOSTS, GLOBAL = Resources(Kind.HOST_ENDPOINT), Resources(Kind.GLOBAL_NETWORK_POLICY)
FAR, OWN = ip_address("203.0.113.9"), ip_address("172.31.0.11")
DENY = {"selector": "has(role)", "types": ["Ingress", "Egress"]}


def host(spec: Mapping[str, Any], name: str = "h") -> Stored:
    body = {"node": NODE, **spec}
    found = resource(Kind.HOST_ENDPOINT, name, body, labels={"role": "node"})
    return Stored(HOSTS, Record(found.key, found, "1"))


def policy(spec: dict[str, Any], name: str = "p") -> Stored:
    found = resource(Kind.GLOBAL_NETWORK_POLICY, name, spec)
    return Stored(GLOBAL, Record(found.key, found, "1"))


def felix(name: str = "default", **spec: Any) -> Stored:
    return Stored(FELIX, resource_record(Kind.FELIX_CONFIGURATION, name, spec))


def begun() -> Bench:
    bench = Bench(kube=False)
    bench.listed()
    return bench


def chain(bench: Bench, name: str) -> Chain:
    return bench.rules[-1].chains[name]


def enters(bench: Bench, port: int, *, link: str = "eth0", protocol: int = TCP) -> bool:
    rules = bench.rules[-1]
    packet = Packet(FAR, OWN, protocol, 40000, port, link_in=link)
    machine = RuleMachine(rules.chains, rules.sets)
    return all(
        machine.passes(one, packet) for one in ("host-untracked-in", "host-pre-dnat", "host-in")
    )


def goes_through(bench: Bench, *, link: str = "eth0") -> bool:
    rules = bench.rules[-1]
    packet = Packet(FAR, ip_address("10.65.0.2"), TCP, 40000, 80, link_in=link)
    machine = RuleMachine(rules.chains, rules.sets)
    stages = ("host-untracked-in", "host-pre-dnat", "host-forward-in")
    return all(machine.passes(one, packet) for one in stages)


def test_a_node_without_host_endpoints_asks_nobody() -> None:
    bench = begun()
    bench.tell(policy({"types": ["Ingress"], "applyOnForward": True}))
    bench.tell(host({"node": "other", "interfaceName": "*"}))
    found = bench.rules[-1].chains
    assert {
        name: rules for name, rules in found.items() if name.startswith("host-") and rules
    } == {}
    assert enters(bench, 80)


def test_a_host_endpoint_lets_in_what_is_failsafe_until_something_is_allowed() -> None:
    bench = begun()
    bench.tell(host({"interfaceName": "eth0"}))
    assert enters(bench, 22)
    assert not enters(bench, 80)
    assert enters(bench, 80, link="eth1")
    assert goes_through(bench), "nobody speaks of what is forwarded"
    allow = policy({"selector": "role == 'node'", "ingress": [{"action": "Allow"}]})
    bench.tell(allow)
    assert enters(bench, 80)
    bench.tell(Unstored(GLOBAL, allow.record.key))
    assert not enters(bench, 80)
    bench.tell(Unstored(HOSTS, host({}).record.key))
    assert enters(bench, 80)


def test_a_profile_allows_what_no_policy_is_about() -> None:
    bench = begun()
    bench.tell(host({"interfaceName": "eth0", "profiles": ["projectcalico-default-allow"]}))
    assert enters(bench, 80)
    bench.tell(policy(DENY))
    assert not enters(bench, 80)


def test_a_host_endpoint_is_found_by_an_address_of_its_link() -> None:
    bench = begun()
    bench.tell(host({"expectedIPs": ["172.31.0.11"]}))
    assert enters(bench, 80)
    links = [bench.kernel.add_link(name) for name in ("eth0", "eth1")]
    bench.kernel.ensure_address("eth1", ip_interface("172.31.0.11/24"))
    bench.kernel.ensure_address("lo", ip_interface("172.31.0.11/32"))
    bench.tell(*(NetworkChanged(LinkChanged(link)) for link in links))
    assert not enters(bench, 80, link="eth1")
    assert enters(bench, 80)
    bench.kernel.ensure_address("eth0", ip_interface("172.31.0.11/25"))
    net = Route(ip_network("172.31.0.0/25"), 0, ifname="eth0", proto=RouteProto.KERNEL)
    bench.tell(NetworkChanged(RouteAdded(net)))
    assert not enters(bench, 80)
    assert enters(bench, 80, link="lo")


def test_the_lowest_name_of_two_for_one_link_and_the_named_before_all() -> None:
    bench = begun()
    open_profile = {"profiles": ["projectcalico-default-allow"]}
    bench.tell(host({"interfaceName": "*"}, "a"))
    bench.tell(host({"interfaceName": "eth0"}, "c"), host({"interfaceName": "eth0"}, "d"))
    assert not enters(bench, 80)
    bench.tell(host({"interfaceName": "eth0", **open_profile}, "b"))
    assert enters(bench, 80)
    assert not enters(bench, 80, link="eth7"), "that is nobody else's"
    assert enters(bench, 80, link="lo")


@pytest.mark.parametrize(
    ("broken", "through"),
    [
        ({**DENY, "ingress": [{"action": "Maybe"}]}, True),
        ({**DENY, "ingress": [{"action": "Maybe"}], "applyOnForward": True}, False),
        ({"selector": "role ==", "types": ["Ingress"]}, True),
    ],
)
def test_a_policy_that_cannot_be_obeyed_closes_the_host_but_not_its_failsafe_ports(
    broken: dict[str, Any], through: bool
) -> None:
    bench = begun()
    everything = {"selector": "all()", "applyOnForward": True, "ingress": [{"action": "Allow"}]}
    untracked = {**everything, "doNotTrack": True, "ingress": [{"action": "Allow"}]}
    bench.tell(host({"interfaceName": "eth0"}), policy(everything, "ok"), policy(untracked, "raw"))
    assert enters(bench, 80)
    bench.tell(policy(broken, "broken"))
    assert not enters(bench, 80)
    assert enters(bench, 22)
    assert goes_through(bench) is through
    told = bench.log.of("policy_closes_endpoint")
    assert [str(one["policy"]) for one in told] == ["GlobalNetworkPolicy broken"]


@pytest.mark.parametrize("early", ["doNotTrack", "preDNAT"])
@pytest.mark.parametrize("allowed", [False, True])
def test_what_is_forwarded_is_judged_as_before_when_another_policy_cannot_be_obeyed(
    early: str, allowed: bool
) -> None:
    bench = begun()
    rules = [{"action": "Allow" if allowed else "Deny"}]
    judged = {"selector": "all()", "applyOnForward": True, early: True, "ingress": rules}
    late = {"selector": "all()", "applyOnForward": True, "order": 9, "ingress": []}
    bench.tell(host({"interfaceName": "eth0"}), policy(judged, "early"), policy(late, "late"))
    assert goes_through(bench) is allowed
    before = bench.rules[-1].chains["host-forward-in"]
    bench.tell(policy({**DENY, "ingress": [{"action": "Maybe"}]}, "broken"))
    assert not enters(bench, 80)
    assert enters(bench, 22)
    assert goes_through(bench) is allowed
    assert bench.rules[-1].chains["host-forward-in"] == before


def test_a_host_endpoint_that_cannot_be_read_is_closed_where_it_says() -> None:
    bench = begun()
    bench.tell(policy({"selector": "all()", "ingress": [{"action": "Allow"}]}))
    bench.tell(host({"interfaceName": "eth0", "ports": [{"name": "x", "protocol": "?"}]}))
    assert not enters(bench, 80)
    assert enters(bench, 22)
    assert enters(bench, 80, link="eth1")
    told = bench.log.of("policy_closes_endpoint")
    assert [str(one["policy"]) for one in told] == ["HostEndpoint h"]
    assert str(told[0]["reason"]).startswith("spec.ports.0.")


def test_a_policy_of_hosts_alone_that_the_kernel_refuses_is_found() -> None:
    bench = begun()
    bench.refused_chains = frozenset({"pi-gnp/bad"})
    allow = {"selector": "has(role)", "ingress": [{"action": "Allow"}]}
    bench.refused_chains |= {"phi-gnp/bad"}
    bench.tell(host({"interfaceName": "eth0"}), policy(allow, "bad"))
    assert not enters(bench, 80)
    assert enters(bench, 22)
    assert [str(one["policy"]) for one in bench.log.of("policy_refused")] == [
        "GlobalNetworkPolicy bad"
    ]


@pytest.mark.parametrize(
    ("chain", "early"),
    [
        ("pfi-gnp/bad", {}),
        ("poi-gnp/bad", {"preDNAT": True}),
        ("pui-gnp/bad", {"doNotTrack": True}),
    ],
)
def test_a_policy_whose_rules_are_refused_at_one_stage_alone_holds_up_nobody(
    chain: str, early: dict[str, Any]
) -> None:
    bench = begun()
    bench.refused_chains = frozenset({chain})
    allow = {"selector": "has(role)", "ingress": [{"action": "Allow"}], "applyOnForward": True}
    bench.tell(host({"interfaceName": "eth0"}), policy({**allow, **early}, "bad"))
    assert not enters(bench, 80)
    assert not goes_through(bench)
    assert enters(bench, 22)
    assert [str(one["policy"]) for one in bench.log.of("policy_refused")] == [
        "GlobalNetworkPolicy bad"
    ]


# -- failsafe ports, read live -------------------------------------------------------------------


def test_failsafe_ports_are_read_live_and_the_nodes_own_count_more() -> None:
    bench = begun()
    bench.tell(host({"interfaceName": "eth0"}))
    bench.tell(felix(failsafeInboundHostPorts=[{"protocol": "tcp", "port": 8443}]))
    assert enters(bench, 8443)
    assert not enters(bench, 22)
    only = [{"protocol": "UDP", "port": 500, "net": "203.0.113.0/24"}]
    own = felix(f"node.{NODE}", failsafeInboundHostPorts=only)
    bench.tell(own)
    assert enters(bench, 500, protocol=UDP)
    assert not enters(bench, 8443)
    bench.tell(felix(f"node.{NODE}", failsafeInboundHostPorts=[]))
    assert not enters(bench, 500, protocol=UDP), "an empty list is none"
    bench.tell(Unstored(FELIX, own.record.key))
    assert enters(bench, 8443)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("tcp:22", ": 'tcp:22' is no list of ports"),
        ([{"protocol": "SCTP", "port": 22}], ".0.protocol: 'SCTP' is neither TCP nor UDP"),
        ([{"port": 22}], ".0.protocol: None is neither TCP nor UDP"),
        ([{"protocol": "TCP", "port": 22}, {"protocol": "TCP", "port": "ssh"}], ".1.port: 'ssh'"),
        ([{"protocol": "TCP", "port": 70000}], ".0.port: 70000"),
        ([{"protocol": "TCP", "port": True}], ".0.port: True"),
        ([{"protocol": "TCP", "port": 22, "net": "10.0.0.0/33"}], ".0.net: '10.0.0.0/33'"),
        ([{"protocol": "TCP", "port": 22, "cidr": "10.0.0.0/8"}], ".0: unknown key 'cidr'"),
        ([22], ".0: 22 is not of protocol, port and net"),
    ],
)
def test_a_list_that_cannot_be_used_keeps_the_last_one(wrong: Any, says: str) -> None:
    bench = begun()
    bench.tell(host({"interfaceName": "eth0"}))
    bench.tell(felix(failsafeInboundHostPorts=[{"protocol": "TCP", "port": 8443}]))
    bench.tell(felix(failsafeInboundHostPorts=wrong))
    assert enters(bench, 8443)
    assert not enters(bench, 22)
    reasons = [str(one["reason"]) for one in bench.log.of("setting_ignored")]
    assert len(reasons) == 1
    assert reasons[0].startswith(f"default: failsafeInboundHostPorts{says}")


def test_without_a_last_one_calicos_are_kept() -> None:
    bench = Bench(kube=False)
    bench.listed(felix={"failsafeInboundHostPorts": "none"})
    bench.tell(host({"interfaceName": "eth0"}))
    assert [enters(bench, one["port"]) for one in DEFAULT_IN if one["protocol"] == "TCP"] == [
        True
    ] * 8
    assert len(INBOUND) == 9


def test_a_configuration_that_cannot_be_read_at_all_keeps_the_last_one() -> None:
    bench = begun()
    bench.tell(host({"interfaceName": "eth0"}))
    bench.tell(felix(failsafeInboundHostPorts=[{"protocol": "TCP", "port": 8443}]))
    bench.tell(Listed(FELIX, (), ("FelixConfiguration default: not an object",)))
    assert enters(bench, 8443)
    bench.tell(Listed(FELIX, ()))
    assert not enters(bench, 8443)
    assert enters(bench, 22)


def test_what_becomes_of_workloads_packets_to_their_node() -> None:
    bench = begun()
    found = [bench.rules[-1].endpoint_to_host]
    for value in ("Accept", "Perhaps", "RETURN"):
        bench.tell(felix(defaultEndpointToHostAction=value))
        found.append(bench.rules[-1].endpoint_to_host)
    drop, accept, goes_on = EndpointToHost
    assert found == [drop, accept, accept, goes_on]


# -- natOutgoing -----------------------------------------------------------------------------------


def pool(name: str, cidr: str, **spec: Any) -> Stored:
    return Stored(POOLS, resource_record(Kind.IP_POOL, name, {"cidr": cidr, **spec}))


def elements(bench: Bench) -> dict[str, set[str]]:
    sets = bench.rules[-1].sets
    return {f"{key.selector}{key.version}": set(found.texts) for key, found in sets.items()}


def test_pools_come_and_go_as_elements() -> None:
    bench = begun()
    bench.tell(pool("a", "10.65.0.0/16"))
    assert chain(bench, "nat-outgoing") == ()
    bench.tell(pool("b", "10.66.0.0/16", natOutgoing=True))
    rules = chain(bench, "nat-outgoing")
    assert [rule.verdict for rule in rules] == [Masquerade()]
    assert elements(bench) == {
        "natOutgoing4": {"10.66.0.0/16"},
        "all4": {"10.65.0.0/16", "10.66.0.0/16"},
    }
    more = pool("c", "10.67.0.0/16", natOutgoing=True, disabled=True)
    balancer = pool("d", "10.68.0.0/16", allowedUses=["LoadBalancer"])
    bench.tell(more, balancer)
    assert chain(bench, "nat-outgoing") == rules
    assert elements(bench)["natOutgoing4"] == {"10.66.0.0/16", "10.67.0.0/16"}
    assert elements(bench)["all4"] == {"10.65.0.0/16", "10.66.0.0/16", "10.67.0.0/16"}
    bench.tell(Unstored(POOLS, more.record.key), pool("b", "10.66.0.0/16"))
    assert chain(bench, "nat-outgoing") == ()
    assert elements(bench) == {}


def test_address_ports_and_nodes_of_nat_outgoing() -> None:
    bench = begun()
    node = {"bgp": {"ipv4Address": "172.31.0.12/24", "ipv6Address": "fd00:31::12/64"}}
    extra = {"addresses": [{"address": "192.0.2.7", "type": "InternalIP"}, "?"]}
    bench.tell(
        Stored(NODES, resource_record(Kind.NODE, "n2", {**node, **extra})),
        pool("a", "10.65.0.0/16", natOutgoing=True),
        pool("b", "fd00:65::/48", natOutgoing=True),
        felix(
            natOutgoingAddress="172.31.0.99",
            natPortRange="1000:2000",
            natOutgoingExclusions="IPPoolsAndHostIPs",
        ),
    )
    found = chain(bench, "nat-outgoing")
    ports = {rule.verdict.ports for rule in found if isinstance(rule.verdict, Masquerade)}
    addresses = [rule.verdict.address for rule in found if isinstance(rule.verdict, Masquerade)]
    assert {str(one) for one in ports} == {"PortRange(first=1000, last=2000)", "None"}
    assert addresses == ["172.31.0.99"] * 4 + [""] * 4
    assert elements(bench)["nodes4"] == {"172.31.0.12", "192.0.2.7"}
    assert elements(bench)["nodes6"] == {"fd00:31::12"}
    bench.tell(felix(natOutgoingAddress="fd00::1", natPortRange="2000:1000"))
    assert chain(bench, "nat-outgoing")[0].verdict == found[0].verdict, "the last ones hold"
    assert len(bench.log.of("setting_ignored")) == 2


# -- what Log rules begin with ---------------------------------------------------------------------


def test_the_prefix_of_log_lines_is_read_live_and_one_that_is_too_long_is_named() -> None:
    bench = begun()
    bench.tell(host({"interfaceName": "eth0"}))
    bench.tell(policy({"selector": "has(role)", "ingress": [{"action": "Log"}]}))
    assert logged(bench) == {"calico-packet: "}
    bench.tell(felix(logPrefix="mine"))
    assert logged(bench) == {"mine: "}
    bench.tell(felix(logPrefix="x" * 200))
    assert logged(bench) == {"mine: "}, "the last one stays"
    (told,) = bench.log.of("setting_ignored")
    assert "logPrefix: has 200 characters; the kernel takes 125" in str(told["reason"])


def logged(bench: Bench) -> set[str]:
    rules = (rule for chain in bench.rules[-1].chains.values() for rule in chain)
    return {rule.verdict.prefix for rule in rules if isinstance(rule.verdict, Log)}
