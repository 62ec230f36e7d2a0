"""A VM that is a router: it speaks BGP with the ToR and with whichever node it is on, and migrates.

Its BIRD runs in the guest and announces networks behind it. The session with the ToR is one TCP
connection that goes through the migrations as any other; the one with the node is another one on
each node, for the neighbour's address is the same everywhere and the node behind it is not.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from lab import control, names, seed
from lab.cluster import parse_established, until
from lab.measure import await_echo, guest_ips
from lab.nodes import in_netns, in_node
from lab.objects import LabVM, LabVMI
from lab.tools import run
from libtortie.model.keys import Kind
from tests.fakes.bird_lab import RTM_DELROUTE, Watch
from tests.fakes.lab_settings import resource
from tests.fakes.lab_tor import all_up, ask_tor, configured, move, usual
from tests.fakes.lab_vms import EXT, assert_freed, vm_name
from tests.fakes.running_lab import Lab, assert_settled

pytestmark = pytest.mark.root
GUEST_AS = 65401
NODES_TO_IT = {4: "169.254.0.179", 6: "fd12::179"}
BEHIND = {4: "10.123.0.0/26", 6: "fd7b::/64"}
FAR = {4: "10.123.0.1", 6: "fd7b::1"}
"""An address of the guest's that only its own announcements lead to."""
CONTROL = "/run/tortie/bird.ctl"
QUICK = "connect delay time 1; connect retry time 1; error wait time 1, 2;"
SESSIONS = frozenset(f"{end}{version}" for end in ("tor", "node") for version in names.FAMILIES)


def tor_with(usual_text: str, addresses: dict[int, str]) -> str:
    """The ToR's configuration with the VM as a neighbour, whose routes it takes."""
    own = dict(zip((4, 6), names.TOR_ADDRESSES, strict=True))
    return usual_text + "".join(
        f"protocol bgp vm{v} {{\n  local {own[v]} as {names.TOR_AS};\n"
        f"  neighbor {address} as {GUEST_AS};\n  multihop; passive on; hold time 30;\n"
        f"  ipv{v} {{ import where net = {BEHIND[v]}; export none; gateway recursive; }};\n}}\n"
        for v, address in addresses.items()
    )


