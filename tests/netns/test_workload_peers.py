"""A pod that speaks BGP with its node, whichever that is: real agents, a BIRD in the pod."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from libtortie.kube.objects import Pod
from libtortie.model.keys import Kind
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until
from tests.fakes.overlay_site import OverlayNode, OverlaySite, Shape

pytestmark = pytest.mark.root
OURS = {4: "169.254.0.179", 6: "fd12::179"}
BEHIND = {4: "10.123.0.0/26", 6: "fd7b::/64"}
STOLEN = {4: "0.0.0.0/0", 6: "::/0"}
POD = "router"


class Speaker:
    """A pod's BIRD, which announces what is behind it, and everything else besides."""

    def __init__(self, site: OverlaySite, node: OverlayNode) -> None:
        site.world.put_pod(POD, labels={"speaks": "bgp"}, spec={"nodeName": node.node})
        self.addresses = dict(zip((4, 6), node.attach_pod(POD), strict=True))
        self.dir = site.root / "speaker"
        self.dir.mkdir()
        parts = [f"router id {self.addresses[4]};\nprotocol device {{ }}\n"]
        for v, behind in BEHIND.items():
            parts.append(
                f"protocol static s{v} {{ ipv{v};\n  route {behind} blackhole;\n"
                f"  route {STOLEN[v]} blackhole;\n}}\n"
                f"protocol bgp n{v} {{\n  local as 65401;\n  neighbor {OURS[v]} as 64512;\n"
                "  multihop; connect delay time 1; connect retry time 1; error wait time 1, 2;\n"
                f"  ipv{v} {{ import all; export all; next hop self; }};\n}}\n"
            )
        (self.dir / "bird.conf").write_text("".join(parts))
        command = ["nsenter", f"--net={node.sandbox(POD)}", "bird", "-f"]
        command += ["-c", str(self.dir / "bird.conf"), "-s", str(self.dir / "ctl")]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, words: str) -> str:
        command = ["birdc", "-s", str(self.dir / "ctl"), words]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout

    def established(self) -> int:
        return len(re.findall(r"^n[46] +BGP .* Established", self.ask("show protocols"), re.M))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OverlaySite]:
    with ExitStack() as stack:
        made = OverlaySite(tmp_path, fresh_name("wp"), Shape((4, 6), "Never"))
        stack.callback(made.close)
        made.start()
        made.put(
            Kind.BGP_CONFIGURATION,
            "default",
            localWorkloadPeeringIPV4=OURS[4],
            localWorkloadPeeringIPV6=OURS[6],
        )
        rules = {
            f"importV{v}": [{"cidr": net, "matchOperator": "In", "action": "Accept"}]
            for v, net in BEHIND.items()
        }
        made.put(Kind.BGP_FILTER, "behind", **rules)
        made.put(
            Kind.BGP_PEER,
            "speakers",
            localWorkloadSelector="speaks == 'bgp'",
            asNumber=65401,
            filters=["behind"],
        )
        yield made


@pytest.fixture
def speaker(site: OverlaySite) -> Iterator[Speaker]:
    made = Speaker(site, site.nodes[1])
    yield made
    made.close()


def given(node: OverlayNode) -> list[str]:
    """Our addresses on the pod's veth, but the gateway's and the kernel's own."""
    (link,) = node.ip_json("address", "show", "dev", node.host_name(POD)) or [{"addr_info": []}]
    return sorted(one["local"] for one in link["addr_info"] if not one["local"].startswith("fe80:"))


def learned(node: OverlayNode, version: int) -> set[str]:
    """Networks that the node's kernel leads into the pod, but its own addresses."""
    text = node.ip_json(f"-{version}", "route", "show", "dev", node.host_name(POD), "proto", "bird")
    return {str(one["dst"]) for one in text}


def test_a_pod_is_its_nodes_neighbour_for_as_long_as_it_is_selected(
    site: OverlaySite, speaker: Speaker
) -> None:
    node = site.nodes[1]
    until("both families' sessions are up", lambda: speaker.established() == 2)
    for version, behind in BEHIND.items():
        until(f"{behind} is led to it", lambda v=version: learned(node, v) == {BEHIND[v]})  # type: ignore[misc]  # bound now
    assert given(node) == sorted(OURS.values())
    for address in speaker.addresses.values():
        assert node.pings("client-n1", address), "it is an ordinary pod all the same"
    assert "[n4 " in speaker.ask("show route"), "it hears of the node's block"

    def label(value: str) -> None:
        body = {"metadata": {"labels": {"speaks": value}}}
        node.kube(lambda api: api.patch(Pod, POD, "default", body))

    label("nothing")
    until("the address is taken back", lambda: given(node) == [])
    until("its sessions are over", lambda: speaker.established() == 0)
    for version in BEHIND:
        until("its routes are gone", lambda v=version: learned(node, v) == set())  # type: ignore[misc]  # bound now
    label("bgp")
    until("they are up again", lambda: speaker.established() == 2)
    node.done("DEL", POD, POD)
    run = node.root / "run"
    until("BIRD forgets it", lambda: "workload_" not in (run / "bird.conf").read_text())
    until("the agent, too", lambda: json.loads((run / "bird-links.json").read_text()) == [])


def test_an_agent_that_is_killed_resets_no_session(site: OverlaySite, speaker: Speaker) -> None:
    node = site.nodes[1]
    until("both families' sessions are up", lambda: speaker.established() == 2)
    until("its route is there", partial(_has_route, node))
    before = _connections(node)
    assert len(before) >= 2
    node.kill()
    until("it has looked at BIRD", lambda: len(node.lines("cni_serving")) >= 2)
    pod = "late"
    site.world.put_pod(pod, labels={"speaks": "bgp"}, spec={"nodeName": node.node})
    node.attach_pod(pod)  # whose session is asked of BIRD by the new agent
    config = node.root / "run" / "bird.conf"
    until("BIRD has the other one, too", lambda: config.read_text().count("bgp workload_") == 4)
    assert before <= _connections(node)
    assert given(node) == sorted(OURS.values())
    assert _has_route(node)


def _has_route(node: OverlayNode) -> bool:
    return learned(node, 4) == {BEHIND[4]}


def _connections(node: OverlayNode) -> frozenset[tuple[str, ...]]:
    """The node's BGP connections from our addresses."""
    command = ["ip", "netns", "exec", node.name, "ss", "-Htn", "state", "established"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = (tuple(line.split()[2:4]) for line in lines.splitlines())
    return frozenset(ends for ends in found if any(one in ends[0] for one in OURS.values()))
