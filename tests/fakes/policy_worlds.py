"""Small clusters and policies for Hypothesis, and the book that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any

from hypothesis import strategies as st

from felix_shim.policy_book import PolicyBook
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.policy import ANY, Item, NamedPort, Policy, Profile, TierRank
from libtortie.model.policy_wire import read_network_set, read_policy
from libtortie.model.resources import Resource, parse_resource
from tests.fakes.packets import ICMP, ICMPV6, SCTP, TCP, UDP, Packet
from tests.fakes.policy_meaning import Meaning, NetSet, Pod, Written

NAMESPACES: dict[str, dict[str, str]] = {"red": {"env": "prod"}, "blue": {"env": "test"}}
ACCOUNTS: dict[tuple[str, str], dict[str, str]] = {("red", "robot"): {"role": "db"}}
PODS = (
    Pod("red", "web", (ip_address("10.65.0.2"), ip_address("fd00:65::2")), {"app": "web"},
        ports=(("http", TCP, 80), ("dns", UDP, 80))),
    Pod("red", "db", (ip_address("10.65.0.3"),), {"app": "db", "tier": "x"}, "robot",
        ports=(("http", TCP, 443),)),
    Pod("blue", "web", (ip_address("10.65.0.4"), ip_address("fd00:65::4")), {"app": "web"}),
    Pod("blue", "twin", (ip_address("10.65.0.3"),), {"app": "db"}),
    Pod("blue", "bare", (ip_address("fd00:65::5"),)),
)  # fmt: skip
"""Two have one address, as both pods of a VM that migrates."""
NETSETS = (
    NetSet("red", "office", ("198.51.100.0/24", "198.51.100.7", "10.65.0.0/30"), {"app": "web"}),
    NetSet("", "world", ("203.0.113.0/24", "fd00:99::/64", "198.51.0.0/16"), {"tier": "x"}),
)
ADDRESSES = (
    *(address for pod in PODS for address in pod.addresses),
    *(ip_address(text) for text in ("198.51.100.7", "203.0.113.9", "fd00:99::9", "192.0.2.1")),
)
_PORTS = (80, 443, 5000, 8080)

selectors = st.sampled_from(
    [
        "app == 'web'", "app != 'web'", "has(tier)", "all()", "app in {'db', 'x'}",
        "app not in {'db'}", "!has(app)", "app starts with 'w' || tier == 'x'",
        "app == 'db' && !has(tier)", "has(nobody)",
    ]
)  # fmt: skip
outer_selectors = st.sampled_from(["env == 'prod'", "all()", "env != 'prod'", "has(env)"])
protocols = st.sampled_from(["TCP", "UDP", "SCTP", 6, 17])
ports = st.lists(st.sampled_from([80, "80:443", 8080, "http", "dns"]), min_size=1, max_size=3)
names = st.lists(st.sampled_from(["http", "dns"]), min_size=1, max_size=2)
nets = {
    4: st.lists(
        st.sampled_from(["10.65.0.0/30", "198.51.100.0/24", "10.65.0.3/32", "0.0.0.0/0"]),
        min_size=1,
        max_size=3,
    ),
    6: st.lists(st.sampled_from(["fd00:65::/64", "fd00:65::4/128"]), min_size=1, max_size=2),
}


@st.composite
def entities(draw: st.DrawFn, version: int, *, numbers: bool, named: bool) -> dict[str, Any]:
    """One end of a rule."""
    end: dict[str, Any] = {}
    match draw(st.integers(0, 7)):
        case 1:
            end["selector"] = draw(selectors)
        case 2:
            end["namespaceSelector"] = draw(st.one_of(outer_selectors, st.just("global()")))
        case 3:
            end["selector"] = draw(selectors)
            end["namespaceSelector"] = draw(outer_selectors)
        case 4:
            end["nets"] = draw(nets[version])
        case 5:
            end["notNets"] = [one for one in draw(nets[version]) if one != "0.0.0.0/0"]
        case 6:
            names_of_accounts = draw(st.sampled_from([["robot"], ["default", "x"]]))
            end["serviceAccounts"] = draw(
                st.sampled_from([{"names": names_of_accounts}, {"selector": "role == 'db'"}])
            )
    if draw(st.integers(0, 4)) == 0:
        end["notSelector"] = draw(selectors)
    if (numbers or named) and draw(st.booleans()):
        key = draw(st.sampled_from(["ports", "ports", "notPorts"]))
        end[key] = draw(ports if numbers else names)
    return end


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    """A rule that Calico takes."""
    version = draw(st.sampled_from([4, 6]))
    rule: dict[str, Any] = {"action": draw(st.sampled_from(["Allow", "Deny", "Pass", "Log"]))}
    if draw(st.integers(0, 5)) == 0:
        rule["ipVersion"] = version
    kind = draw(st.integers(0, 4))
    if kind in (1, 2):
        rule["protocol"] = draw(protocols)
    elif kind == 3:
        rule["protocol"] = "ICMP" if version == 4 else "ICMPv6"
        if draw(st.booleans()):
            wanted = draw(st.sampled_from([{"type": 8}, {"type": 8, "code": 0}, {"type": 3}]))
            rule[draw(st.sampled_from(["icmp", "notICMP"]))] = wanted
    elif kind == 4:
        rule["notProtocol"] = draw(protocols)
    for end in ("source", "destination"):
        rule[end] = draw(entities(version, numbers=kind in (1, 2), named=kind in (0, 4)))
    return rule


@st.composite
def policies(draw: st.DrawFn, name: str) -> Written:
    """A policy that Calico takes."""
    namespace = draw(st.sampled_from(["", "red", "blue"]))
    spec: dict[str, Any] = {
        "tier": draw(st.sampled_from(["default", "default", "first", "last", "unknown"])),
        "selector": draw(selectors),
    }
    if draw(st.booleans()):
        spec["order"] = draw(st.sampled_from([10.5, 20, 10.5]))
    for direction in ("ingress", "egress"):
        if draw(st.booleans()):
            spec[direction] = draw(st.lists(rules(), max_size=3))
    if draw(st.booleans()):
        spec["types"] = draw(st.sampled_from([["Ingress"], ["Egress"], ["Ingress", "Egress"]]))
    if not namespace and draw(st.integers(0, 3)) == 0:
        spec["namespaceSelector"] = draw(outer_selectors)
    if draw(st.integers(0, 5)) == 0:
        spec["serviceAccountSelector"] = draw(st.sampled_from(["role == 'db'", "has(role)"]))
    return Written(name, spec, namespace)


@st.composite
def worlds(draw: st.DrawFn) -> Meaning:
    """A cluster with up to four policies."""
    count = draw(st.integers(0, 4))
    return Meaning(
        pods=PODS,
        policies=tuple(draw(policies(f"p{number}")) for number in range(count)),
        netsets=NETSETS,
        namespaces=NAMESPACES,
        accounts=ACCOUNTS,
        tiers={"default": (1e6, "Deny"), "first": (10.0, "Pass"), "last": (None, "Deny")},
    )


@st.composite
def pointed(draw: st.DrawFn) -> Meaning:
    """A cluster in which all depends on one rule: what it is not about has the other fate."""
    rule = draw(rules())
    rule["action"] = draw(st.sampled_from(["Allow", "Deny"]))
    other = {"action": "Deny" if rule["action"] == "Allow" else "Allow"}
    namespace = draw(st.sampled_from(["", "red"]))
    order = draw(st.permutations(["a", "b"]))
    spec = {"selector": "all()", "types": ["Ingress", "Egress"], "egress": [{"action": "Allow"}]}
    first = Written(order[0], {**spec, "order": 5, "ingress": [rule]}, namespace)
    second = Written(order[1], {**spec, "order": 6, "ingress": [other]}, namespace)
    return Meaning(PODS, (first, second), NETSETS, NAMESPACES, ACCOUNTS)


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    """The first packet of a connection between two addresses of one family."""
    source = draw(st.sampled_from(ADDRESSES))
    same = [one for one in ADDRESSES if one.version == source.version]
    icmp = ICMP if source.version == 4 else ICMPV6
    return Packet(
        source,
        draw(st.sampled_from(same)),
        draw(st.sampled_from([TCP, UDP, SCTP, icmp, 47])),
        draw(st.sampled_from(_PORTS)),
        draw(st.sampled_from(_PORTS)),
        draw(st.sampled_from([(8, 0), (8, 1), (3, 1), (128, 0)])),
    )


def resource(kind: Kind, name: str, spec: Mapping[str, Any], **metadata: Any) -> Resource:
    """A resource of Calico's."""
    body = {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind.value,
        "metadata": {"name": name, **metadata},
        "spec": dict(spec),
    }
    return parse_resource(kind, body)


