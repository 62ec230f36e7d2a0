"""Addresses from another program's IPAM: what it is told, what becomes of its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_plugin import calls
from cni_plugin.addresses import Giver, recorded
from cni_plugin.child import Finished
from cni_plugin.delegate import Delegate, DelegateFailed
from cni_plugin.errors import CheckFailed, InvalidConfig, NotReady, PolicyLate
from cni_plugin.types import Result
from cni_plugin.undo import SECONDS
from libtortie.errors import InvalidInput, MigrationRefused, Unavailable
from libtortie.model.names import ANNOTATION_IPAM
from tests.fakes.cni_world import CniNode, CniWorld, conf, started_vm
from tests.fakes.ipam_program import NEW, OLD, FakeProgram

P = "cni.projectcalico.org/"


def delegating(
    world: CniWorld, versions: tuple[str, ...] = NEW, name: str = "host-local", **settings: Any
) -> tuple[CniNode, FakeProgram]:
    """A node whose addresses another program gives."""

    def step(what: str) -> None:
        world.faults.step(what)

    program = FakeProgram(world.directory / "bin", name, versions=versions, step=step)
    ipam = settings.pop("ipam", {})
    world.node().use(program, **{**program.settings(**ipam), **settings})
    return world.node(), program


def result_of(answer: dict[str, Any]) -> Finished:
    return Finished(0, json.dumps({"cniVersion": "1.1.0", **answer}).encode())


def test_the_pod_gets_the_programs_address(world: CniWorld) -> None:
    node, program = delegating(world, flannel={"kept": True})
    world.put_pod("web-0")
    result = node.add("web-0", "c1", K8S_POD_INFRA_CONTAINER_ID="c1", uid="uid-of-web-0")
    assert [str(address) for address in result.addresses] == ["10.99.0.2/32"], "our mask, its host"
    assert world.allocated() == {}
    assert node.route("10.99.0.2").ifname == result.interfaces[0].name
    (stored,) = world.endpoints()
    assert stored.spec.ip_networks == ("10.99.0.2/32",)
    verb, env, body = program.asked[0]
    assert (verb, env["CNI_CONTAINERID"], env["CNI_IFNAME"]) == ("ADD", "c1", "eth0")
    assert (env["CNI_NETNS"], env["CNI_PATH"]) == ("/run/netns/c1", program.path)
    args = env["CNI_ARGS"].split(";")
    assert args[0] == "IgnoreUnknown=1"
    assert {"K8S_POD_NAME=web-0", "K8S_POD_UID=uid-of-web-0"} <= set(args)
    assert body["flannel"] == {"kept": True}
    assert body["ipam"]["subnet"] == "10.99.0.0/24"
    node.delete("web-0", "c1")
    assert program.held == {}
    assert world.nothing_left()
    node.delete("web-0", "c1")


def test_a_repeat_answers_the_same_and_asks_nobody(world: CniWorld) -> None:
    dns = {"nameservers": ["10.99.0.10"]}
    routes = [{"dst": "10.0.0.0/8", "gw": "10.99.0.1"}]
    node, program = delegating(world, ipam={"dns": dns, "routes": routes})
    world.put_pod("web-0")
    first = node.add("web-0", "c1").to_wire("1.1.0")
    assert (first["dns"], first["routes"]) == (dns, routes)
    assert node.add("web-0", "c1").to_wire("1.1.0") == first
    assert program.verbs() == ["ADD"]


def test_what_another_giver_gave_is_not_this_programs(world: CniWorld) -> None:
    world.put_pod("web-0")
    world.node().add("web-0", "c1")
    (stored,) = world.endpoints()
    assert recorded(stored, "host-local") is None
    note = {**stored.metadata.annotations, ANNOTATION_IPAM: Giver("static").note()}
    meta = stored.metadata.model_copy(update={"annotations": note})
    stored = stored.model_copy(update={"metadata": meta})
    assert recorded(stored, "host-local") is None
    known = recorded(stored, "static")
    assert known is not None
    assert [str(one) for one in known.own] == ["10.65.0.0"]


def test_what_an_unfinished_add_took_is_given_back_first(world: CniWorld) -> None:
    node, program = delegating(world)
    world.put_pod("web-0")
    program.held["c1", "eth0"] = ["10.99.0.77/24"]
    assert str(node.add("web-0", "c1").addresses[0].ip) == "10.99.0.2"
    assert program.verbs() == ["ADD", "DEL", "ADD"]


def pod_routes(node: CniNode, container: str = "c1") -> set[str]:
    space = node.machine.space(f"/run/netns/{container}")
    return {f"{one.dst} via {one.gateway}" for one in space.routes.values() if one.gateway}


def test_its_routes_take_the_place_of_the_defaults(world: CniWorld) -> None:
    world.put_pod("web-0")
    routes = [{"dst": "10.0.0.0/8"}, {"dst": "fd00::/8"}]
    node, _ = delegating(world, ipam={"routes": routes})
    node.add("web-0", "c1")
    assert pod_routes(node) == {"10.0.0.0/8 via 169.254.1.1"}
    node.delete("web-0", "c1")
    node, _ = delegating(world, ipam={"routes": routes}, include_default_routes=True)
    node.add("web-0", "c2")
    assert pod_routes(node, "c2") == {
        "10.0.0.0/8 via 169.254.1.1",
        "0.0.0.0/0 via 169.254.1.1",
    }
    node.delete("web-0", "c2")
    node, _ = delegating(world)
    node.add("web-0", "c3")
    assert pod_routes(node, "c3") == {"0.0.0.0/0 via 169.254.1.1"}


def test_the_nodes_pod_cidrs_stand_for_calicos_names(world: CniWorld) -> None:
    world.put_pod("web-0")
    ranges = [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]
    node, program = delegating(world)
    node.use(program, **{**program.settings(), "ipam": {"type": "host-local", "ranges": ranges}})
    result = node.add("web-0", "c1")
    assert [str(one.ip) for one in result.addresses] == ["10.244.1.2", "fd00:244:1::2"]
    told = program.asked[0][2]["ipam"]["ranges"]
    assert [group[0]["subnet"] for group in told] == ["10.244.1.0/24", "fd00:244:1::/64"]
    node.delete("web-0", "c1")
    told = program.asked[-1][2]["ipam"]["ranges"]
    assert [group[0]["subnet"] for group in told] == ["0.0.0.0/0", "::/0"], "DEL asks no API"


def test_a_node_without_a_network_of_a_family(world: CniWorld) -> None:
    node, program = delegating(world, ipam={"subnet": "usePodCidrIPv6"})
    parsed = conf(**node.settings)
    given = Delegate(parsed, program, lambda: (ip_network("10.244.1.0/24"),))
    with pytest.raises(InvalidInput, match="usePodCidrIPv6: the Node has no IPv6 podCIDR"):
        given.add(node.args("web-0", "c1"))
    assert program.asked == []


def test_what_a_program_says_beside_its_answer_is_in_the_calls_line(world: CniWorld) -> None:
    node, program = delegating(world)

    def run(path: Path, env: Mapping[str, str], stdin: bytes) -> Finished:
        return replace(program(path, env, stdin), stderr=b"the range is nearly full\n")

    with calls.recorded(calls.Call("ADD", world.clock.monotonic)) as call:
        Delegate(conf(**node.settings), run, tuple).add(node.args("web-0", "c1"))
    assert call.told()["ipam_said"] == "the range is nearly full"


def test_a_program_older_than_the_configuration(world: CniWorld) -> None:
    """It is asked in the newest version it speaks, and a previous result says the same one."""
    node, program = delegating(world, versions=OLD)
    world.put_pod("web-0")
    result = node.add("web-0", "c1")
    assert [(verb, body["cniVersion"]) for verb, _, body in program.asked] == [
        ("ADD", "1.1.0"),
        ("VERSION", "0.4.0"),
        ("ADD", "1.0.0"),
    ]
    args = node.args("web-0", "c1")
    checked = conf(**node.settings, prevResult=result.to_wire("1.1.0"))
    node.use(program, **{**node.settings, "prevResult": result.to_wire("1.1.0")})
    node.plugin.cmd_check(args, checked)
    assert program.asked[-1][2]["prevResult"]["cniVersion"] == "1.0.0"
    asked = len(program.asked)
    node.plugin.cmd_status(conf(**node.settings))
    node.gc(("c1", "eth0"))
    assert program.verbs()[asked:] == ["VERSION", "VERSION"], "it knows neither verb"
    program.versions = ("0.3.0", "0.3.1")
    asked = len(program.asked)
    node.plugin.cmd_check(args, checked)
    assert program.verbs()[asked:] == ["CHECK", "VERSION"], "nor CHECK, before 0.4.0"
    program.versions = ("9.0.0",)
    world.put_pod("web-1")
    with pytest.raises(DelegateFailed, match="speaks no version of CNI up to"):
        node.add("web-1", "c9")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (Finished(1, b'{"code": 5, "msg": "full\\u0000 up"}'), DelegateFailed, "full  up (its"),
        (Finished(1, b'{"code": 11, "msg": "later"}'), Unavailable, "ipam host-local: ADD: later"),
        (Finished(2, b"", b"panic: nil map"), DelegateFailed, "ended with status 2: panic: nil"),
        (Finished(1, b"[]"), DelegateFailed, "status 1: []"),
        (Finished(0, b""), DelegateFailed, "its result cannot be read"),
        (Finished(0, b"[" * 100_000), DelegateFailed, "its result cannot be read"),
        (Finished(0, b"7"), DelegateFailed, "its result cannot be read"),
        (result_of({}), DelegateFailed, "it gave no address"),
        (result_of({"ips": [{"address": "x"}]}), DelegateFailed, "its result cannot be read"),
        (result_of({"ips": [{}]}), DelegateFailed, "its result cannot be read"),
        (
            result_of({"ips": [{"address": "10.0.0.2/24"}], "routes": [{"dst": "x"}]}),
            DelegateFailed,
            "its result cannot be read",
        ),
    ],
)
def test_whatever_it_answers(
    world: CniWorld, answer: Finished, error: type[Exception], message: str
) -> None:
    node, program = delegating(world)
    world.put_pod("web-0")
    program.answers["ADD"] = answer
    with pytest.raises(error) as refused:
        node.add("web-0", "c1")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 500
    assert program.verbs()[-1] == "DEL", "what it may have given is given back"
    assert world.nothing_left()


def test_what_add_said_is_told_though_giving_back_fails_too(world: CniWorld) -> None:
    node, program = delegating(world)
    world.put_pod("web-0")
    program.answers["ADD"] = Finished(1, b'{"code": 5, "msg": "full"}')
    program.answers["DEL"] = Finished(1, b'{"code": 5, "msg": "broken"}')
    with pytest.raises(DelegateFailed, match="ADD: full"):
        node.add("web-0", "c1")
    (told,) = (fields for event, fields in node.log if event == "undo_failed")
    assert (told["step"], told["final"]) == ("release addresses", True)
    assert world.clock.elapsed == 0, "a refusal will not change: ADD's error waits for nothing"


def test_a_program_that_cannot_take_back_now_is_not_asked_for_more(world: CniWorld) -> None:
    """Each call may take its minute, and the runtime's patience ends after three."""
    node, program = delegating(world)
    world.put_pod("web-0")
    program.answers["ADD"] = Finished(1, b'{"code": 5, "msg": "full"}')
    program.answers["DEL"] = Finished(1, b'{"code": 11, "msg": "later"}')
    with pytest.raises(DelegateFailed, match="ADD: full"):
        node.add("web-0", "c1")
    assert program.verbs().count("ADD") == 1
    assert world.clock.elapsed <= SECONDS


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_giving_back_is_tried_again_for_a_while_if_it_may_yet_work(
    world: CniWorld, verb: str
) -> None:
    node, program = delegating(world)
    world.put_pod("web-0")
    node.gate.satisfied = False
    if verb == "DEL":
        program.answers["DEL"] = Finished(1, b'{"code": 11, "msg": "later"}')
    failing = {"policy_setup_timeout_seconds": 3, "policy_setup_on_timeout": "fail"}
    with pytest.raises(PolicyLate):
        node.add("web-0", "c1", conf=failing)
    attempts = program.verbs().count("DEL")
    assert (attempts > 3) if verb == "DEL" else attempts == 1
    assert world.clock.elapsed <= 3 + SECONDS
    assert world.endpoints() == []
    assert node.veths() == {}, "what else there is to take back is not kept waiting"


