"""The whole product in the lab: `lab up` once, then what a user would try on it, one by one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab import control, names, seed
from lab.agents import end_agent, kill_agent
from lab.children import Child
from lab.cluster import start_agent, until
from lab.cni_runtime import load_network
from lab.measure import (
    Wish,
    await_echo,
    guest_ip,
    guest_ips,
    measure,
    start_stream,
    start_streams,
)
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from lab.processes import lab_namespaces
from lab.promises import checks_of
from lab.report import Row, row_of
from lab.state import StateDir
from lab.stream import StreamReport
from libtortie.kube.objects import Namespace
from libtortie.model.names import host_ifname
from tests.fakes.lab_settings import convergence, convergence_of, persistence
from tests.fakes.running_lab import Lab, everywhere, lab_up, launchers, metrics, run_cli, traces

pytestmark = pytest.mark.root

CONVERGENCE_S = 2.0
FOR_EVER = 3600
"""Seconds; a convergence time that no test outlasts."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_up(tmp_path_factory.mktemp("lab") / "state", CONVERGENCE_S) as found:
        yield found


@pytest.fixture(scope="module")
def client(lab: Lab) -> str:
    """Namespace of an ordinary pod on node3."""
    lab.cli("pod", "create", "client", "--node", "node3")
    return names.pod_netns("client", control.get(LabPod, "client").metadata.uid)


def test_ordinary_pods_reach_each_other_across_nodes(lab: Lab, client: str) -> None:
    lab.cli("pod", "create", "web", "--node", "node1")
    address = control.get(LabPod, "web").status.pod_ip
    await_echo(address, client)
    await_echo(address, names.netns(names.EXT))
    assert traces(lab, address)
    lab.cli("pod", "delete", "web")
    until(lambda: not traces(lab, address), f"routes to {address} are left")


TRIES = 10
"""A busy machine delays some migrations; a promise the product does not keep is broken in all."""
LATE = (
    "TCP went on",
    "network downtime",
    "probes lost only",
    "route raised by",
    "ToR follows",
    "back to",
    "policy before",
)
"""How the names of those promises begin that a busy machine alone may break."""


Streams = Mapping[int, Child]
"""A connection to a VM by each family."""


@contextmanager
def connected(lab: Lab, vm: str) -> Iterator[Streams]:
    """A connection from outside to each of a VM's addresses."""
    with ExitStack() as stack:
        streams = start_streams(lab.state, guest_ips(control.get(LabVMI, vm)))
        for stream in streams.values():
            stack.enter_context(stream)
        assert list(streams) == [4, 6]
        yield streams


def held(streams: Streams) -> list[StreamReport]:
    """What the connections have to say: each has survived."""
    reports = [StreamReport(**stream.ask()) for stream in streams.values()]
    assert all(report.survived for report in reports), reports
    return reports


def moved(lab: Lab, client: str, streams: Streams, wish: Wish) -> Row:
    """What was seen of a migration."""
    observed = measure(
        lab.state,
        lab.topology,
        wish,
        client_netns=client,
        streams=streams,
        convergence_s=CONVERGENCE_S,
        tell=print,
    )
    return row_of(observed)


def broken_by(row: Row) -> dict[str, str]:
    """The promises that a migration broke in either family, and how."""
    assert row.ipv6 is not None
    checks = checks_of(row, CONVERGENCE_S)
    return {one.name.partition(": ")[2]: one.detail for one in checks if not one.ok}


def in_time(row: Row) -> bool:
    """Whether a migration kept every promise; only load may have delayed it."""
    broken = broken_by(row)
    assert all(name.startswith(LATE) for name in broken), f"{broken}\n{row}"
    print(f"broken: {broken}")
    return not broken and row.guest_blackout_ms == pytest.approx(50, abs=5)


def test_vm_keeps_address_and_connection_through_two_migrations(
    lab: Lab, client: str, vm: str
) -> None:
    """Row 7a: the same address, before and after, and in the VMI."""
    with connected(lab, vm) as streams:

        def there(garp: bool) -> bool:
            here = control.get(LabVMI, vm).status.node_name
            target = "node2" if here == "node1" else "node1"
            return in_time(moved(lab, client, streams, Wish(vm, target, 50.0, garp=garp)))

        for garp in (False, True):
            assert any(there(garp) for _ in range(TRIES))