def policy_of(written: Written) -> Policy:
    """A policy as the agent reads it."""
    kind = Kind.NETWORK_POLICY if written.namespace else Kind.GLOBAL_NETWORK_POLICY
    return read_policy(resource(kind, written.name, written.spec, namespace=written.namespace))


def key_of(pod: Pod) -> ResourceKey:
    """The stored key of a pod's endpoint."""
    return ResourceKey(Kind.WORKLOAD_ENDPOINT, pod.name, pod.namespace)


def item_of(pod: Pod) -> Item:
    """A pod's endpoint."""
    return Item(
        tuple(sorted(pod.all_labels.items())),
        (f"kns.{pod.namespace}", f"ksa.{pod.namespace}.{pod.account}"),
        tuple(ip_network(address) for address in pod.addresses),
        tuple(NamedPort(*port) for port in pod.ports),
    )


def netset_of(netset: NetSet) -> tuple[ResourceKey, Item]:
    """A set of networks as the agent reads it."""
    kind = Kind.NETWORK_SET if netset.namespace else Kind.GLOBAL_NETWORK_SET
    found = resource(
        kind,
        netset.name,
        {"nets": list(netset.nets)},
        namespace=netset.namespace,
        labels=dict(netset.labels),
    )
    return found.key, read_network_set(found)