def test_results_of_the_oldest_form(world: CniWorld) -> None:
    node, program = delegating(world)
    world.put_pod("web-0")
    old = {"ip4": {"ip": "10.99.0.8/24", "routes": [{"dst": "10.0.0.0/8"}]}}
    program.answers["ADD"] = result_of(old)
    assert str(node.add("web-0", "c1").addresses[0]) == "10.99.0.8/32"
    assert pod_routes(node) == {"10.0.0.0/8 via 169.254.1.1"}


def test_a_program_that_is_not_there(world: CniWorld) -> None:
    node, program = delegating(world)
    world.put_pod("web-0")
    for setting in ({"CNI_PATH": "/nowhere"}, {"CNI_PATH": ""}):
        node.use(program, **{**program.settings(), **setting})
        with pytest.raises(InvalidConfig, match="there is no program 'host-local' in"):
            node.add("web-0", "c1")
        assert world.clock.elapsed == 0, "there is nothing to give back, so nothing is waited for"
    assert world.nothing_left()


def test_del_fails_with_the_program_and_its_repeat_completes_it(world: CniWorld) -> None:
    node, program = delegating(world)
    world.put_pod("web-0")
    node.add("web-0", "c1")
    program.answers["DEL"] = Finished(1, b'{"code": 999, "msg": "disk is full"}')
    with pytest.raises(DelegateFailed, match="DEL: disk is full"):
        node.delete("web-0", "c1")
    assert world.endpoints(), "the record goes last"
    program.answers.clear()
    node.delete("web-0", "c1")
    assert program.held == {}
    assert world.nothing_left()


