"""A healthy cluster gives no finding; each seeded fault gives its own, with a fix."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from libtortie.model.ipam import Persistence
from libtortie.model.keys import Kind
from tests.fakes.vm_cluster import ALLOW, NOW, Site, healthy, launcher, node_labels, pem, resource
from tortiectl.kubevirt.spec import LabelSelector
from tortiectl.preflight.examine import Scope, examine
from tortiectl.preflight.findings import Finding, Severity
from tortiectl.preflight.world import Budget

OF_VM1 = LabelSelector(match_labels={"app": "vm1"})
BLOCKS, BREAKS, RISK = Severity.BLOCKS, Severity.BREAKS, Severity.RISK
Json = dict[str, Any]
VMIMS = "virtualmachineinstancemigrations.kubevirt.io"


def spec(site: Site) -> Any:
    """Of the VM that faults are seeded into."""
    return site.vmis[0]["spec"]


def domain(site: Site) -> Any:
    return spec(site)["domain"]


def no_annotation(site: Site) -> None:
    del site.vmis[0]["metadata"]["annotations"][ALLOW]
    del site.vms[0]["spec"]["template"]["metadata"]["annotations"][ALLOW]


def misplaced_annotation(site: Site) -> None:
    no_annotation(site)
    site.vms[0]["metadata"]["annotations"] = {ALLOW: "true"}


def annotation_false(site: Site) -> None:
    site.vmis[0]["metadata"]["annotations"][ALLOW] = "false"


def bind(site: Site, how: str) -> None:
    domain(site)["devices"]["interfaces"][0] = {"name": "default", how: {}}


def plugin(site: Site) -> None:
    domain(site)["devices"]["interfaces"][0] = {"name": "default", "binding": {"name": "l2"}}


def second_interface(site: Site) -> None:
    domain(site)["devices"]["interfaces"].append({"name": "fast", "macvtap": {}})


def gpus(site: Site, count: int) -> None:
    domain(site)["devices"]["gpus"] = [{"name": f"g{n}", "deviceName": "x/y"} for n in range(count)]


def local_volume(site: Site, how: str) -> None:
    site.volumes.append({"metadata": {"name": "pv-vm1"}, "spec": {how: {"path": "/disk"}}})


def unshared(site: Site, mode: str) -> None:
    site.claims[0]["spec"]["accessModes"] = [mode]


def host_disk(site: Site) -> None:
    spec(site)["volumes"] = [{"name": "root", "hostDisk": {"path": "/disk"}}]


def named_model(site: Site) -> None:
    """The source's own host model, for which other nodes have no label of a named one."""
    domain(site)["cpu"]["model"] = "Cascadelake"
    site.nodes[1]["metadata"]["labels"]["cpu-model.node.kubevirt.io/Cascadelake"] = "true"


def unique_feature(site: Site) -> None:
    """The node of vm1 needs what no other node has."""
    labels = site.nodes[1]["metadata"]["labels"]
    labels["host-model-required-features.node.kubevirt.io/amx"] = "true"


def stale_selector(site: Site) -> None:
    site.pods[0]["spec"]["nodeSelector"] = {
        "cpu-model-migration.node.kubevirt.io/SapphireRapids": "true"
    }


def passthrough(site: Site) -> None:
    domain(site)["cpu"]["model"] = "host-passthrough"
    labels = node_labels(features=("vmx",))
    site.nodes[4]["metadata"]["labels"] = labels


def pinned(site: Site) -> None:
    spec(site)["nodeSelector"] = {"kubernetes.io/hostname": "n2"}


def nodes_full(site: Site) -> None:
    """Every node but the source is cordoned, tainted or without virt-handler."""
    for number, node in enumerate(site.nodes):
        if number == 1:
            continue
        if number % 3 == 0:
            node["spec"] = {"unschedulable": True}
        elif number % 3 == 1:
            node["spec"] = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
        else:
            node["metadata"]["labels"]["kubevirt.io/schedulable"] = "false"
    site.vmis, site.pods = site.vmis[:1], site.pods[:1]


