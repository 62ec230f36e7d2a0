"""What limits a VM's moves is told of before anybody moves it: each fact once, of its own VMs."""

from __future__ import annotations

from typing import Any

import pytest

from felix_shim.cluster import FELIX, POOLS
from felix_shim.events import Stored
from felix_shim.move_limits import EVENT
from libtortie.model.keys import Kind
from libtortie.model.move_limits import Limit, Severity, felix_limits, layers_of, pool_limits
from libtortie.model.resources import FelixConfiguration, IPPool
from tests.fakes.agent_world import Bench, endpoint_record, resource_record
from tests.fakes.migrating_bench import succeed, target_bench
from tests.fakes.overlay_bench import pool_record

CIDR = "10.65.0.0/16"


def started(*, vm: bool = True) -> Bench:
    bench = Bench()
    bench.start()
    bench.attach(endpoint_record("web", vm=vm))
    return bench


def pool(bench: Bench, mode: str = "Never", cidr: str = CIDR, **spec: Any) -> None:
    bench.tell(Stored(POOLS, pool_record(mode, cidr, **spec)))


def felix(bench: Bench, name: str = "default", **spec: Any) -> None:
    bench.tell(Stored(FELIX, resource_record(Kind.FELIX_CONFIGURATION, name, spec)))


def told(bench: Bench) -> list[object]:
    return [fields["limit"] for fields in bench.log.of(EVENT)]


@pytest.mark.parametrize(
    ("mode", "spec", "settings", "code"),
    [
        ("Never", {"natOutgoing": True}, {}, "NATOutgoing"),
        ("Never", {"ipipMode": "CrossSubnet"}, {}, "IPIP"),
        ("Never", {"disableBGPExport": True}, {}, "NoBGPExport"),
        ("Always", {}, {"vxlanEnabled": False}, "OverlayOff"),
        ("Never", {}, {"wireguardEnabled": True}, "WireGuard"),
        ("Never", {}, {"wireguardEnabledV6": True}, "WireGuard"),
        ("Never", {}, {"ipv4ElevatedRoutePriority": 1023}, "RoutePriorities"),
        ("Never", {}, {"liveMigrationRouteConvergenceTime": "10ms"}, "ConvergenceTime"),
    ],
)
def test_a_vm_is_told_of_each_once(
    mode: str, spec: dict[str, Any], settings: dict[str, Any], code: str
) -> None:
    bench = started()
    felix(bench, **settings)
    pool(bench, mode, **spec)
    assert told(bench) == [code]
    (line,) = bench.log.of(EVENT)
    assert getattr(line["endpoint"], "pod", "") == "web"
    text = str(line["text"])
    assert text.startswith(("IPPool pool: ", "FelixConfiguration default: "))
    assert "; " in text, "what to do about it"
    pool(bench, mode, **spec, disabled=True)
    felix(bench, **settings, logSeverityScreen="Info")
    bench.advance(100)
    assert told(bench) == [code], "something else changed"
    felix(bench)
    pool(bench)
    felix(bench, **settings)
    pool(bench, mode, **spec)
    assert told(bench) == [code, code], "it was over in between"


def test_a_healthy_network_says_nothing() -> None:
    bench = started()
    felix(bench, wireguardEnabled=False, vxlanEnabled=True)
    pool(bench, "Always")
    pool(bench)
    assert told(bench) == []


def test_others_are_not_told() -> None:
    """A pod that is no VM's; a VM whose address is of another pool."""
    bench = started(vm=False)
    felix(bench, wireguardEnabled=True)
    pool(bench, natOutgoing=True)
    assert told(bench) == []
    bench = started()
    pool(bench, cidr="10.66.0.0/16", natOutgoing=True)
    pool(bench, "Always", "fd00:10::/64", natOutgoing=True)
    assert told(bench) == []


def test_this_nodes_settings_count_and_other_nodes_do_not() -> None:
    bench = started()
    felix(bench, "node.n2", wireguardEnabled=True)
    assert told(bench) == []
    felix(bench, "node.n1", wireguardEnabled=True)
    assert told(bench) == ["WireGuard"]
    assert "FelixConfiguration node.n1" in str(bench.log.of(EVENT)[0]["text"])