def test_check_asks_the_program(world: CniWorld) -> None:
    node, program = delegating(world, ipam={"routes": [{"dst": "10.0.0.0/8"}]})
    world.put_pod("web-0")
    result = node.add("web-0", "c1")
    check(node, result)
    program.held.clear()
    with pytest.raises(DelegateFailed, match="CHECK: host-local: Failed to find"):
        check(node, result)
    node.machine.space("/run/netns/c1").routes.clear()
    with pytest.raises(CheckFailed, match="the pod has no route") as caught:
        check(node, result)
    told = "\n".join(caught.value.__notes__)
    assert "no route 10.0.0.0/8" in told
    assert "CHECK: host-local: Failed to find" in told, "all that differs is said"


def test_check_does_not_ask_a_program_that_gave_nothing(world: CniWorld) -> None:
    """The configuration's IPAM was changed since ADD."""
    world.put_pod("web-0")
    result = world.node().add("web-0", "c1")
    node, program = delegating(world)
    check(node, result)
    assert program.asked == []


def check(node: CniNode, result: Result) -> None:
    parsed = conf(**node.settings, prevResult=result.to_wire("1.1.0"))
    node.plugin.cmd_check(node.args("web-0", "c1"), parsed)


def test_status_is_the_programs_too(world: CniWorld) -> None:
    node, program = delegating(world)
    node.plugin.cmd_status(conf(**node.settings))
    assert program.verbs() == ["VERSION", "STATUS"]
    program.answers["STATUS"] = Finished(1, b'{"code": 50, "msg": "no lease server"}')
    with pytest.raises(NotReady, match="no lease server"):
        node.plugin.cmd_status(conf(**node.settings))
    program.answers["STATUS"] = Finished(1, b'{"code": 999, "msg": "broken"}')
    with pytest.raises(NotReady, match="broken"):
        node.plugin.cmd_status(conf(**node.settings))
    Path(program.path, program.name).unlink()
    with pytest.raises(NotReady, match="there is no program 'host-local' in"):
        node.plugin.cmd_status(conf(**node.settings))