class Router:
    """A VM with a BIRD in its guest."""

    def __init__(self, name: str, work: Path) -> None:
        vmi = control.get(LabVMI, name)
        self.name, self.work = name, work
        self.addresses = guest_ips(vmi)
        self.netns = names.guest_netns(name, vmi.metadata.uid)
        for address in FAR.values():
            run(["ip", "-n", self.netns, "address", "add", address, "dev", "lo"])
        (work / "bird.conf").write_text(self._config())
        command = ["bird", "-f", "-c", str(work / "bird.conf"), "-s", str(work / "ctl")]
        self.process = subprocess.Popen(
            in_netns(self.netns, command), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _config(self) -> str:
        tor = dict(zip((4, 6), names.TOR_ADDRESSES, strict=True))
        parts = [f"router id {self.addresses[4]};\nprotocol device {{ scan time 2; }}\n"]
        for v, own in self.addresses.items():
            parts.append(f"protocol static s{v} {{ ipv{v}; route {BEHIND[v]} blackhole; }}\n")
            ends = {"tor": (tor[v], names.TOR_AS), "node": (NODES_TO_IT[v], names.CLUSTER_AS)}
            parts += (
                f"protocol bgp {end}{v} {{\n  local {own} as {GUEST_AS};\n"
                f"  neighbor {address} as {number};\n  multihop; {QUICK}\n"
                f'  ipv{v} {{ import all; export where proto = "s{v}"; next hop self; }};\n}}\n'
                for end, (address, number) in ends.items()
            )
        return "".join(parts)

    def ask(self, words: str) -> str:
        """What its BIRD says."""
        return run(["birdc", "-s", str(self.work / "ctl"), *words.split()])

    def up(self) -> bool:
        """Whether it has every session."""
        return parse_established(self.ask("show protocols")) >= SESSIONS

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def router(lab: Lab, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Router]:
    name = vm_name(request.node.name)
    body = seed.vm_body(name, "default", "node1", {"role": "router"})
    sources = "cni.projectcalico.org/allowedSourcePrefixes"
    annotations = body["spec"]["template"]["metadata"]["annotations"]
    annotations[sources] = str(list(BEHIND.values())).replace("'", '"')
    rules = {
        f"importV{v}": [{"cidr": net, "matchOperator": "In", "action": "Accept"}]
        for v, net in BEHIND.items()
    }
    peer = {
        "localWorkloadSelector": "role == 'router'",
        "asNumber": GUEST_AS,
        "filters": ["behind"],
    }
    addresses = {f"localWorkloadPeeringIPV{v}": one for v, one in NODES_TO_IT.items()}
    with ExitStack() as stack:
        spoofing = {"workloadSourceSpoofing": "Any"}
        stack.enter_context(resource(lab, Kind.FELIX_CONFIGURATION, "default", spoofing))
        stack.enter_context(resource(lab, Kind.BGP_CONFIGURATION, "default", addresses))
        stack.enter_context(resource(lab, Kind.BGP_FILTER, "behind", rules))
        stack.enter_context(resource(lab, Kind.BGP_PEER, "routers", peer))
        control.with_client(lambda api: api.create(LabVM, body))
        control.await_vm(name)
        made = Router(name, tmp_path)
        stack.callback(assert_freed, lab, name, made.addresses.values())
        stack.callback(lab.cli, "vm", "delete", name)
        stack.callback(made.close)
        stack.callback(configured, lab, usual(lab))
        configured(lab, tor_with(usual(lab), made.addresses))
        yield made


def connections(router: Router) -> frozenset[tuple[str, str]]:
    """The ToR's BGP connections with the VM, by both ends."""
    command = ["ss", "-Htn", "state", "established", "( sport = 179 or dport = 179 )"]
    lines = run(in_netns(names.netns(names.TOR), command)).splitlines()
    found = {(ours, theirs) for _, _, ours, theirs in (line.split()[:4] for line in lines)}
    return frozenset(
        ends for ends in found if any(one in ends[1] for one in router.addresses.values())
    )


def heard(lab: Lab, version: int) -> tuple[int, int]:
    """How often the ToR was told of what is behind the VM, and how often that it is gone."""
    text = ask_tor(lab, f"show protocols all vm{version}")
    updates = re.search(r"Import updates: +(\d+)", text)
    withdrawals = re.search(r"Import withdraws: +(\d+)", text)
    assert updates is not None
    assert withdrawals is not None
    return int(updates[1]), int(withdrawals[1])


def learned(lab: Lab, version: int) -> list[str]:
    """The nodes that have a session with it, in which it has told of what is behind it."""
    asked = f"show route where net = {BEHIND[version]}".split()
    told = {
        node.name: run(in_node(lab.state, node.name, ["birdc", "-s", CONTROL, *asked]))
        for node in lab.topology.nodes
    }
    return [name for name, text in told.items() if "[workload_" in text]


def led_by(version: int, node: str) -> bool:
    """Whether the ToR's kernel leads to what is behind the VM by this node."""
    hop = next(str(one.ip(version)) for one in names.lab_nodes(3) if one.name == node)
    command = ["ip", "-n", names.netns(names.TOR), f"-{version}", "route", "show", BEHIND[version]]
    return f"via {hop} " in run(command)


def test_sessions_of_a_vm_that_speaks_bgp(lab: Lab, router: Router) -> None:
    """The ToR's is the same one all the way, and its routes never go; each node has its own."""
    until(router.up, "it has not every session")
    before = connections(router)
    assert len(before) == 2
    watch = Watch(names.netns(names.TOR), ip_network(BEHIND[4]).network_address)
    with watch:
        for node in ("node1", "node2", "node3", "node1"):
            if control.get(LabVMI, router.name).status.node_name != node:
                move(router.name, node)
            for version, address in router.addresses.items():
                until(partial(led_by, version, node), f"{BEHIND[version]} is not led by {node}")
                until(lambda v=version, n=node: learned(lab, v) == [n], "not by its node alone")  # type: ignore[misc]  # bound now
                await_echo(FAR[version], EXT)
                assert heard(lab, version) == (1, 0)
                assert_settled(lab, router.name, address)
            assert connections(router) == before
            until(router.up, "it has not every session again")
        assert RTM_DELROUTE not in watch.drain()
    assert ip_address(FAR[4]) in ip_network(BEHIND[4])
    assert all_up(lab)
