"""Every way in which a rule can match, and packets of which each is about some."""

from __future__ import annotations

from ipaddress import ip_address
from itertools import product
from typing import Any

from tests.fakes.packets import ICMP, ICMPV6, SCTP, TCP, UDP, Packet
from tests.fakes.policy_meaning import Meaning, Written
from tests.fakes.policy_worlds import ACCOUNTS, NAMESPACES, NETSETS, PODS

_ENDS: tuple[dict[str, Any], ...] = (
    {"nets": ["10.65.0.0/31", "10.65.0.3/32", "203.0.113.0/24"]},
    {"nets": ["fd00:65::2/128", "fd00:99::/64"]},
    {"nets": ["0.0.0.0/0"]},
    {"notNets": ["10.65.0.2/31", "203.0.113.0/24"]},
    {"notNets": ["fd00:65::4/128"]},
    {"selector": "app == 'web'"},
    {"selector": "tier == 'x'"},
    {"notSelector": "app == 'web'"},
    {"selector": "all()", "notSelector": "tier == 'x'"},
    {"namespaceSelector": "env == 'prod'"},
    {"namespaceSelector": "global()"},
    {"namespaceSelector": "all()", "selector": "!has(tier)"},
    {"serviceAccounts": {"names": ["robot"]}},
    {"serviceAccounts": {"selector": "role == 'db'"}},
    {"ports": ["http"]},
    {"notPorts": ["http", "dns"]},
)
_PORTS: tuple[dict[str, Any], ...] = (
    {"ports": [80]},
    {"ports": ["80:443", 8080]},
    {"ports": [5000, "http"]},
    {"notPorts": [80, 5000]},
    {"notPorts": ["0:79", "81:65535"]},
)
_PACKETS: tuple[dict[str, Any], ...] = (
    *({"protocol": name} for name in ("TCP", "UDP", "SCTP", "ICMP", "ICMPv6", 47)),
    {"notProtocol": "TCP"},
    {"notProtocol": 58},
    {"ipVersion": 4},
    {"ipVersion": 6},
    {"protocol": "ICMP", "icmp": {"type": 8}},
    {"protocol": "ICMP", "icmp": {"type": 8, "code": 1}},
    {"protocol": "ICMP", "notICMP": {"type": 8}},
    {"protocol": "ICMP", "notICMP": {"type": 8, "code": 0}},
    {"protocol": "ICMPv6", "icmp": {"type": 128, "code": 0}},
    {"protocol": "ICMPv6", "notICMP": {"type": 128}},
)
RULES: tuple[dict[str, Any], ...] = (
    *_PACKETS,
    *({side: end} for side, end in product(("source", "destination"), _ENDS)),
    *(
        {"protocol": protocol, side: ports}
        for protocol, side, ports in product(("TCP", "SCTP"), ("source", "destination"), _PORTS)
    ),
)


def matrix_world(rule: dict[str, Any]) -> Meaning:
    """Everything gets what the rule is about, and nothing else."""
    spec = {
        "selector": "all()",
        "types": ["Ingress", "Egress"],
        "ingress": [{"action": "Allow", **rule}],
        "egress": [{"action": "Allow"}],
    }
    return Meaning(PODS, (Written("matrix", spec),), NETSETS, NAMESPACES, ACCOUNTS)


Pairs = tuple[tuple[str, str], ...]
PAIRS: Pairs = (
    ("203.0.113.9", "10.65.0.2"),
    ("192.0.2.1", "10.65.0.3"),
    ("10.65.0.3", "10.65.0.2"),
    ("10.65.0.4", "10.65.0.3"),
    ("10.65.0.2", "10.65.0.4"),
    ("fd00:99::9", "fd00:65::2"),
    ("fd00:65::4", "fd00:65::2"),
    ("fd00:65::5", "fd00:65::4"),
    ("fd00:65::4", "fd00:65::5"),
)
OUTWARD: Pairs = (
    ("10.65.0.2", "203.0.113.9"),
    ("10.65.0.3", "192.0.2.1"),
    ("fd00:65::2", "fd00:99::9"),
    ("10.65.0.2", "10.65.0.3"),
)
"""From pods to the outside, and to a port that has a name."""


def matrix_packets(pairs: Pairs = PAIRS) -> tuple[Packet, ...]:
    """First packets of connections of every kind between ends of every kind."""
    found = []
    for source, destination in pairs:
        one, other = ip_address(source), ip_address(destination)
        version6 = one.version == 6
        for protocol, ports in (
            (TCP, (5000, 80)),
            (TCP, (80, 443)),
            (TCP, (443, 80)),
            (UDP, (443, 80)),
            (SCTP, (80, 5000)),
            (SCTP, (5000, 80)),
            (SCTP, (443, 443)),
            (47, (0, 0)),
        ):
            found.append(Packet(one, other, protocol, *ports))
        icmp = ICMPV6 if version6 else ICMP
        for message in ((128, 0), (129, 0)) if version6 else ((8, 0), (8, 1), (0, 0)):
            found.append(Packet(one, other, icmp, icmp=message))
    return tuple(found)
