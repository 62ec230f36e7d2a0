"""Whether host policy lets migration streams through, as the agents would decide."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from libtortie.model.keys import Kind
from libtortie.model.resources import FelixConfiguration, Resource, parse_resource
from tests.fakes.vm_cluster import resource
from tortiectl.preflight.findings import Severity
from tortiectl.preflight.host_policy import HostPolicy, check_host_policy

NODES = {f"n{number}": ip_address(f"172.31.0.{number}") for number in (1, 2, 3)}
ALLOW = {"action": "Allow"}
PORTS = {"protocol": "TCP", "destination": {"ports": [49152, 49153]}}
OPEN = {"action": "Allow", **PORTS}


def parsed(kind: Kind, name: str, spec: dict[str, Any], **meta: Any) -> Resource:
    return parse_resource(kind, resource(kind, name, spec, **meta))


def end(node: str = "n1", **spec: Any) -> Resource:
    body = {"node": node, "interfaceName": "*", "expectedIPs": [str(NODES[node])], **spec}
    return parsed(Kind.HOST_ENDPOINT, f"{node}-end", body, labels={"role": "host", "name": node})


def policy(name: str = "p", **spec: Any) -> Resource:
    return parsed(Kind.GLOBAL_NETWORK_POLICY, name, {"selector": "role == 'host'", **spec})


def tier(name: str, order: float, action: str = "Deny") -> Resource:
    return parsed(Kind.TIER, name, {"order": order, "defaultAction": action})


def closed(*policies: Resource, ends: tuple[Resource, ...] = (), **world: Any) -> set[str]:
    """What of n1's (or the given ends') ports is closed: `49152 in`."""
    asked = HostPolicy(
        ends=ends or (end(),),
        policies=policies,
        tiers=world.get("tiers", ()),
        profiles=world.get("profiles", ()),
        sets=world.get("sets", ()),
        felix=world.get("felix", {}),
        nodes=NODES,
    )
    texts = [one.text for one in check_host_policy(asked)]
    return {part for text in texts for part in text[4:].partition(" is ")[0].split(", ")}


IN, OUT = {"49152 in", "49153 in"}, {"49152 out", "49153 out"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"ingress": [ALLOW], "egress": [ALLOW]}, set()),
        ({"ingress": [OPEN], "egress": [OPEN]}, set()),
        ({"ingress": [OPEN]}, OUT),
        ({"ingress": [], "egress": [ALLOW], "types": ["Ingress", "Egress"]}, IN),
        ({"ingress": [{"action": "Log"}, {"action": "Deny", **PORTS}, ALLOW], "egress": [ALLOW]},
         IN),
        ({"ingress": [{"action": "Deny", "protocol": "UDP"}, ALLOW], "egress": [ALLOW]}, set()),
        ({"ingress": [{**OPEN, "source": {"nets": ["172.31.0.2/32"]}}], "egress": [ALLOW]}, IN),
        ({"ingress": [{**OPEN, "source": {"nets": ["172.31.0.0/24"]}}], "egress": [ALLOW]}, set()),
        ({"ingress": [{**OPEN, "source": {"notNets": ["172.31.0.3/32"]}}], "egress": [ALLOW]}, IN),
        ({"ingress": [{**OPEN, "source": {"ports": [80]}}], "egress": [ALLOW]}, IN),
        ({"ingress": [{**ALLOW, "notProtocol": "TCP"}], "egress": [ALLOW]}, IN),
        ({"ingress": [{**ALLOW, "ipVersion": 6}], "egress": [ALLOW]}, IN),
        ({"ingress": [{**OPEN, "destination": {"nets": ["10.0.0.0/8"], "ports": [49152]}}],
          "egress": [ALLOW]}, IN),
    ],
)  # fmt: skip
def test_rules(spec: dict[str, Any], expected: set[str]) -> None:
    assert closed(policy(**spec)) == expected


def test_an_endpoint_alone_closes_all_but_what_its_profiles_allow() -> None:
    assert closed() == IN | OUT
    allows = ("projectcalico-default-allow",)
    assert closed(ends=(end(profiles=list(allows)),)) == set()
    rules = {"ingress": [OPEN], "egress": [{"action": "Deny"}]}
    profile = parsed(Kind.PROFILE, "mine", rules)
    assert closed(ends=(end(profiles=["mine"]),), profiles=(profile,)) == OUT


def test_tiers_in_order_and_what_is_passed_on() -> None:
    tiers = (tier("first", 10), tier("last", 20))
    passes = policy("first.a", tier="first", ingress=[{"action": "Pass"}], egress=[ALLOW])
    allows = policy("last.b", tier="last", ingress=[OPEN], egress=[{"action": "Deny"}])
    assert closed(passes, allows, tiers=tiers) == set()
    assert closed(passes, tiers=tiers) == IN
    denies = policy("last.c", tier="last", order=1, ingress=[{"action": "Deny"}])
    assert closed(passes, allows, denies, tiers=tiers) == IN
    empty = policy("first.a", tier="first", ingress=[], egress=[], types=["Ingress", "Egress"])
    goes_on = (tier("first", 10, "Pass"), tiers[1])
    assert closed(empty, allows, tiers=goes_on) == OUT


def test_what_is_decided_early_is_not_asked_again() -> None:
    early = {"doNotTrack": True, "applyOnForward": True, "order": 1}
    untracked = policy("raw", ingress=[OPEN], egress=[OPEN], **early)
    assert closed(untracked, policy(ingress=[], egress=[], types=["Ingress", "Egress"])) == set()
    denies = policy("raw", ingress=[{"action": "Deny"}], **early)
    assert closed(denies, policy(ingress=[ALLOW], egress=[ALLOW])) == IN


def test_selectors_of_the_far_end() -> None:
    ends = tuple(end(node) for node in NODES)
    some = {**OPEN, "source": {"selector": "name != 'n3'"}}
    found = check_host_policy(
        HostPolicy(ends, (policy(ingress=[some], egress=[ALLOW]),), (), (), (), {}, NODES)
    )
    assert {one.subject.name for one in found} == {"n1-end", "n2-end"}
    networks = parsed(
        Kind.GLOBAL_NETWORK_SET, "all", {"nets": ["172.31.0.0/16"]}, labels={"kind": "nodes"}
    )
    by_set = {**OPEN, "source": {"selector": "kind == 'nodes'"}}
    assert closed(policy(ingress=[by_set], egress=[ALLOW]), sets=(networks,)) == set()


def test_failsafe_ports_of_the_node_come_before_the_default() -> None:
    def felix(name: str, *ports: int) -> FelixConfiguration:
        listed = [{"protocol": "TCP", "port": port} for port in ports]
        found = parsed(
            Kind.FELIX_CONFIGURATION, name,
            {"failsafeInboundHostPorts": listed, "failsafeOutboundHostPorts": listed},
        )  # fmt: skip
        assert isinstance(found, FelixConfiguration)
        return found

    both = felix("default", 49152, 49153)
    assert closed(felix={"default": both}) == set()
    own = felix("node.n1", 49152)
    assert closed(felix={"default": both, "node.n1": own}) == {"49153 in", "49153 out"}


def test_a_policy_that_cannot_be_obeyed_closes() -> None:
    wrong = policy(ingress=[{"action": "Maybe"}], egress=[ALLOW])
    assert closed(wrong) == IN | OUT


def test_links_that_may_be_another_network_are_a_risk() -> None:
    one = end(interfaceName="eth7", expectedIPs=[])
    found = list(check_host_policy(HostPolicy((one,), (), (), (), (), {}, NODES)))
    assert [each.severity for each in found] == [Severity.RISK]
    other = end(expectedIPs=["192.0.2.1"])
    assert list(check_host_policy(HostPolicy((other,), (), (), (), (), {}, NODES))) == []