def profiles_of(world: Meaning) -> tuple[Profile, ...]:
    """The profiles that give namespaces' and accounts' labels."""
    spaces = [
        Profile(
            f"kns.{name}",
            (*_prefixed("pcns.", labels), ("pcns.projectcalico.org/name", name)),
            ANY,
            ANY,
        )
        for name, labels in world.namespaces.items()
    ]
    accounts = [
        Profile(
            f"ksa.{namespace}.{name}",
            (*_prefixed("pcsa.", labels), ("pcsa.projectcalico.org/name", name)),
        )
        for (namespace, name), labels in world.accounts.items()
    ]
    return (*spaces, *accounts)


def _prefixed(prefix: str, labels: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(prefix + key, value) for key, value in labels.items()]


def tiers_of(world: Meaning) -> tuple[TierRank, ...]:
    """The tiers that are stored."""
    return tuple(
        TierRank(name, order, passes=action == "Pass")
        for name, (order, action) in world.tiers.items()
    )


def book_of(world: Meaning) -> PolicyBook:
    """A book in which all of it is."""
    book = PolicyBook()
    for tier in tiers_of(world):
        book.put_tier(tier)
    for profile in profiles_of(world):
        book.put_profile(profile)
    for pod in world.pods:
        book.put_item(key_of(pod), item_of(pod))
        book.put_local(key_of(pod), item_of(pod))
    for netset in world.netsets:
        book.put_item(*netset_of(netset))
    for policy in world.policies:
        book.put_policy(policy_of(policy))
    return book
