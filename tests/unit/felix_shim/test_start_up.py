"""A node's start: what is stored, byte for byte; pools, locks, broken objects, addresses."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from felix_shim.kube_node import ConfigMap
from felix_shim.node import AddressTakenError
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore, KeyOp, Op
from libtortie.errors import InvalidInput, Unauthorized, Unavailable
from libtortie.kube.objects import KubeNode
from libtortie.linux.port import Route, RouteProto
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey, Kind, ResourceKey, Resources, path_of
from libtortie.model.resources import IPPool
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.kube import FakeKube
from tests.fakes.starting_node import (
    GUID,
    POOL,
    Machine,
    everything,
    head,
    lock,
    memory,
    pool_cidr,
    put,
    text,
)


@pytest.fixture
def store() -> MemoryDatastore:
    return memory()


@pytest.fixture
def machine(tmp_path: Path, store: MemoryDatastore) -> Machine:
    return Machine(tmp_path, store)


# -- golden -----------------------------------------------------------------------------------


def test_an_empty_store_gets_calicos_bytes(tmp_path: Path, store: MemoryDatastore) -> None:
    kube = FakeKube()
    machine = Machine(tmp_path, store, kube=kube, options="as_number: 64512")
    assert machine.boot().complete
    assert machine.complaints() == []
    assert text(store, Kind.NODE, "node-1") == head("Node", "node-1") + (
        '{"bgp":{"asNumber":64512,"ipv4Address":"192.0.2.11/24"},'
        '"orchRefs":[{"nodeName":"node-1","orchestrator":"k8s"}],'
        '"interfaces":[{"name":"eth0","addresses":["192.0.2.11"]}]},"status":{}}'
    )
    assert text(store, Kind.CLUSTER_INFORMATION) == head("ClusterInformation", "default") + (
        f'{{"clusterGUID":"{GUID}","clusterType":"k8s,bgp","calicoVersion":"v3.33.0",'
        '"datastoreReady":true}}'
    )
    assert text(store, Kind.IP_POOL, POOL.name) == head("IPPool", POOL.name) + (
        '{"cidr":"192.168.0.0/16","vxlanMode":"Never","ipipMode":"Never","natOutgoing":true,'
        '"blockSize":26,"nodeSelector":"all()","allowedUses":["Workload","Tunnel"],'
        '"assignmentMode":"Automatic"}}'
    )
    for name, spec in (
        ("default", '{"order":1000000,"defaultAction":"Deny"},"status":{}}'),
        ("kube-admin", '{"order":1000,"defaultAction":"Pass"},"status":{}}'),
        ("kube-baseline", '{"order":10000000,"defaultAction":"Pass"},"status":{}}'),
    ):
        assert text(store, Kind.TIER, name) == head("Tier", name) + spec
    assert text(store, Kind.FELIX_CONFIGURATION) == head("FelixConfiguration", "default") + (
        '{"logSeverityScreen":"Info","reportingInterval":"0s","nftablesMode":"Auto",'
        '"nftablesFlowTableOffload":"Disabled","bpfLogLevel":"",'
        '"bpfConnectTimeLoadBalancing":"TCP","bpfHostNetworkedNATWithoutCTLB":"Enabled",'
        '"floatingIPs":"Disabled"}}'
    )
    assert text(store, Kind.BGP_CONFIGURATION) == head("BGPConfiguration", "default") + (
        '{"logSeverityScreen":"Info","serviceLoadBalancerAggregation":"Enabled"}}'
    )
    assert text(store, Kind.IPAM_CONFIGURATION) == head("IPAMConfiguration", "default") + (
        '{"strictAffinity":false,"autoAllocateBlocks":true,'
        '"kubeVirtVMAddressPersistence":"Enabled"}}'
    )
    names = {"default-ipv4-ippool", "default-ipv6-ippool"}
    assert {key.split()[1] for key in everything(store) if key.startswith("IPPool")} == names
    assert (tmp_path / "node-1" / "nodename").read_bytes() == b"node-1"
    assert (tmp_path / "node-1" / "mtu").read_bytes() == b"1500"


def test_the_ipv6_pool_is_a_unique_local_48(machine: Machine, store: MemoryDatastore) -> None:
    machine.boot()
    found = store.get(ResourceKey(Kind.IP_POOL, "default-ipv6-ippool")).value
    assert isinstance(found, IPPool)
    cidr = ip_network(found.spec.cidr)
    assert cidr.prefixlen == 48
    assert cidr.subnet_of(ip_network("fd00::/8"))  # type: ignore[arg-type]  # both IPv6
    assert (found.spec.block_size, found.spec.nat_outgoing) == (122, False)


def test_a_kernel_without_ipv6_gets_no_pool_of_it(machine: Machine, store: Datastore) -> None:
    machine.kernel.write_sysctl("net/ipv6/conf/all/disable_ipv6", "1")
    assert machine.boot().complete
    assert "IPPool default-ipv6-ippool" not in everything(store)


def test_etcd_gets_calicos_node_configuration_too(tmp_path: Path, store: Datastore) -> None:
    Machine(tmp_path, store, options="datastore_type: etcdv3").boot()
    assert '"defaultEndpointToHostAction":"Return"' in text(
        store, Kind.FELIX_CONFIGURATION, "node.node-1"
    )


# -- what is there already --------------------------------------------------------------------


def test_a_second_start_writes_nothing(machine: Machine, store: MemoryDatastore) -> None:
    machine.boot()
    before = everything(store)
    revision = store.list(Resources(Kind.NODE)).revision
    assert machine.boot().complete
    assert everything(store) == before
    assert store.list(Resources(Kind.NODE)).revision == revision


def test_an_explicit_pool_wins_family_by_family(machine: Machine, store: Datastore) -> None:
    put(store, Kind.IP_POOL, "mine", {"cidr": "10.65.0.0/16", "disabled": True})
    machine.boot()
    pools = {key for key in everything(store) if key.startswith("IPPool")}
    assert pools == {"IPPool mine", "IPPool default-ipv6-ippool"}


def test_a_cluster_information_that_exists_is_completed(machine: Machine, store: Datastore) -> None:
    spec = {"clusterType": "typha,bgp", "calicoVersion": "v3.30.1", "variant": "Calico"}
    put(store, Kind.CLUSTER_INFORMATION, "default", spec)
    machine.boot()
    assert text(store, Kind.CLUSTER_INFORMATION).endswith(
        f'"spec":{{"clusterGUID":"{GUID}","clusterType":"typha,bgp,k8s",'
        '"calicoVersion":"v3.33.0","datastoreReady":true,"variant":"Calico"}}'
    )


def test_a_guid_stays_and_an_empty_version_says_nothing(tmp_path: Path, store: Datastore) -> None:
    put(
        store, Kind.CLUSTER_INFORMATION, "default", {"clusterGUID": "a", "calicoVersion": "v3.30.1"}
    )
    machine = Machine(tmp_path, store)
    config = machine.config.model_copy(update={"calico_version": ""})
    started = machine.start()
    started.config = config
    started.begin()
    assert '"clusterGUID":"a"' in text(store, Kind.CLUSTER_INFORMATION)
    assert '"calicoVersion":"v3.30.1"' in text(store, Kind.CLUSTER_INFORMATION)


def test_a_felix_configuration_gets_only_what_it_lacks(machine: Machine, store: Datastore) -> None:
    spec = {"reportingInterval": "30s", "wireguardEnabled": True}
    put(store, Kind.FELIX_CONFIGURATION, "default", spec)
    machine.boot()
    assert text(store, Kind.FELIX_CONFIGURATION).endswith(
        '"spec":{"logSeverityScreen":"Info","reportingInterval":"30s","bpfLogLevel":"",'
        '"wireguardEnabled":true}}'
    )


def test_other_configurations_and_tiers_are_left_alone(machine: Machine, store: Datastore) -> None:
    put(store, Kind.BGP_CONFIGURATION, "default", {"asNumber": 65001})
    put(store, Kind.TIER, "default", {"order": 5, "defaultAction": "Pass"})
    put(store, Kind.IPAM_CONFIGURATION, "default", {"strictAffinity": True})
    before = everything(store)
    machine.boot()
    assert {name: everything(store)[name] for name in before} == before


def test_address_persistence_that_is_off_stays_off(machine: Machine, store: Datastore) -> None:
    held = IPAMConfig(
        strict_affinity=True, max_blocks_per_host=3, kubevirt_persistence=Persistence.DISABLED
    )
    store.create(IPAMConfigKey(), held)
    machine.boot()
    assert text(store, Kind.IPAM_CONFIGURATION).endswith(
        '"spec":{"strictAffinity":true,"autoAllocateBlocks":true,"maxBlocksPerHost":3,'
        '"kubeVirtVMAddressPersistence":"Disabled"}}'
    )


def test_persistence_turned_off_meanwhile_is_seen(tmp_path: Path) -> None:
    inner = memory()

    def turn_off(ops: Sequence[Op]) -> None:
        configuration = ResourceKey(Kind.IPAM_CONFIGURATION, "default")
        if any(isinstance(op, KeyOp) and op.key == configuration for op in ops):
            faulty.before_commit = lambda ops: None
            inner.create(IPAMConfigKey(), IPAMConfig(kubevirt_persistence=Persistence.DISABLED))

    faulty = FaultyStore(inner, before_commit=turn_off)
    machine = Machine(tmp_path, faulty)
    machine.over.wait = lambda timeout=None: False  # type: ignore[method-assign]  # no waiting
    machine.boot()
    assert '"Disabled"' in text(inner, Kind.IPAM_CONFIGURATION)


# -- pools ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (("10.0.0.0/8",), "192.168.0.0/16"),
        (("192.168.7.0/24",), "172.16.0.0/16"),
        (("192.168.0.0/16", "172.16.0.0/15"), "172.18.0.0/16"),
        (("192.0.0.0/4",), "172.16.0.0/16"),
    ],
)
def test_the_default_range_avoids_the_nodes_routes(
    machine: Machine, store: Datastore, taken: tuple[str, ...], expected: str
) -> None:
    for cidr in (*taken, "0.0.0.0/0"):
        machine.kernel.ensure_route(Route(ip_network(cidr), 0, ifname="eth0"))
    machine.boot()
    assert pool_cidr(store) == expected


def test_routes_of_an_old_pool_are_no_obstacle(machine: Machine, store: Datastore) -> None:
    machine.kernel.add_link("cali1")
    machine.kernel.ensure_route(Route(ip_network("192.168.0.5/32"), 1024, ifname="cali1"))
    bird = Route(ip_network("192.168.9.0/26"), 768, ifname="eth0", proto=RouteProto.BIRD)
    machine.kernel.ensure_route(bird)
    machine.boot()
    assert pool_cidr(store) == "192.168.0.0/16"


def test_when_nothing_is_free_the_rest_goes_on(machine: Machine, store: Datastore) -> None:
    for cidr in ("192.168.0.0/16", "172.16.0.0/12"):
        machine.kernel.ensure_route(Route(ip_network(cidr), 0, ifname="eth0"))
    machine.boot()
    assert any("default_pools.ipv4.cidr" in one for one in machine.complaints())
    assert "Tier default" in everything(store)
    assert "IPPool default-ipv4-ippool" not in everything(store)


def test_configured_pools(tmp_path: Path, store: Datastore) -> None:
    options = (
        "default_pools:\n  ipv6: {cidr: none}\n  ipv4: {cidr: 10.65.0.0/16, block_size: 28, "
        "nat_outgoing: false, node_selector: has(rack), disable_bgp_export: true}\n"
    )
    Machine(tmp_path, store, options=options).boot()
    assert text(store, Kind.IP_POOL, POOL.name).endswith(
        '"spec":{"cidr":"10.65.0.0/16","vxlanMode":"Never","ipipMode":"Never","blockSize":28,'
        '"nodeSelector":"has(rack)","disableBGPExport":true,"allowedUses":["Workload","Tunnel"],'
        '"assignmentMode":"Automatic"}}'
    )
    assert "IPPool default-ipv6-ippool" not in everything(store)


KUBEADM = {
    "metadata": {"name": "kubeadm-config", "namespace": "kube-system"},
    "data": {
        "ClusterConfiguration": "networking: {podSubnet: 'fd00:10::/56,10.244.0.0/16'}\n",
    },
}


def test_kubeadms_subnets_are_the_pools(tmp_path: Path, store: Datastore) -> None:
    kube = FakeKube()
    kube.put(KUBEADM, ConfigMap)
    Machine(tmp_path, store, kube=kube).boot()
    assert pool_cidr(store) == "10.244.0.0/16"
    assert '"fd00:10::/56"' in text(store, Kind.IP_POOL, "default-ipv6-ippool")
    assert '"clusterType":"k8s,bgp,kubeadm"' in text(store, Kind.CLUSTER_INFORMATION)


def test_an_api_that_forbids_to_look_is_named_once(tmp_path: Path, store: Datastore) -> None:
    kube = FakeKube()
    kube.fail(Unauthorized("get configmaps: 403"), plural="configmaps", times=9)
    machine = Machine(tmp_path, store, kube=kube)
    assert machine.boot().complete
    assert machine.complaints() == ["kubeadm: Unauthorized: get configmaps: 403"]
    assert pool_cidr(store) == "192.168.0.0/16"


def test_a_silent_api_holds_up_only_what_it_knows(tmp_path: Path, store: Datastore) -> None:
    kube = FakeKube()
    kube.fail(Unavailable("silence"), plural="configmaps", times=99)
    machine = Machine(tmp_path, store, kube=kube)
    started = machine.boot()
    assert not started.complete
    assert len(kube.calls) == 1, "each silence may take seconds"
    assert "IPPool default-ipv4-ippool" not in everything(store)
    assert "BGPConfiguration default" in everything(store)
    assert (tmp_path / "node-1" / "nodename").exists()
    kube.heal()
    assert started.attempt()
    assert pool_cidr(store) == "192.168.0.0/16"


def test_a_restart_asks_the_api_only_after_it_has_begun(tmp_path: Path, store: Datastore) -> None:
    """It may be in the middle of a migration, and the API silent."""
    kube = FakeKube()
    assert Machine(tmp_path, store, kube=kube).boot().complete
    kube.calls.clear()
    kube.fail(Unavailable("silence"), plural="configmaps", times=99)
    machine = Machine(tmp_path, store, kube=kube)
    again = machine.boot()
    assert kube.calls == []
    assert machine.complaints() == []
    left = again.complete
    kube.heal()
    again.run()
    assert (left, again.complete) == (False, True)
    assert kube.calls != []


def test_a_restart_over_an_unreadable_node_is_a_first_start(
    tmp_path: Path, store: MemoryDatastore
) -> None:
    kube = FakeKube()
    Machine(tmp_path, store, kube=kube).boot()
    store.put_raw(path_of(ResourceKey(Kind.NODE, "node-1")), b"{")
    kube.calls.clear()
    Machine(tmp_path, store, kube=kube).boot()
    assert kube.calls != []


# -- locks ------------------------------------------------------------------------------------


def test_a_locked_store_gets_nothing_for_the_cluster(machine: Machine, store: Datastore) -> None:
    put(store, Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    started = machine.boot()
    assert not started.complete
    assert set(everything(store)) == {"ClusterInformation default", "Node node-1"}
    assert '"datastoreReady":false' in text(store, Kind.CLUSTER_INFORMATION)
    assert '"calicoVersion":"v3.33.0"' in text(store, Kind.CLUSTER_INFORMATION)
    assert any("locked" in one for one in machine.complaints())
    lines = len(machine.complaints())
    started.attempt()
    assert len(machine.complaints()) == lines, "said once"
    lock(store, True)
    assert started.attempt()
    assert {"IPPool default-ipv4-ippool", "Tier default"} < set(everything(store))


def test_what_is_done_is_not_done_again(machine: Machine, store: Datastore) -> None:
    put(store, Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    started = machine.boot()
    put(store, Kind.NODE, "twin", {"bgp": {"ipv4Address": "192.0.2.11/24"}})
    lock(store, True)
    assert started.attempt(), "an address that was granted is not claimed a second time"


def test_a_lock_that_comes_between_look_and_write_holds(tmp_path: Path) -> None:
    inner = memory()

    def before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, KeyOp) and op.key == POOL for op in ops):
            faulty.before_commit = lambda ops: None
            lock(inner, False)

    faulty = FaultyStore(inner, before_commit=before)
    started = Machine(tmp_path, faulty).boot()
    assert not started.complete
    assert set(everything(inner)) == {"ClusterInformation default", "Node node-1"}


def test_the_thread_ends_when_the_store_was_unlocked(
    machine: Machine, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("felix_shim.startup.UNLOCK_SECONDS", 0.01)
    put(store, Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    started = machine.boot()
    thread = threading.Thread(target=started.run)
    thread.start()
    lock(store, True)
    thread.join(90)
    assert not thread.is_alive()
    assert started.complete
    stopped = Machine(machine.root, memory())
    put(stopped.store, Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": False})
    waiting = stopped.boot()
    thread = threading.Thread(target=waiting.run)
    thread.start()
    waiting.stop()
    thread.join(90)
    assert not thread.is_alive()


# -- broken objects, missing rights -------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "lost"),
    [
        (Kind.NODE, "node-1", set()),
        (Kind.NODE, "other", set()),
        (Kind.IP_POOL, "broken", {"IPPool default-ipv4-ippool", "IPPool default-ipv6-ippool"}),
        (Kind.TIER, "default", {"Tier kube-admin", "Tier kube-baseline"}),
        (Kind.FELIX_CONFIGURATION, "default", set()),
        (Kind.BGP_CONFIGURATION, "default", set()),
        (Kind.IPAM_CONFIGURATION, "default", set()),
    ],
)
def test_a_broken_object_is_named_and_the_rest_goes_on(
    machine: Machine, store: MemoryDatastore, kind: Kind, name: str, lost: set[str]
) -> None:
    whole = memory()
    Machine(machine.root, whole).boot()
    path = f"/calico/resources/v3/projectcalico.org/{kind.plural}/{name}"
    store.put_raw(path, b'{"kind":')
    machine.boot()
    named = machine.complaints() + [
        str(line["reason"]) for line in machine.log.of("stored_value_unreadable")
    ]
    assert any(path in one for one in named)
    assert set(everything(whole)) - set(everything(store)) <= lost | {f"{kind} {name}"}
    assert (machine.root / "node-1" / "nodename").exists()


def test_a_broken_cluster_information_may_be_a_lock(
    machine: Machine, store: MemoryDatastore
) -> None:
    store.put_raw("/calico/resources/v3/projectcalico.org/clusterinformations/default", b"[")
    machine.boot()
    assert set(everything(store)) == {"Node node-1"}
    assert any("clusterinformations/default" in one for one in machine.complaints())


def test_a_missing_right_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    @dataclass
    class Guarded(FaultyStore):
        def commit(self, ops: Sequence[Op]) -> Any:
            keys = [op.key for op in ops if isinstance(op, KeyOp)]
            if any(isinstance(key, ResourceKey) and key.kind is Kind.TIER for key in keys):
                raise Unauthorized("create tiers: 403")
            return super().commit(ops)

    inner = memory()
    machine = Machine(tmp_path, Guarded(inner))
    assert machine.boot().complete
    assert machine.complaints() == ["tiers: Unauthorized: create tiers: 403"]
    assert "IPAMConfiguration default" in everything(inner)


def test_a_file_that_cannot_be_written_is_tried_again(machine: Machine) -> None:
    (machine.root / "node-1").write_text("in the way")
    started = machine.boot()
    assert not started.complete
    (machine.root / "node-1").unlink()
    assert started.attempt()


# -- the address ------------------------------------------------------------------------------


def test_an_address_that_is_taken_ends_the_start(tmp_path: Path, store: Datastore) -> None:
    Machine(tmp_path, store, "node-1", "10.0.2.2/24").boot()
    before = everything(store)
    second = Machine(tmp_path, store, "node-2", "10.0.2.2/24")
    with pytest.raises(AddressTakenError, match=r"10\.0\.2\.2.*node node-1"):
        second.start().begin()
    assert everything(store) == before
    assert not (tmp_path / "node-2").exists(), "without a name the plugin refuses to add pods"
    Machine(tmp_path, store, "node-2", "10.0.2.2/24", "ip_check: false").boot()


def test_no_address_at_all_ends_the_start(tmp_path: Path, store: Datastore) -> None:
    with pytest.raises(InvalidInput, match="finds no IPv4 address"):
        Machine(tmp_path, store, options="ip: interface=wlan0").start().begin()
    assert everything(store) == {}


def test_the_apis_address_is_waited_for(tmp_path: Path, store: Datastore) -> None:
    kube = FakeKube()
    machine = Machine(tmp_path, store, kube=kube, options="ip: kubernetes-internal-ip")

    def kubelet_registers(timeout: float | None = None) -> bool:
        status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]}
        kube.put({"metadata": {"name": "node-1"}, "status": status}, KubeNode)
        return False

    machine.over.wait = kubelet_registers  # type: ignore[method-assign]  # instead of waiting
    assert machine.boot().uplinks() == ("eth0",)
