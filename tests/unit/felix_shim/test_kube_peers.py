"""What rules can be about and only Kubernetes knows: whom a Service leads to."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from felix_shim.events import InSync, Seen, Stored, Vanished
from felix_shim.kube_desk import KubeDesk
from felix_shim.kube_entries import Heard, PolicyObject
from felix_shim.kube_peers import node_item, slice_item
from felix_shim.policy_book import PolicyBook
from felix_shim.policy_desk import NO_API, PolicyDesk
from libtortie.datastore.port import Record
from libtortie.kube.policies import EndpointSlice, PeerNode
from libtortie.model.keys import Kind, Resources
from libtortie.model.policy_wire import read_policy
from tests.fakes.agent_world import NAMESPACE, NODE, RecordingLog, endpoint_record
from tests.fakes.packets import TCP, UDP, Packet
from tests.fakes.policy_meaning import Pod
from tests.fakes.policy_worlds import item_of, key_of, resource
from tests.fakes.rule_machine import RuleMachine

WEB = Pod("shop", "web", (ip_address("10.65.0.2"),), {"app": "web"}, "front")
BACKENDS = ["10.65.0.7", "10.65.0.8"]
PORTS = [{"name": "http", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]
TO_DB: dict[str, Any] = {"services": {"name": "db"}}


def slice_of(
    service: str, addresses: list[str], ports: Any = PORTS, name: str = "s", space: str = "shop"
) -> EndpointSlice:
    labels = {"kubernetes.io/service-name": service}
    return EndpointSlice.model_validate(
        {
            "metadata": {"name": name, "namespace": space, "labels": labels},
            "endpoints": [{"addresses": [one], "conditions": {"ready": 0}} for one in addresses],
            "ports": ports,
        }
    )


def book_with(spec: dict[str, Any], *objects: PolicyObject) -> tuple[PolicyBook, KubeDesk]:
    book = PolicyBook()
    book.put_item(key_of(WEB), item_of(WEB))
    book.put_local(key_of(WEB), item_of(WEB))
    desk = KubeDesk(book, followed=True)
    for one in objects:
        desk.take(Seen(one))
    policy = resource(
        Kind.NETWORK_POLICY, "p", {"selector": "app == 'web'", **spec}, namespace="shop"
    )
    book.put_policy(read_policy(policy))
    return book, desk


def sends(book: PolicyBook, address: str, port: int, protocol: int = TCP) -> bool:
    packet = Packet(WEB.addresses[0], ip_address(address), protocol, 1024, port)
    return _decided(book, packet, "egress")


def gets(book: PolicyBook, address: str, port: int = 9) -> bool:
    packet = Packet(ip_address(address), WEB.addresses[0], TCP, 1024, port)
    return _decided(book, packet, "ingress")


def _decided(book: PolicyBook, packet: Packet, way: str) -> bool:
    found = book.rules()
    assert found.closed == ()
    machine = RuleMachine(found.chains, found.sets)
    return machine.allows(getattr(found.ways[key_of(WEB)], way), packet)


EGRESS: dict[str, Any] = {"egress": [{"action": "Allow", "destination": TO_DB}]}


def test_egress_to_a_service_is_to_its_endpoints_on_its_ports() -> None:
    """Ready or not; of all of its slices; of its own namespace, unless another is named."""
    second = slice_of("db", ["10.65.0.9"], [{"port": 90}], "t")
    other = slice_of("db", ["10.65.1.1"], PORTS, "s", "elsewhere")
    stranger = slice_of("cache", ["10.65.1.2"], PORTS, "u")
    book, _ = book_with(EGRESS, slice_of("db", BACKENDS), second, other, stranger)
    for address in BACKENDS:
        assert sends(book, address, 8080)
        assert sends(book, address, 53, UDP)
        assert not sends(book, address, 53)
        assert not sends(book, address, 90)
    assert sends(book, "10.65.0.9", 90)
    assert not sends(book, "10.65.0.9", 8080)
    for address in ("10.65.1.1", "10.65.1.2"):
        assert not sends(book, address, 8080)
    there = {"services": {"name": "db", "namespace": "elsewhere"}}
    book, _ = book_with({"egress": [{"action": "Allow", "destination": there}]}, other)
    assert sends(book, "10.65.1.1", 8080)


def test_ingress_from_a_service_is_from_its_endpoints_on_any_port() -> None:
    rule = {"action": "Allow", "source": TO_DB}
    book, _ = book_with({"ingress": [rule]}, slice_of("db", BACKENDS))
    assert gets(book, BACKENDS[0])
    assert not gets(book, "10.65.0.9")


def test_what_a_service_leads_to_comes_changes_and_goes() -> None:
    """Each is a change of elements, and no chain is another."""
    book, desk = book_with(EGRESS)
    chains = book.rules().chains
    assert not sends(book, BACKENDS[0], 8080)
    desk.take(Seen(slice_of("db", BACKENDS)))
    assert sends(book, BACKENDS[0], 8080)
    desk.take(Seen(slice_of("db", BACKENDS[1:], [{"port": 90}])))
    assert not sends(book, BACKENDS[0], 8080)
    assert sends(book, BACKENDS[1], 90)
    desk.take(Vanished(slice_of("db", [])))
    assert not sends(book, BACKENDS[1], 90)
    desk.take(Seen(slice_of("db", BACKENDS)))
    desk.take(InSync(EndpointSlice, frozenset()))
    assert not sends(book, BACKENDS[0], 8080)
    assert book.rules().chains is chains


def test_they_are_no_endpoints_that_a_selector_could_select() -> None:
    book, _ = book_with(
        {"egress": [{"action": "Allow", "destination": {"selector": "!has(app)"}}]},
        slice_of("db", BACKENDS),
    )
    assert not sends(book, BACKENDS[0], 8080)


def test_once_no_rule_is_about_them_there_are_no_sets_of_them() -> None:
    book, _ = book_with(EGRESS, slice_of("db", BACKENDS))
    assert sends(book, BACKENDS[0], 8080)
    plain = {"egress": [{"action": "Allow", "destination": {"selector": "app == 'web'"}}]}
    policy = resource(
        Kind.NETWORK_POLICY, "p", {"selector": "app == 'web'", **plain}, namespace="shop"
    )
    book.put_policy(read_policy(policy))
    assert not sends(book, BACKENDS[0], 8080)
    assert {key.selector for key in book.rules().sets} == {
        "(projectcalico.org/namespace == 'shop') && (app == 'web')"
    }


def test_strange_slices_and_nodes_are_what_can_be_read_of_them() -> None:
    strange = EndpointSlice.model_validate(
        {
            "metadata": {"name": "s", "namespace": "shop"},
            "endpoints": [None, {"addresses": ["a.example", "10.0.0.1", 7, "fe80::1%eth0"]}, 3],
            "ports": [{"port": None}, {"port": 70000}, {"port": 80, "protocol": "X"}, {"port": 8}],
        }
    )
    item = slice_item(strange)
    assert [str(net) for net in item.nets] == ["10.0.0.1/32"]
    assert [(port.protocol, port.port) for port in item.ports] == [(TCP, 8)]
    nothings: list[Any] = [None, 3, {}, [3]]
    for nothing in nothings:
        body = {"metadata": {"name": "x"}, "endpoints": nothing, "ports": nothing}
        assert slice_item(EndpointSlice.model_validate(body)).nets == ()
        node = PeerNode.model_validate({"metadata": {"name": "x"}, "status": nothing})
        assert node_item(node).nets == ()
    addresses = [
        {"type": "Hostname", "address": "10.9.9.9"},
        {"type": "InternalIP", "address": "10.0.0.2"},
        {"type": "ExternalIP", "address": "fd00::2"},
    ]
    node = PeerNode.model_validate({"metadata": {"name": "x"}, "status": {"addresses": addresses}})
    assert [str(net) for net in node_item(node).nets] == ["10.0.0.2/32", "fd00::2/128"]


def test_what_says_the_same_again_is_no_news_and_new_addresses_are() -> None:
    heard = Heard()
    assert heard.is_news(slice_of("db", BACKENDS))
    assert not heard.is_news(slice_of("db", BACKENDS))
    assert heard.is_news(slice_of("db", BACKENDS[1:]))
    assert heard.is_news(slice_of("db", BACKENDS[1:], []))


@pytest.mark.parametrize("kube", [True, False])
def test_without_an_api_that_says_whom_services_lead_to_their_policies_close(kube: bool) -> None:
    log = RecordingLog()
    desk = PolicyDesk(NODE, log, kube=kube)
    endpoint = endpoint_record("web", vm=False, labels={"app": "web"})
    policy = resource(
        Kind.NETWORK_POLICY, "p", {"selector": "all()", **EGRESS}, namespace=NAMESPACE
    )
    desk.feed(Stored(Resources(Kind.WORKLOAD_ENDPOINT), endpoint))
    desk.feed(Stored(Resources(Kind.NETWORK_POLICY), Record(policy.key, policy, "1")))
    desk.rules(())
    closed = log.of("policy_closes_endpoint")
    assert [one["reason"] for one in closed] == ([] if kube else [NO_API])