def test_a_vm_that_moves_on_before_the_route_is_back_to_normal_is_as_quick(
    lab: Lab, client: str, vm: str
) -> None:
    addresses = guest_ips(control.get(LabVMI, vm)).values()

    def settled(wanted: list[int]) -> bool:
        return all(metrics("node2", address) == wanted for address in addresses)

    with connected(lab, vm) as streams, convergence(lab, "node2", FOR_EVER):

        def there_and_back() -> bool:
            job = control.create_migration(vm, "node2")
            assert control.await_migration(job.metadata.name, print).status.phase == "Succeeded"
            until(lambda: settled([512]), "the routes are not raised")
            row = moved(lab, client, streams, Wish(vm, "node1", 50.0))
            until(lambda: settled([]), "the source's routes are left")
            return in_time(row)

        assert any(there_and_back() for _ in range(TRIES))
    until(lambda: convergence_of(lab, "node2") == CONVERGENCE_S, "node2 keeps its own time")


def test_two_vms_change_places_at_the_same_time(lab: Lab, client: str, vm: str) -> None:
    lab.cli("vm", "create", "partner", "--node", "node2")
    try:
        assert any(quickly_changed_places(lab, (vm, "partner")) for _ in range(TRIES))
    finally:
        lab.cli("vm", "delete", "partner")


def quickly_changed_places(lab: Lab, vms: tuple[str, str]) -> bool:
    """Whether no connection was silent for half a second."""
    before = [control.get(LabVMI, name) for name in vms]
    addresses = [guest_ip(vmi) for vmi in before]
    targets = [vmi.status.node_name for vmi in reversed(before)]
    streams = [start_stream(lab.state, address) for address in addresses]
    jobs = [control.create_migration(*each) for each in zip(vms, targets, strict=True)]
    for job in jobs:
        assert control.await_migration(job.metadata.name, print).status.phase == "Succeeded"
    outcomes = [StreamReport(**stream.ask()) for stream in streams]
    for stream in streams:
        stream.close()
    assert all(outcome.survived for outcome in outcomes), outcomes
    for address, target in zip(addresses, targets, strict=True):
        wanted = {target: [names.METRIC_NORMAL]}
        until(partial(routed, address, wanted), f"{address} has no route on {target} alone")
    print(outcomes)
    return all(outcome.longest_gap_ms < 500 for outcome in outcomes)


def routed(address: str, wanted: dict[str, list[int]]) -> bool:
    return everywhere(address) == wanted


@pytest.mark.parametrize("kept", [True, False])
def test_an_agent_killed_after_the_sign_comes_back_into_the_same_state(
    lab: Lab, client: str, vm: str, kept: bool
) -> None:
    """Its keeper starts the next; or dies with it, and a supervisor starts both."""
    addresses = guest_ips(control.get(LabVMI, vm)).values()

    def settled(node: str, wanted: list[int]) -> bool:
        return all(metrics(node, address) == wanted for address in addresses)

    with connected(lab, vm) as streams:
        with convergence(lab, "node2", FOR_EVER):
            job = control.create_migration(vm, "node2")
            until(lambda: settled("node2", [512]), "the routes were not raised")
            (kill_agent if kept else end_agent)(lab.state, "node2")
        if not kept:
            start_agent(lab.state, "node2")
        assert control.await_migration(job.metadata.name, print).status.phase == "Succeeded"
        until(lambda: settled("node2", [1024]), "the routes did not revert")
        until(lambda: settled("node1", []), "the source's routes are left")
        outcomes = held(streams)
    assert all(outcome.longest_gap_ms < 1000 for outcome in outcomes), outcomes


def test_an_agent_that_sleeps_through_the_sign_moves_the_route_when_it_wakes(
    lab: Lab, client: str, vm: str
) -> None:
    address = guest_ip(control.get(LabVMI, vm))
    job = control.create_migration(vm, "node2", {names.ANNOTATION_HOLD: "TargetReady"})
    until(lambda: _job_phase(job) == "TargetReady", "the target is not ready")
    end_agent(lab.state, "node2")
    let_go = {"metadata": {"annotations": {names.ANNOTATION_HOLD: None}}}
    control.with_client(
        lambda api: api.patch(LabMigration, job.metadata.name, control.NAMESPACE, let_go)
    )
    assert control.await_migration(job.metadata.name, print).status.phase == "Succeeded"
    assert 512 not in metrics("node2", address)
    start_agent(lab.state, "node2")
    await_echo(address, client)
    until(lambda: metrics("node2", address) == [1024], "the route did not settle")


def _job_phase(job: LabMigration) -> str:
    return control.get(LabMigration, job.metadata.name).status.phase


def test_a_guest_that_makes_no_sign_arrives_all_the_same_and_the_report_says_late(
    lab: Lab, client: str, vm: str
) -> None:
    """The report must be able to fail: without a sign the network learns of the move late."""
    with connected(lab, vm) as streams:
        row = moved(lab, client, streams, Wish(vm, "node2", 50.0, silent=True))
    broken = set(broken_by(row))
    surely = {"network downtime at most 50 ms", "probes lost only around the guest's pause"}
    assert surely <= broken, row
    assert all(name.startswith(LATE) for name in broken), row
    assert row.ipv6 is not None
    for one in (row, row.ipv6):
        assert one.tcp_survived
        assert one.metric_elevated == 512


