"""The lab's ToR told more than the lab tells it, and what it knows of a guest's host route.

Calico's own end-to-end tests know a raised route by a community: a BGPFilter marks what has the
raised priority, and the ToR's import filter prefers what is marked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network

from lab import control, names
from lab.cluster import established, until
from lab.measure import await_echo, guest_ips
from lab.objects import LabVMI
from lab.tools import run
from lab.tor import render_tor, session
from libtortie.model.keys import Kind
from tests.fakes.lab_settings import convergence, resource
from tests.fakes.lab_vms import EXT
from tests.fakes.running_lab import Lab, metrics

COMMUNITY = f"{names.TOR_AS}:100"
MARK = f"({names.TOR_AS},100)"
RAISED, NORMAL = 2147483135, 100
"""Local preferences that the ToR gives."""
FOR_EVER = 3600
"""Seconds; a convergence time that no test outlasts."""
ACCEPTED = "+ ] then accept;"
PREFERRED = (
    f"+ ] then {{ bgp_local_pref = {NORMAL};"
    f" if {MARK} ~ bgp_community then bgp_local_pref = {RAISED}; accept; }}"
)


@dataclass(frozen=True, slots=True)
class TorPath:
    """One of the ToR's ways to a network."""

    best: bool
    hop: str
    local_pref: int
    marked: bool


def ask_tor(lab: Lab, words: str) -> str:
    """What `birdc` says on the ToR."""
    return run(["birdc", "-s", str(lab.state.tor / "bird.ctl"), *words.split()])


def configured(lab: Lab, text: str) -> None:
    """Tell the ToR's BIRD another configuration, without a reset of what stays the same."""
    (lab.state.tor / "bird.conf").write_text(text)
    assert "Reconfigur" in ask_tor(lab, "configure")


def usual(lab: Lab) -> str:
    """The configuration that the lab gave it."""
    return render_tor(lab.topology.nodes, lab.state.tor / "bird.log")


def paths(lab: Lab, network: str) -> list[TorPath]:
    """The ToR's ways to exactly this network, an address being one."""
    text = ask_tor(lab, f"show route all where net = {ip_network(network)}")
    return [_path(block) for block in re.split(r"\bunicast \[", text)[1:]]


def _path(block: str) -> TorPath:
    def value(name: str, missing: str = "") -> str:
        found = re.search(rf"BGP\.{name}: (.*)", block)
        return found[1].strip() if found else missing

    return TorPath(
        best=" * (" in block.partition("\n")[0],
        hop=value("next_hop").partition(" ")[0],
        local_pref=int(value("local_pref", "0")),
        marked=MARK in value("community"),
    )


@contextmanager
def marked_by_community(lab: Lab) -> Iterator[None]:
    """A BGPFilter marks what is raised, next hops are kept, and the ToR goes by the mark alone."""
    rule = {
        "peerType": "eBGP",
        "priority": names.METRIC_ELEVATED,
        "action": "Accept",
        "operations": [{"addCommunity": {"value": COMMUNITY}}],
    }
    told = {"filters": ["raised"], "nextHopMode": "Keep"}
    with ExitStack() as stack:
        stack.enter_context(
            resource(lab, Kind.BGP_FILTER, "raised", {"exportV4": [rule], "exportV6": [rule]})
        )
        for peer in ("tor", "tor-v6"):
            stack.enter_context(resource(lab, Kind.BGP_PEER, peer, told))
        stack.callback(configured, lab, usual(lab))
        configured(lab, usual(lab).replace(ACCEPTED, PREFERRED))
        until(lambda: all_up(lab), "the ToR has lost a session")
        yield


def all_up(lab: Lab) -> bool:
    """Whether the ToR has a session with each node in each family."""
    wanted = {session(node.name, v) for node in lab.topology.nodes for v in names.FAMILIES}
    return wanted <= established(lab.state)


def all_at(vm: str, node: str, wanted: list[int]) -> Callable[[], bool]:
    """Whether a node has this to say of each of a VM's addresses."""
    addresses = guest_ips(control.get(LabVMI, vm)).values()
    return lambda: all(metrics(node, address) == wanted for address in addresses)


def move(vm: str, node: str) -> None:
    """A migration that succeeds."""
    job = control.create_migration(vm, node)
    assert control.await_migration(job.metadata.name, print).status.phase == "Succeeded"


def two_moves_by_the_tor(lab: Lab, vm: str, targets: tuple[str, str]) -> None:
    """Each time the node's metric is 512 and the ToR's route raised; then neither is."""
    addresses = guest_ips(control.get(LabVMI, vm))
    for block in own_blocks(addresses):
        until(partial(known, lab, block), f"no way to {block}")
    for target in targets:
        with convergence(lab, target, FOR_EVER):
            move(vm, target)
            until(all_at(vm, target, [names.METRIC_ELEVATED]), "the target's is not raised")
            for version, address in addresses.items():
                hop = next(str(n.ip(version)) for n in lab.topology.nodes if n.name == target)
                until(partial(raised, lab, address, hop), f"{address} is not raised by {hop}")
        until(all_at(vm, target, [names.METRIC_NORMAL]), "the target's is not normal again")
        for address in addresses.values():
            until(partial(unmarked, lab, address), f"{address} is still raised at the ToR")
            await_echo(address, EXT)


def own_blocks(addresses: Mapping[int, str]) -> list[str]:
    """The blocks that a VM's addresses are from."""
    sizes = {4: names.BLOCK_SIZE, 6: names.BLOCK_SIZE6}
    nets = (ip_network(f"{one}/{sizes[v]}", strict=False) for v, one in addresses.items())
    return [str(net) for net in nets]


def known(lab: Lab, network: str) -> bool:
    """Whether the ToR has a way to exactly this network."""
    return bool(paths(lab, network))


def raised(lab: Lab, address: str, hop: str) -> bool:
    """Whether the ToR's best way is a raised one to this node, and any to another is none."""
    found = paths(lab, address)
    best = [one for one in found if one.best]
    others = {one.local_pref for one in found if one.hop != hop}
    return [(one.hop, one.local_pref, one.marked) for one in best] == [
        (hop, RAISED, True)
    ] and RAISED not in others


def unmarked(lab: Lab, address: str) -> bool:
    """Whether no way of the ToR's is raised any more."""
    return {(one.local_pref, one.marked) for one in paths(lab, address)} <= {(NORMAL, False)}