def test_a_program_that_says_it_knows_neither_status_nor_gc_is_left_alone(world: CniWorld) -> None:
    """It speaks the version and has no such verb: code 4, which is a refusal of any other verb."""
    node, program = delegating(world)
    unknown = Finished(1, b'{"code": 4, "msg": "unknown CNI_COMMAND"}')
    program.answers.update(dict.fromkeys(("STATUS", "GC", "DEL"), unknown))
    node.plugin.cmd_status(conf(**node.settings))
    node.gc()
    with pytest.raises(DelegateFailed, match="unknown CNI_COMMAND"):
        node.delete("web-0", "c1")
    program.answers["GC"] = Finished(1, b'{"code": 999, "msg": "disk is full"}')
    with pytest.raises(DelegateFailed, match="GC: disk is full"):
        node.gc()


def test_gc_takes_the_stale_down_and_passes_the_list_on(world: CniWorld) -> None:
    node, program = delegating(world)
    for number in range(3):
        world.put_pod(f"web-{number}")
        node.add(f"web-{number}", f"c{number}")
    program.held["long-dead", "eth0"] = ["10.99.0.9/24"]
    world.clock.sleep(60)
    node.gc(("c1", "eth0"))
    assert set(program.held) == {("c1", "eth0")}
    assert [one.spec.container_id for one in world.endpoints()] == ["c1"]