def test_a_launcher_pod_is_plumbed_as_kubevirts_bridge_binding_does(lab: Lab, vm: str) -> None:
    vmi = control.get(LabVMI, vm)
    (launcher,) = launchers(vmi)
    netns = names.pod_netns(launcher.metadata.name, launcher.metadata.uid)
    links = {link["ifname"]: link for link in _links(netns)}
    assert {"eth0", "eth0-nic", "k6t-eth0", "tap0"} <= set(links)
    assert links["eth0-nic"]["master"] == links["tap0"]["master"] == "k6t-eth0"
    assert links["eth0"]["address"] == vmi.status.interfaces[0].mac
    assert "UP" not in links["eth0"]["flags"]
    addresses = [info["local"] for info in links["eth0"]["addr_info"]]
    assert guest_ip(vmi) in addresses
    assert links["eth0-nic"]["addr_info"] == [] or guest_ip(vmi) not in str(links["eth0-nic"])
    guest = {link["ifname"]: link for link in _links(names.guest_netns(vm, vmi.metadata.uid))}
    assert guest["eth0"]["address"] == vmi.status.interfaces[0].mac


def _links(netns: str) -> list[dict[str, Any]]:
    command = ["ip", "-n", netns, "-j", "addr"]
    out = subprocess.run(command, capture_output=True, check=True).stdout
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_a_pod_without_a_node_is_scheduled(lab: Lab) -> None:
    body = seed.pod_body("anywhere", "default", "")
    del body["spec"]["nodeName"]
    control.with_client(lambda api: api.create(LabPod, body))
    assert control.await_pod("anywhere", 60).spec.node_name in ("node1", "node2", "node3")
    lab.cli("pod", "delete", "anywhere")


def test_migrate_command_names_the_new_node(lab: Lab, vm: str) -> None:
    assert f"{vm} runs on node3" in lab.cli("migrate", vm, "--to", "node3", "--blackout", "10")
    assert control.get(LabVMI, vm).status.node_name == "node3"


def test_without_address_persistence_the_target_is_refused_and_the_vm_stays(
    lab: Lab, client: str, vm: str
) -> None:
    refusal = "not allowed when KubeVirtVMAddressPersistence is disabled"
    with persistence(lab, "Disabled"):
        job = control.create_migration(vm, "node2")
        until(lambda: refusal in _target_words(job), "the target was not refused")
        assert control.get(LabMigration, job.metadata.name).status.phase == "Scheduling"
        control.delete(LabMigration, job.metadata.name)
        until(lambda: not _targets(job), "the target pod is left")
    vmi = control.get(LabVMI, vm)
    assert vmi.status.node_name == "node1"
    await_echo(guest_ip(vmi), client)
    lab.cli("migrate", vm, "--to", "node2")
    await_echo(guest_ip(vmi), client)


def _targets(job: LabMigration) -> list[LabPod]:
    return [
        pod
        for pod in control.listing(LabPod)
        if pod.metadata.labels.get("kubevirt.io/migrationJobUID") == job.metadata.uid
    ]


def _target_words(job: LabMigration) -> str:
    return next((pod.status.message for pod in _targets(job)), "")


def test_vm_without_the_annotation_is_not_migrated(lab: Lab, vm: str) -> None:
    annotation = "kubevirt.io/allow-pod-bridge-network-live-migration"
    patch = {"metadata": {"annotations": {annotation: None}}}
    control.with_client(lambda client: client.patch(LabVMI, vm, control.NAMESPACE, patch))
    words = lab.cli("migrate", vm, "--to", "node2", ok=False)
    assert "does not use masquerade or a migratable plugin" in words
    assert control.get(LabVMI, vm).status.node_name == "node1"


def test_vm_keeps_its_address_when_its_launcher_dies(lab: Lab, client: str, vm: str) -> None:
    before = control.get(LabVMI, vm)
    (launcher,) = launchers(before)
    control.delete(LabPod, launcher.metadata.name)
    until(lambda: _reborn(vm, before), "the VM did not come back")
    after = control.get(LabVMI, vm)
    assert guest_ip(after) == guest_ip(before)
    assert after.status.interfaces[0].mac == before.status.interfaces[0].mac
    await_echo(guest_ip(after), client)


def _reborn(vm: str, before: LabVMI) -> bool:
    vmi = control.find(LabVMI, vm)
    return (
        vmi is not None
        and vmi.metadata.uid != before.metadata.uid
        and vmi.status.phase == "Running"
    )


Owner = Callable[[LabVMI], dict[str, Any]]