def anti_affinity(site: Site) -> None:
    """A group of as many as there are nodes, one on each."""
    for number in range(10):
        instance, pod = site.vmis[number], site.pods[number]
        instance["metadata"]["labels"]["group"] = pod["metadata"]["labels"]["group"] = "db"
    term = {
        "labelSelector": {"matchLabels": {"group": "db"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    spec(site)["affinity"] = {"podAntiAffinity": required}


def one_has_left(site: Site) -> None:
    """The group's launcher on one node is finished."""
    anti_affinity(site)
    site.pods[3]["status"]["phase"] = "Succeeded"


def node_affinity(site: Site) -> None:
    home = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [home]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    spec(site)["affinity"] = {"nodeAffinity": required}


def migrating(site: Site, *phases: str) -> None:
    site.migrations = [
        {
            "metadata": {"name": f"move{number}", "namespace": "shop", "uid": f"job{number}"},
            "spec": {"vmiName": "vm1"},
            "status": {"phase": phase},
        }
        for number, phase in enumerate(phases)
    ]


def own_condition(site: Site) -> None:
    site.vmis[0]["status"]["conditions"] = [
        {"type": "LiveMigratable", "status": "False", "reason": "Odd", "message": "who knows"}
    ]


def host_endpoints(site: Site, *rules: Json) -> None:
    """Every node has one, and one policy for them all."""
    for node in site.nodes:
        meta, address = node["metadata"], node["status"]["addresses"][0]["address"]
        body = {"node": meta["name"], "interfaceName": "*", "expectedIPs": [address]}
        site.calico.append(
            resource(Kind.HOST_ENDPOINT, f"{meta['name']}-all", body, labels={"host": "yes"})
        )
    policy = {"selector": "has(host)", "ingress": list(rules), "egress": [{"action": "Allow"}]}
    site.calico.append(resource(Kind.GLOBAL_NETWORK_POLICY, "hosts", policy))


ONE_PORT = {"action": "Allow", "protocol": "TCP", "destination": {"ports": [49152]}}
BOTH_PORTS = {
    "action": "Allow", "protocol": "TCP", "source": {"selector": "has(host)"},
    "destination": {"ports": ["49152:49153"]},
}  # fmt: skip


def felix(site: Site, **fields: Any) -> None:
    site.of(Kind.FELIX_CONFIGURATION)["spec"].update(fields)


def pool(site: Site, **fields: Any) -> None:
    site.of(Kind.IP_POOL, "vms")["spec"].update(fields)


def operator(site: Site, **fields: Any) -> None:
    pools = [
        {"name": "pods", "cidr": "10.66.0.0/16", "natOutgoing": "Enabled"},
        {"name": "vms", "cidr": "10.65.0.0/16", "natOutgoing": "Enabled"},
    ]
    site.installation = {"ipPools": pools, "linuxPolicySetupTimeoutSeconds": 10, **fields}


def overlay_off(site: Site) -> None:
    pool(site, vxlanMode="CrossSubnet")
    felix(site, vxlanEnabled=False)


def owned_nat(site: Site) -> None:
    operator(site)
    pool(site, natOutgoing=True)


def no_mesh(site: Site) -> None:
    site.of(Kind.BGP_CONFIGURATION)["spec"]["nodeToNodeMeshEnabled"] = False
    site.of(Kind.BGP_PEER)["spec"]["node"] = "n1"


def bgp_filter(site: Site) -> None:
    rule = {"action": "Reject", "matchOperator": "In", "cidr": "10.0.0.0/8"}
    site.calico.append(resource(Kind.BGP_FILTER, "aggregates", {"exportV4": [rule]}))
    site.of(Kind.BGP_PEER)["spec"]["filters"] = ["aggregates"]


def forgotten_node(site: Site) -> None:
    site.calico = [
        one for one in site.calico if (one["kind"], one["metadata"]["name"]) != ("Node", "n8")
    ]


def certificate(hours: float) -> str:
    return pem(NOW - timedelta(hours=23), NOW + timedelta(hours=hours))


def expired_authority(site: Site) -> None:
    site.bundle["data"]["ca-bundle"] = certificate(-1)


def expiring_leaf(site: Site) -> None:
    site.secret["data"]["tls.crt"] = base64.b64encode(certificate(1).encode()).decode()


def blind(site: Site) -> None:
    site.roles[0]["rules"][0]["resources"] = ["virtualmachineinstances"]


def unknown_version(site: Site) -> None:
    site.vmis[0]["apiVersion"] = "kubevirt.io/v3"


def persistent_tpm(site: Site) -> None:
    domain(site)["devices"]["tpm"] = {"persistent": True}


def feature(site: Site, **fields: Any) -> None:
    domain(site)["features"] = fields


def no_tsc(site: Site) -> None:
    feature(site, hyperv={"reenlightenment": {}})
    for node in site.nodes:
        node["metadata"]["labels"].pop("cpu-timer.node.kubevirt.io/tsc-frequency")


def no_host_model(site: Site) -> None:
    labels = site.nodes[1]["metadata"]["labels"]
    labels.pop("host-model-cpu.node.kubevirt.io/Skylake-Server")


def no_strategy(site: Site) -> None:
    """The cluster's default is what keeps the drain waiting."""
    unshared(site, "ReadWriteOnce")
    del spec(site)["evictionStrategy"]
    site.config()["evictionStrategy"] = "LiveMigrate"


Fault = tuple[str, Callable[[Site], object], str, Severity, str]
"""Name, what is done, the finding's code and severity, and words of its text or fix."""

FAULTS: tuple[Fault, ...] = (
    ("no annotation", no_annotation, "InterfaceNotLiveMigratable", BLOCKS,
     "spec.template.metadata.annotations"),
    ("misplaced", misplaced_annotation, "InterfaceNotLiveMigratable", BLOCKS,
     "the annotation is on the VM itself: move it"),
    ("annotation false", annotation_false, "BridgeAnnotationValue", RISK, "presence only"),
    ("masquerade", lambda s: bind(s, "masquerade"), "Masquerade", BREAKS, "bridge binding"),
    ("macvtap", second_interface, "Macvtap", BREAKS, "interface fast is macvtap"),
    ("slirp", lambda s: bind(s, "slirp"), "InterfaceNotLiveMigratable", BLOCKS, "not slirp"),
    ("plugin", plugin, "InterfaceNotLiveMigratable", BLOCKS, "not l2"),
    ("RWO", lambda s: unshared(s, "ReadWriteOnce"), "DisksNotLiveMigratable", BLOCKS,
     "PVC vm1 is not shared"),
    ("ROX", lambda s: unshared(s, "ReadOnlyMany"), "DisksNotLiveMigratable", BLOCKS, "PVC vm1"),
    ("no claim", lambda s: s.claims.pop(0), "DisksNotLiveMigratable", BLOCKS,
     "Unable to determine if PVC vm1 is shared"),
    ("hostDisk", host_disk, "DisksNotLiveMigratable", BLOCKS, "non-shared HostDisk"),
    ("local volume", lambda s: local_volume(s, "local"), "SharedOnOneNode", RISK, "is local"),
    ("hostPath", lambda s: local_volume(s, "hostPath"), "SharedOnOneNode", RISK, "is hostPath"),
    ("TPM", persistent_tpm, "PersistentState", RISK, "persistent-state-for=vm1"),
    ("named model", named_model, "NoNodeWithItsCPU", BLOCKS,
     "lacks label cpu-model.node.kubevirt.io/Cascadelake"),
    ("feature", unique_feature, "NoNodeWithItsCPU", BLOCKS, "cpu-feature.node.kubevirt.io/amx"),
    ("stale selector", stale_selector, "NoNodeWithItsCPU", BLOCKS, "SapphireRapids"),
    ("passthrough", passthrough, "HostPassthrough", RISK, "1 lack features of its CPU (n5)"),
    ("no host model", no_host_model, "CPUModeLiveMigratable", BLOCKS,
     'the node "n2" does not allow migration with host-model'),
    ("pinned", pinned, "NoNodeLeft", BLOCKS, "lacks label kubernetes.io/hostname=n2"),
    ("nodes", nodes_full, "NoNodeLeft", BLOCKS, "cordoned"),
    ("anti-affinity", anti_affinity, "NoNodeLeft", BLOCKS, "anti-affinity"),
    ("affinity", node_affinity, "NoNodeLeft", BLOCKS, "node affinity of the VM"),
    ("host device", lambda s: domain(s)["devices"].update(hostDevices=[{"name": "d"}]),
     "HostDeviceNotLiveMigratable", BLOCKS, "generic PCI host device"),
    ("GPUs", lambda s: gpus(s, 2), "HostDeviceNotLiveMigratable", BLOCKS, "too many GPUs"),
    ("GPU", lambda s: gpus(s, 1), "HostDeviceNotLiveMigratable", BLOCKS, "VGPULiveMigration"),
    ("SEV", lambda s: domain(s).update(launchSecurity={"sev": {}}), "SEVNotLiveMigratable",
     BLOCKS, "VMI uses SEV"),
    ("TDX", lambda s: domain(s).update(launchSecurity={"tdx": {}}), "TDXNotLiveMigratable",
     BLOCKS, "VMI uses TDX"),
    ("hyperv", lambda s: feature(s, hypervPassthrough={}), "HypervPassthroughNotLiveMigratable",
     BLOCKS, "VMI uses hyperv passthrough"),
    ("TSC", no_tsc, "NoTSCFrequencyNotLiveMigratable", BLOCKS, "TSC Frequency"),
    ("strategy", lambda s: unshared(s, "ReadWriteOnce"), "EvictionStrategy", BLOCKS,
     "a drain of n2 never ends"),
    ("default strategy", no_strategy, "EvictionStrategy", BLOCKS, "the cluster's default"),
    ("condition", own_condition, "Odd", BLOCKS, "KubeVirt says: who knows"),
    ("migrating", lambda s: migrating(s, "Running"), "InFlightMigration", BLOCKS, "move0"),
    ("two migrations", lambda s: migrating(s, "Running", "Pending"), "InFlightMigration", BLOCKS,
     "two migrations at once"),
    ("two launchers", lambda s: s.pods.append(launcher(s.vmis[0], "zzzzz", "n5")),
     "TwoLaunchers", BLOCKS, "evacuations pass it over"),
    ("evacuation", lambda s: s.vmis[0]["status"].update(evacuationNodeName="n2"),
     "LeftoverEvacuation", RISK, "tortiectl vm evacuate-cancel shop/vm1"),
    ("unknown version", unknown_version, "Unreadable", RISK, "kubevirt.io/v3 is not known"),
    ("persistence", lambda s: setattr(s, "persistence", Persistence.DISABLED),
     "AddressPersistenceDisabled", BLOCKS, "--kubevirt-ip-persistence=Enabled"),
    ("NAT", lambda s: pool(s, natOutgoing=True), "NATOutgoing", BREAKS, "natOutgoing: false"),
    ("NAT, operator", owned_nat, "NATOutgoing", BREAKS,
     '/spec/calicoNetwork/ipPools/1/natOutgoing","value":"Disabled"'),
    ("IPIP", lambda s: pool(s, ipipMode="CrossSubnet"), "IPIP", BLOCKS, "CrossSubnet"),
    ("no export", lambda s: pool(s, disableBGPExport=True), "NoBGPExport", BREAKS, "learns"),
    ("overlay off", overlay_off, "OverlayOff", BREAKS, "leave vxlanEnabled out"),
    ("WireGuard", lambda s: felix(s, wireguardEnabled=True), "WireGuard", BREAKS, "wireguard"),
    ("priorities", lambda s: felix(s, ipv4ElevatedRoutePriority=2048), "RoutePriorities", BREAKS,
     "2048 must be at least 2 below"),
    ("convergence", lambda s: felix(s, liveMigrationRouteConvergenceTime="soon"),
     "ConvergenceTime", RISK, "is no duration"),
    ("policy timeout", lambda s: operator(s, linuxPolicySetupTimeoutSeconds=0),
     "PolicySetupTimeout", RISK, '"linuxPolicySetupTimeoutSeconds":10'),
    ("conflist", lambda s: s.plugin_timeouts.update({"/etc/cni/x": 0}), "PolicySetupTimeout",
     RISK, "policy_setup_timeout_seconds"),
    ("host policy", lambda s: host_endpoints(s, ONE_PORT), "MigrationPorts", BLOCKS,
     "TCP 49153 in is closed between n1 and other nodes"),
    ("no agent", forgotten_node, "NoAgent", BREAKS, "no agent has registered"),
    ("no BGP", lambda s: s.of(Kind.NODE, "n3")["spec"].pop("bgp"), "NoBGPAddress", BREAKS, "BGP"),
    ("no mesh", no_mesh, "NoBGPPeer", BREAKS, "no BGPPeer is for this node"),
    ("peer of nobody", lambda s: s.of(Kind.BGP_PEER)["spec"].update(node="gone"),
     "BGPPeerOfNoNode", RISK, "gone, which is no node"),
    ("filter", bgp_filter, "BGPFilterRejects", BREAKS, "BGPPeer rack"),
    ("sessions", lambda s: s.sessions_down.update(n4=2), "BGPSessionsDown", RISK, "2 BGP"),
    ("expired", expired_authority, "CertificateExpired", BLOCKS, "expired 1.0 h ago"),
    ("expires", expiring_leaf, "CertificateExpires", RISK, "1.0 h of 24.0 h left"),
    ("no certificate", lambda s: s.secret["data"].update({"tls.crt": "AA=="}),
     "CertificateUnreadable", RISK, "tls.crt"),
    ("clock", lambda s: s.renewals.update(n6=NOW + timedelta(minutes=3)), "ClockSkew", RISK,
     "ahead of the others'"),
    ("rights", blind, "RightMissing", BLOCKS, "virtualmachineinstancemigrations"),
    ("own rights", lambda s: setattr(s, "may_migrate", False), "MayNotMigrate", RISK, "you may"),
    ("CRD", lambda s: setattr(s, "missing_kinds", (VMIMS,)),
     "KindMissing", BLOCKS, "does not serve virtualmachineinstancemigrations"),
    ("budget", lambda s: s.budgets.append(Budget("shop", "one", OF_VM1, 1)), "Budget",
     RISK, "minAvailable 1"),
    ("TLS", lambda s: s.config()["migrations"].update(disableTLS=True), "MigrationTLSOff", RISK,
     "in the clear"),
)  # fmt: skip

WITH_IT = {
    "no annotation": {"EvictionStrategy"},
    "misplaced": {"EvictionStrategy"},
    "slirp": {"EvictionStrategy"},
    "plugin": {"EvictionStrategy"},
    "condition": {"EvictionStrategy"},
    "strategy": {"DisksNotLiveMigratable"},
    "default strategy": {"DisksNotLiveMigratable"},
    "no mesh": set[str](),
}
"""Findings that a fault brings with it, beside `EvictionStrategy` of what KubeVirt refuses."""


def found_in(site: Site, scope: Scope | None = None) -> tuple[Finding, ...]:
    return examine(site.cluster(), scope or Scope()).findings


def test_two_hundred_healthy_vms_give_no_alarm() -> None:
    verdict = examine(healthy().cluster(), Scope())
    assert verdict.findings == ()
    assert len(verdict.judged) == 200
    assert (verdict.holes, verdict.gaps) == ((), ())


@pytest.mark.parametrize("fault", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_seeded_fault_is_found_and_nothing_else(fault: Fault) -> None:
    name, seed, code, severity, words = fault
    site = healthy()
    seed(site)
    found = found_in(site)
    own = [one for one in found if one.code == code]
    assert own, [one.code for one in found]
    assert {one.severity for one in own} == {severity}
    assert any(words in f"{one.text} {one.fix}" for one in own), own
    assert all(one.fix for one in own) or code == "Unreadable"
    refused = code.endswith("NotLiveMigratable") or code == "CPUModeLiveMigratable"
    expected = {code} | WITH_IT.get(name, set()) | ({"EvictionStrategy"} if refused else set())
    assert {one.code for one in found} <= expected


OVERLAP = ("nodes", "overlay off", "NAT, operator", "no certificate")


def turned(bodies: list[Json]) -> list[Json]:
    """The next VM of the same node comes first."""
    return bodies[10:] + bodies[:10]


def test_all_faults_at_once_are_all_found() -> None:
    """Each in a VM of its own, but for those that would undo another."""
    site = healthy(vms=10 * len(FAULTS))
    seeded = [fault for fault in FAULTS if fault[0] not in OVERLAP]
    assert len(seeded) >= 40
    for _, seed, *_ in seeded:
        seed(site)
        site.vmis, site.vms, site.pods, site.claims = map(
            turned, (site.vmis, site.vms, site.pods, site.claims)
        )
    missed = {code for _, _, code, *_ in seeded} - {one.code for one in found_in(site)}
    assert missed == set()


@pytest.mark.parametrize(
    "harmless",
    [
        pytest.param(lambda s: s.config().update(evictionStrategy="LiveMigrate"), id="default"),
        pytest.param(lambda s: pool(s, vxlanMode="Always", disableBGPExport=True), id="VXLAN"),
        pytest.param(lambda s: host_endpoints(s, BOTH_PORTS), id="host policy"),
        pytest.param(lambda s: s.budgets.append(Budget("shop", "x", OF_VM1, 2)), id="2"),
        pytest.param(lambda s: migrating(s, "Succeeded", "Failed"), id="final migrations"),
        pytest.param(one_has_left, id="anti-affinity against one that has left"),
        pytest.param(lambda s: spec(s).update(evictionStrategy="None"), id="strategy None"),
        pytest.param(lambda s: spec(s)["networks"].clear(), id="no pod network"),
        pytest.param(operator, id="operator"),
        pytest.param(lambda s: s.vmis[0]["status"].pop("conditions"), id="no condition"),
    ],
)
def test_what_is_right_gives_no_alarm(harmless: Callable[[Site], object]) -> None:
    site = healthy()
    harmless(site)
    assert found_in(site) == ()


def test_a_node_that_is_drained_may_have_marks() -> None:
    site = healthy()
    site.vmis[0]["status"]["evacuationNodeName"] = "n2"
    site.nodes[1]["spec"] = {"unschedulable": True}
    assert found_in(site) == ()


def test_two_launchers_of_a_migration_are_as_they_should_be() -> None:
    site = healthy()
    site.pods.append(launcher(site.vmis[0], "zzzzz", "n5"))
    migrating(site, "Running")
    assert {one.code for one in found_in(site)} == {"InFlightMigration"}


def test_failsafe_ports_open_what_policy_closes() -> None:
    site = healthy()
    host_endpoints(site)
    ports = [{"protocol": "TCP", "port": port} for port in (49152, 49153)]
    felix(site, failsafeInboundHostPorts=ports)
    assert found_in(site) == ()
    felix(site, failsafeInboundHostPorts=[{**ports[0], "net": "192.0.2.0/24"}, ports[1]])
    assert {one.text.partition(" is ")[0] for one in found_in(site)} == {"TCP 49152 in"}


def test_long_names_have_no_label_to_be_found_by() -> None:
    site = healthy()
    persistent_tpm(site)
    for body in (site.vmis[0], site.vms[0]):
        body["metadata"]["name"] = "x" * 70
    assert found_in(site) == ()


def test_the_state_of_a_tpm_is_found_by_its_label() -> None:
    site = healthy()
    persistent_tpm(site)
    meta = {"name": "persistent-state-for-vm1-x7k", "namespace": "shop"}
    labels = {"labels": {"persistent-state-for": "vm1"}}
    site.claims.append({"metadata": {**meta, **labels}, "spec": {"accessModes": ["ReadWriteOnce"]}})
    assert found_in(site) == ()


def test_one_vm_and_one_node() -> None:
    site = healthy()
    no_annotation(site)
    unshared(site, "ReadWriteOnce")
    assert found_in(site, Scope(vm="shop/vm2")) == ()
    assert found_in(site, Scope(node="n3")) == ()
    codes = {one.code for one in found_in(site, Scope(vm="shop/vm1"))}
    assert codes == {"InterfaceNotLiveMigratable", "DisksNotLiveMigratable", "EvictionStrategy"}
    assert {one.code for one in found_in(site, Scope(node="n2"))} == codes