def test_gc_tells_the_programs_error_and_all_others(world: CniWorld) -> None:
    node, program = delegating(world)
    for number in range(2):
        world.put_pod(f"web-{number}")
        node.add(f"web-{number}", f"c{number}")

    def fails(path: Path, env: Any, stdin: bytes) -> Finished:
        if env["CNI_COMMAND"] == "GC" or env.get("CNI_CONTAINERID") == "c0":
            return Finished(1, b'{"code": 7, "msg": "no"}')
        return program(path, env, stdin)

    node.use(fails, **program.settings())
    with pytest.raises(DelegateFailed, match="DEL: no") as caught:
        node.gc()
    assert [note for note in caught.value.__notes__ if "GC: no" in note]
    assert [one.spec.container_id for one in world.endpoints()] == ["c0"], "it went on"


def test_a_migration_target_cannot_get_its_vms_address_there(world: CniWorld) -> None:
    node = started_vm(world)
    held = world.allocated()
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    other = world.node("node2")
    program = FakeProgram(world.directory / "bin")
    other.use(program, **program.settings())
    with pytest.raises(MigrationRefused, match="host-local cannot give a migration target"):
        other.add("virt-launcher-db-b", "c2")
    assert program.asked == []
    assert world.allocated() == held
    assert node.veths()


@pytest.mark.parametrize("name", ["ipAddrs", "ipv4pools", "ipv6pools", "ipFamilies"])
def test_annotations_for_our_ipam_are_refused_by_name(world: CniWorld, name: str) -> None:
    node, program = delegating(world)
    world.put_pod("web-0", annotations={P + name: '["10.0.0.1"]'})
    with pytest.raises(InvalidInput, match=f"{name} is for ipam.type tortie-ipam"):
        node.add("web-0", "c1")
    assert program.asked == []


def test_a_pod_of_our_ipam_that_is_deleted_under_another(world: CniWorld) -> None:
    """The configuration changed in between: nothing of the first is left behind."""
    world.put_pod("web-0")
    world.node().add("web-0", "c1")
    node, program = delegating(world)
    node.delete("web-0", "c1")
    assert world.nothing_left()
    assert program.verbs() == ["DEL"]


def test_where_programs_are_found(tmp_path: Path) -> None:
    from cni_plugin.delegate import find

    first, second = tmp_path / "a", tmp_path / "b"
    (first / "prog").mkdir(parents=True)
    second.mkdir()
    (second / "prog").touch()
    with pytest.raises(InvalidConfig, match=f"'prog' in {first}:{second}"):
        find("prog", [str(first), str(second)])
    (second / "prog").chmod(0o755)
    assert find("prog", [str(first), str(second)]) == second / "prog"