def _reference(vmi: LabVMI, **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "name": vmi.metadata.name,
        "uid": vmi.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
        **changes,
    }


FORGERIES: dict[str, tuple[str, Owner]] = {
    "no-such-vmi": ("default", lambda vmi: _reference(vmi, name="nobody")),
    "other-uid": (
        "default",
        lambda vmi: _reference(vmi, uid="00000000-0000-0000-0000-000000000000"),
    ),
    "other-namespace": ("elsewhere", _reference),
    "not-controller": ("default", lambda vmi: _reference(vmi, controller=False)),
    "right-uid-no-migration": ("default", _reference),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_launcher_is_refused_in_one_line(
    lab: Lab, client: str, vm: str, forgery: str
) -> None:
    namespace, reference = FORGERIES[forgery]
    vmi = control.get(LabVMI, vm)
    _ensure_namespace(namespace)
    name = f"virt-launcher-{vm}-forged"
    body = _forged(name, namespace, vm, reference(vmi))
    control.with_client(lambda api: api.create(LabPod, body))
    try:
        until(lambda: bool(_words(name, namespace)), "the forged pod was not refused")
        words = _words(name, namespace)
        assert words.startswith('Failed to create pod sandbox: plugin type="tortie" failed (add): ')
        assert "\n" not in words
        assert "Traceback" not in words
        print(words)
        assert _pod_phase(name, namespace) == "Pending"
        assert name in lab.cli("status")
        await_echo(guest_ip(vmi), client)
    finally:
        control.with_client(lambda api: api.delete(LabPod, name, namespace))
    until(lambda: not _cali_links("node3", besides="client"), "an interface is left on node3")
    until(lambda: not any(name in ns for ns in lab_namespaces()), "its namespace is left")
    assert not traces(lab, "forged")


def _ensure_namespace(namespace: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}

    def work(api: Any) -> None:
        if namespace not in {one.metadata.name for one in api.list(Namespace)[0]}:
            api.create(Namespace, body)

    control.with_client(work)


def _forged(name: str, namespace: str, vm: str, owner: dict[str, Any]) -> dict[str, Any]:
    labels = {"kubevirt.io": "virt-launcher", "vmi.kubevirt.io/id": vm}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "node3", "containers": [{"name": "compute", "image": "x"}]},
    }


def _words(name: str, namespace: str) -> str:
    pod = control.with_client(lambda api: api.get(LabPod, name, namespace))
    return pod.status.message if pod.status.reason == "FailedCreatePodSandBox" else ""


def _pod_phase(name: str, namespace: str) -> str:
    return control.with_client(lambda api: api.get(LabPod, name, namespace)).status.phase


def _cali_links(node: str, besides: str) -> list[str]:
    links = [link["ifname"] for link in _links(names.netns(node))]
    kept = host_ifname("default", besides)
    return [link for link in links if link.startswith("cali") and link != kept]


def test_a_second_lab_is_refused_and_the_first_lives_on(lab: Lab, tmp_path: Path) -> None:
    words = run_cli(StateDir(tmp_path / "second"), "up", ok=False)
    assert "a lab is up already" in words
    assert f"`lab --state-dir {lab.state.root} down`" in words
    assert "established" in lab.cli("status")


def test_exec_shows_a_node_as_a_process_of_it_sees_it(lab: Lab) -> None:
    assert lab.cli("exec", "node2", "--", "hostname").strip() == "node2"
    assert "172.31.0.12" in lab.cli("exec", "node2", "--", "ip", "-br", "addr")
    assert "10-tortie.conflist" in lab.cli("exec", "node2", "--", "ls", "/etc/cni/net.d")
    assert "no node 'node9'" in lab.cli("exec", "node9", "--", "true", ok=False)


def test_the_nodes_conflist_is_the_shipped_one_with_the_labs_keys(lab: Lab) -> None:
    network = load_network(lab.state.node("node1", "net.d"))
    assert network.name == "k8s-pod-network"
    assert network.plugins[0]["sqlite_shared"] is True


def test_an_agent_that_is_killed_and_started_again_keeps_the_vm_reachable(
    lab: Lab, client: str, vm: str
) -> None:
    end_agent(lab.state, "node1")
    address = guest_ip(control.get(LabVMI, vm))
    await_echo(address, client)
    start_agent(lab.state, "node1")
    lab.cli("migrate", vm, "--to", "node2", "--blackout", "10")
    await_echo(address, client)


def test_deleting_a_vm_frees_its_address(lab: Lab) -> None:
    """Row 7d: nothing of it is left, in IPAM neither."""
    lab.cli("vm", "create", "brief", "--node", "node1")
    lab.cli("vm", "delete", "brief")
    assert control.find(LabVM, "brief") is None
    until(lambda: not traces(lab, "brief"), "something of the VM is left")
