"""The reconciler and several interfaces of one VM, and what an interface of its own needs."""

from __future__ import annotations

from ipaddress import ip_network

from cni_plugin.dataplane import HOST_LINK_LOCAL
from felix_shim.migration import State
from felix_shim.model import EndpointId
from libtortie.datastore.port import Record
from libtortie.linux.port import Route, RouteProto
from libtortie.model.names import host_ifname, vm_interface_handle
from tests.fakes.agent_world import (
    ADDRESS,
    NAMESPACE,
    VMI,
    Bench,
    endpoint_record,
    instance,
    migration,
)
from tests.fakes.migrating_bench import CONVERGENCE, succeed, target_bench

SECOND = "10.77.0.2"
HANDLE = vm_interface_handle("lan", NAMESPACE, VMI, "net1")
ETH0, NET1 = (EndpointId(NAMESPACE, "tgt", name) for name in ("eth0", "net1"))


def second(pod: str = "tgt", move: str = "m1") -> Record:
    return endpoint_record(
        pod, address=SECOND, migration=move, ifname="net1", handle=HANDLE, container=f"ctr-{pod}"
    )


def both() -> Bench:
    bench = target_bench()
    bench.attach(second())
    return bench


def metrics(bench: Bench) -> tuple[list[int], list[int]]:
    return bench.metrics("tgt"), bench.metrics("tgt", SECOND, "net1")


def test_each_interface_is_raised_by_its_own_sign() -> None:
    """A sign on one proves nothing of the other, whose frames may still come out at the source."""
    bench = both()
    assert set(bench.watched) == {ETH0, NET1}
    assert len({one.interface for one in bench.watched.values()}) == 2
    bench.sign("tgt", ifname="net1")
    assert metrics(bench) == ([], [512])
    assert (bench.state("tgt"), bench.state("tgt", "net1")) == (State.TARGET, State.LIVE)
    assert set(bench.watched) == {ETH0}
    bench.sign("tgt")
    assert metrics(bench) == ([512], [512])
    succeed(bench)
    bench.advance(CONVERGENCE + 1)
    assert metrics(bench) == ([1024], [1024])


def test_a_silent_interface_is_made_up_for_by_the_api() -> None:
    bench = both()
    bench.sign("tgt")
    succeed(bench)
    assert metrics(bench) == ([512], [512])
    assert bench.state("tgt", "net1") is State.TIME_WAIT


def test_each_interface_owns_its_own_handle() -> None:
    bench = both()
    bench.sign("tgt")
    assert set(bench.owned) == {ETH0}
    bench.sign("tgt", ifname="net1")
    handles = {one.endpoint: one.handle_id for one in bench.owned.values()}
    assert handles == {ETH0: f"k8s-pod-network.vmi.{NAMESPACE}.{VMI}", NET1: HANDLE}
    assert len({one.owner["container-id"] for one in bench.owned.values()}) == 1


def test_one_interface_going_leaves_the_other_raised() -> None:
    bench = both()
    for name in ("eth0", "net1"):
        bench.sign("tgt", ifname=name)
    bench.detach(second())
    assert metrics(bench) == ([512], [])
    assert set(bench.owned) == {ETH0}
    assert [name for name in bench.status if name.endswith("net1")] == []
    assert len(bench.status) == 1


def test_a_restart_remembers_each_by_itself() -> None:
    bench = both()
    bench.sign("tgt", ifname="net1")
    again = bench.restarted()
    again.listed(endpoint_record("tgt", migration="m1"), second())
    move = migration("m1", "Running", source="src", target="tgt")
    again.kube_in_sync(move, instance("n0"))
    assert (again.state("tgt"), again.state("tgt", "net1")) == (State.TARGET, State.LIVE)
    assert metrics(again) == ([], [512])


def test_a_source_withdraws_both() -> None:
    bench = Bench()
    bench.start(objects=(instance("n1"),))
    bench.attach(endpoint_record("tgt"))
    bench.attach(second(move=""))
    assert metrics(bench) == ([1024], [1024])
    bench.seen(instance("n2"))
    assert metrics(bench) == ([], [])


def test_addresses_that_no_ipam_gave_have_no_owner_to_swap() -> None:
    """There is no handle in IPAM to be promoted in, and nobody is asked for it for ever."""
    for giver in ("none", "host-local"):
        bench = target_bench()
        note = {"tortie.io/ipam": f'{{"type": "{giver}"}}'}
        bench.attach(endpoint_record("tgt", migration="m1", notes=note))
        bench.sign("tgt")
        assert bench.metrics("tgt") == [512], "it moves like any other VM"
        assert bench.owned == {}
        succeed(bench)
        bench.advance(CONVERGENCE + 1)
        assert bench.metrics("tgt") == [1024]
        assert bench.owned == {}


def test_an_ipv6_gateway_that_somebody_removes_comes_back_at_once() -> None:
    bench = Bench()
    bench.start()
    bench.attach(endpoint_record("web", address="fd00::5", vm=False))
    bench.attach(endpoint_record("old", address=ADDRESS, vm=False))
    six, four = (host_ifname(NAMESPACE, pod) for pod in ("web", "old"))
    route = Route(ip_network("fe80::/64"), 256, ifname=six, proto=RouteProto.KERNEL)
    bench.kernel.ensure_route(route)
    held = bench.kernel.namespaces.space("").addresses
    held[six].clear()
    bench.kernel.delete_route(route)
    bench.settle()
    assert held[six] == [HOST_LINK_LOCAL]
    assert not held.get(four), "IPv4 has no gateway of its own"
