"""Workloads of this node as its neighbours: which BGPPeer's, by which address, and how guarded."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

import pytest

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import Peer
from felix_shim.bird_input import BirdPlan
from felix_shim.bird_links import PeeringAddresses, peering_addresses
from felix_shim.bird_workloads import Workload
from libtortie.errors import InvalidInput
from tests.fakes.kernel import FakeNamespaces
from tests.unit.felix_shim.test_bird_peers import HERE, ME, OTHER, plan

SOURCES = {"localWorkloadPeeringIPV4": "169.254.0.179", "localWorkloadPeeringIPV6": "fd12::179"}
ROUTER = Workload(
    "cali1", (ip_address("10.65.0.5"), ip_address("10.65.0.6"), ip_address("fd65::5")), {"r": "a"}
)
OTHERS = Workload("cali2", (ip_address("10.65.0.7"),), {"r": "b"})
SPEC: dict[str, Any] = {"localWorkloadSelector": "r == 'a'", "asNumber": 65401}


def with_workloads(
    *workloads: Workload, spec: dict[str, Any] | None = None, **options: Any
) -> BirdPlan:
    bgp = {"nodeToNodeMeshEnabled": False, **options.pop("bgp", SOURCES)}
    here = options.pop("here", HERE)
    here = replace(here, workloads=workloads or (ROUTER, OTHERS))
    return plan(ME, peers={"w": spec or SPEC}, bgp=bgp, here=here, **options)


def text(found: BirdPlan) -> str:
    assert found.problems == ()
    return render_bird(found.input)


def test_each_family_has_a_session_with_the_first_address_from_ours_on_its_veth() -> None:
    found = with_workloads()
    four, six = found.input.peers
    assert found.wants_workloads
    assert (four.protocol, four.interface, str(four.source)) == (
        "workload_10_65_0_5", "cali1", "169.254.0.179",
    )  # fmt: skip
    assert (str(six.address), str(six.source), six.as_number) == ("fd65::5", "fd12::179", 65401)
    said = text(found)
    assert "local 169.254.0.179 port 179 as 64512;\n  neighbor 10.65.0.5 port 179" in said
    assert "local fd12::179 port 179 as 64512;\n  neighbor fd65::5 port 179" in said
    assert said.count("  multihop;\n") == 2
    assert peering_addresses(found.input.peers) == {
        ("cali1", "169.254.0.179"), ("cali1", "fd12::179"),
    }  # fmt: skip


def test_a_workload_is_heard_only_as_far_as_filters_accept_and_never_raises() -> None:
    spec = {**SPEC, "filters": ["f"]}
    rules = [{"cidr": "10.123.0.0/16", "matchOperator": "In", "action": "Accept"}]
    said = text(with_workloads(spec=spec, filters={"f": {"importV4": rules}}))
    four, six = said.split("protocol bgp workload_")[1:]
    imports = four.partition("import filter {")[2].partition("};")[0].split()
    assert " ".join(imports) == "bgp_local_pref = 100; 'bgp_f_importFilterV4'(false); reject;"
    assert "bgp_local_pref = 100;\n      reject;" in six, "no rule: nothing"


def test_only_the_selected_of_selected_nodes_and_only_ours_families() -> None:
    assert with_workloads(OTHERS).input.peers == ()
    assert with_workloads(spec={**SPEC, "nodeSelector": "has(elsewhere)"}).input.peers == ()
    v4 = with_workloads(bgp={"localWorkloadPeeringIPV4": "169.254.0.179"})
    assert [str(one.address) for one in v4.input.peers] == ["10.65.0.5"]
    only4 = with_workloads(here=replace(HERE, address6=None))
    assert [str(one.address) for one in only4.input.peers] == ["10.65.0.5"]
    assert with_workloads(bgp={"bindMode": "NodeIP", **SOURCES}).problems == ()


def test_with_bind_mode_it_listens_on_an_address_that_may_come_later() -> None:
    said = text(with_workloads(bgp={"bindMode": "NodeIP", **SOURCES}))
    assert said.count("strict bind on;\n  free bind on;") == 2


def test_until_the_workloads_are_known_a_bird_that_runs_stays_as_it_is() -> None:
    unknown = replace(HERE, workloads=None)
    found = plan(ME, peers={"w": SPEC}, bgp=SOURCES, here=unknown)
    assert not found.input.complete
    assert plan(ME, bgp=SOURCES, here=unknown).input.complete, "nobody asks for workloads"


@pytest.mark.parametrize(
    ("spec", "bgp", "problem"),
    [
        (SPEC, {}, "has no localWorkloadPeeringIPV4 or -IPV6"),
        (SPEC, {"localWorkloadPeeringIPV4": "172.31.1.3"}, "172.31.1.3 is an address of a node"),
        (
            {**SPEC, "localWorkloadSelector": "pcns.team == 'a'"},
            SOURCES,
            "knows workloads' own labels, none of pcns.*",
        ),
        (
            {**SPEC, "password": {"secretKeyRef": {"name": "s", "key": "none"}}},
            SOURCES,
            None,
        ),
    ],
)
def test_what_cannot_be_is_named(
    spec: dict[str, Any], bgp: dict[str, Any], problem: str | None
) -> None:
    here = replace(HERE, workloads=(ROUTER,))
    found = plan(ME, OTHER, peers={"w": spec}, bgp=bgp, here=here)
    assert not any(one.interface for one in found.input.peers)
    if problem is None:
        assert not found.input.complete, "its password was not answered yet"
    else:
        assert [one for one in found.problems if problem in one]


@pytest.mark.parametrize("address", ["fd12::179", "224.0.0.1", "127.0.0.1", "0.0.0.0"])
def test_an_address_that_no_workload_could_send_to_is_refused(address: str) -> None:
    found = with_workloads(bgp={"localWorkloadPeeringIPV4": address})
    assert found.input.peers == ()
    assert any("localWorkloadPeeringIPV4" in one for one in found.problems)


def test_bird_is_given_no_half_of_it() -> None:
    peer = Peer(ip_address("10.65.0.5"), 65401, interface="cali1")
    found = plan(ME).input
    with pytest.raises(InvalidInput, match="a link without an address of ours"):
        render_bird(replace(found, peers=(peer,)))
    wrong = replace(peer, source=ip_address("fd12::179"))
    with pytest.raises(InvalidInput, match="not of the family of our address"):
        render_bird(replace(found, peers=(wrong,)))


# -- on the veths --------------------------------------------------------------------------------

FOUR, SIX = ("cali1", "169.254.0.179"), ("cali1", "fd12::179")


def test_addresses_are_given_first_and_taken_back_by_the_next_agent(tmp_path: Path) -> None:
    kernel = FakeNamespaces().open("")
    kernel.add_link("cali1")
    file = tmp_path / "links.json"
    PeeringAddresses(kernel, file).give(frozenset({FOUR, SIX, ("cali9", "169.254.0.179")}))
    held = [ip_interface(one) for one in ("169.254.0.179/32", "fd12::179/128")]
    assert set(kernel.addresses("cali1")) == set(held)
    kernel.ensure_address("cali1", ip_interface("fe80::1/64"))
    later = PeeringAddresses(kernel, file)
    later.give(frozenset({FOUR}))
    assert set(held) <= set(kernel.addresses("cali1")), "BIRD speaks from it still"
    later.take_back(frozenset({FOUR}))
    assert list(kernel.addresses("cali1")) == [held[0], ip_interface("fe80::1/64")]
    PeeringAddresses(kernel, file).take_back(frozenset())
    assert list(kernel.addresses("cali1")) == [ip_interface("fe80::1/64")]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[1]",
        '[["up0", "172.31.1.2"]]',
        '[["cali1", "x"]]',
        pytest.param("[" * 9999, id="deep"),
    ],
)
def test_a_file_that_is_none_takes_nothing_from_anybody(tmp_path: Path, body: str) -> None:
    kernel = FakeNamespaces().open("")
    kernel.add_link("up0")
    kernel.ensure_address("up0", ip_interface("172.31.1.2/32"))
    (tmp_path / "links.json").write_text(body)
    PeeringAddresses(kernel, tmp_path / "links.json").take_back(frozenset())
    assert list(kernel.addresses("up0")) == [ip_interface("172.31.1.2/32")]
