"""The pods of `policy_worlds.py` on a node of their own, for rules against real packets."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from felix_shim.policy import EndpointPolicy, PolicySet, policy_set
from felix_shim.policy_book import PolicyBook
from tests.fakes.packets import Packet
from tests.fakes.policy_meaning import Pod
from tests.fakes.policy_worlds import ADDRESSES, PODS, key_of
from tests.fakes.wired_pods import Wire, far_wire

LOCAL = tuple(pod for pod in PODS if pod.name != "twin")
"""The twin has another's address, so it is on another node."""
WIRES = {
    key_of(pod): Wire(f"cali{number:011x}", f"02:00:00:00:00:{number:02x}", pod.addresses)
    for number, pod in enumerate(LOCAL, start=1)
}
OUTSIDE = tuple(one for one in ADDRESSES if not any(one in pod.addresses for pod in PODS))

Allows = Callable[[Pod, str, Packet], bool]


def all_wires() -> tuple[Wire, ...]:
    """The pods', and one to everywhere else."""
    return (*WIRES.values(), far_wire((*OUTSIDE, ip_address("172.31.0.1"))))


def rules_of(book: PolicyBook) -> PolicySet:
    """What the node's kernel is to have."""
    found = book.rules()
    endpoints = []
    for key, wire in WIRES.items():
        ways = found.ways[key]
        endpoints.append(
            EndpointPolicy(
                wire.interface, wire.mac, wire.addresses, True, ways.ingress, ways.egress
            )
        )
    return policy_set(endpoints, rules=found)


def local(address: object) -> Pod | None:
    """Who has an address here."""
    return next((pod for pod in LOCAL if address in pod.addresses), None)


def meant(allows: Allows, packet: Packet) -> bool:
    """Whether a packet is to arrive: its sender may send it, and its receiver may get it."""
    sender, receiver = local(packet.source), local(packet.destination)
    return (sender is None or allows(sender, "egress", packet)) and (
        receiver is None or allows(receiver, "ingress", packet)
    )