def test_what_is_put_right_for_this_node_is_no_limit_here() -> None:
    bench = started()
    felix(
        bench, "node.n1", wireguardEnabled=False, ipv4ElevatedRoutePriority=900, vxlanEnabled=True
    )
    felix(bench, wireguardEnabled=True, ipv4ElevatedRoutePriority=1023, vxlanEnabled=False)
    pool(bench, "Always")
    assert told(bench) == []
    felix(bench, "node.n1", ipv4NormalRoutePriority=900, ipv4ElevatedRoutePriority=800)
    assert told(bench) == ["OverlayOff", "WireGuard"]
    felix(bench, "node.n1", ipv4NormalRoutePriority=1000)
    assert told(bench)[2:] == ["RoutePriorities"], "of both together"
    assert "FelixConfiguration node.n1" in str(bench.log.of(EVENT)[2]["text"])


def test_whose_settings_a_cluster_has() -> None:
    felixes = {name: made(Kind.FELIX_CONFIGURATION, {}) for name in ("default", "node.a", "node.b")}
    one, a, b = felixes.values()
    assert layers_of(felixes, ["a", "c"]) == [[one], [one, a]]
    assert layers_of(felixes, ["a", "b"]) == [[one, a], [one, b]], "nobody has the default alone"
    assert layers_of(felixes, []) == [[one, a], [one, b]]
    assert layers_of({"default": one}, []) == [[one]]
    assert layers_of({}, ["a"]) == [[]]


def test_a_vm_that_comes_later_and_a_restart_of_the_agent_are_told() -> None:
    bench = started(vm=False)
    pool(bench, natOutgoing=True)
    bench.attach(endpoint_record("vm", address="10.65.0.3"))
    assert told(bench) == ["NATOutgoing"]
    bench.detach(endpoint_record("vm", address="10.65.0.3"))
    bench.attach(endpoint_record("vm", address="10.65.0.3"))
    assert told(bench) == ["NATOutgoing"] * 2, "its next pod"


def test_the_worst_is_told_first_and_a_target_too() -> None:
    bench = target_bench()
    felix(bench, wireguardEnabled=True)
    pool(bench, natOutgoing=True, ipipMode="Always")
    assert told(bench) == ["WireGuard", "IPIP", "NATOutgoing"]
    bench.sign("tgt")
    succeed(bench)
    bench.advance(100)
    assert len(told(bench)) == 3, "its move is no news of the network"


def made(kind: Kind, spec: dict[str, Any]) -> Any:
    return resource_record(kind, "x", spec).value


def test_an_overlay_that_is_off_concerns_pools_of_the_overlay_and_ipv4() -> None:
    off = made(Kind.FELIX_CONFIGURATION, {"vxlanEnabled": False})
    assert isinstance(off, FelixConfiguration)

    def codes(**spec: Any) -> list[str]:
        found = made(Kind.IP_POOL, spec)
        assert isinstance(found, IPPool)
        return [one.code for one in pool_limits(found, [[off]])]

    assert codes(cidr=CIDR, vxlanMode="CrossSubnet") == ["OverlayOff"]
    assert codes(cidr=CIDR) == []
    assert codes(cidr="fd00::/64", vxlanMode="Always") == []


def test_every_limit_says_what_to_do() -> None:
    worst = made(
        Kind.FELIX_CONFIGURATION,
        {
            "wireguardEnabled": True,
            "ipv6NormalRoutePriority": 512,
            "liveMigrationRouteConvergenceTime": "soon",
        },
    )
    found = list(felix_limits([worst]))
    assert [one.code for one in found] == ["WireGuard", "RoutePriorities", "ConvergenceTime"]
    assert all(one.remedy for one in found)
    bare = Limit(Severity.RISK, "IPPool", "p", "X", "x is on", "x", value=False)
    assert str(bare) == "IPPool p: x is on; set x: false on the IPPool"
