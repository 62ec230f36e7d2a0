"""Every kind through every verb, on every datastore: stored with defaults, or refused untouched."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from libtortie.datastore.crd_names import Group
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey, Kind
from tests.fakes.ctl_stores import STORES, CtlOn, on_kubernetes, on_sqlite, thing

RULE = {"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}
WEP: dict[str, Any] = {
    "orchestrator": "k8s",
    "node": "n1",
    "pod": "web",
    "endpoint": "eth0",
    "interfaceName": "cali1",
    "ipNetworks": ["10.65.0.5/32"],
}
SAMPLES: dict[Kind, tuple[str, dict[str, Any]]] = {
    Kind.IP_POOL: ("pool-a", {"cidr": "10.65.0.0/24", "blockSize": 30}),
    Kind.IP_RESERVATION: ("rsv", {"reservedCIDRs": ["10.65.0.0/30"]}),
    Kind.IPAM_CONFIGURATION: ("default", {"strictAffinity": True}),
    Kind.FELIX_CONFIGURATION: ("default", {"floatingIPs": "Enabled"}),
    Kind.BGP_CONFIGURATION: ("default", {"asNumber": 64512}),
    Kind.BGP_FILTER: ("pools-only", {"exportV4": [{"action": "Reject"}]}),
    Kind.BGP_PEER: ("rack1", {"peerIP": "192.0.2.1", "asNumber": 64513}),
    Kind.NODE: ("n1", {"bgp": {"ipv4Address": "192.0.2.11/24"}}),
    Kind.PROFILE: ("kns.shop", {"ingress": [{"action": "Allow"}]}),
    Kind.TIER: ("first", {"order": 10}),
    Kind.KUBE_CONTROLLERS_CONFIGURATION: ("default", {"controllers": {"namespace": {}}}),
    Kind.HOST_ENDPOINT: ("n1-eth0", {"node": "n1", "interfaceName": "eth0"}),
    Kind.GLOBAL_NETWORK_POLICY: ("deny", {"order": 10.5, "ingress": [RULE]}),
    Kind.GLOBAL_NETWORK_SET: ("bogons", {"nets": ["203.0.113.0/24"]}),
    Kind.WORKLOAD_ENDPOINT: ("n1-k8s-web-eth0", WEP),
    Kind.NETWORK_POLICY: ("web", {"ingress": [RULE]}),
    Kind.NETWORK_SET: ("partners", {"nets": ["198.51.100.0/24"]}),
    Kind.STAGED_NETWORK_POLICY: ("next", {"ingress": [RULE]}),
    Kind.STAGED_GLOBAL_NETWORK_POLICY: ("next", {"stagedAction": "Delete"}),
    Kind.STAGED_KUBERNETES_NETWORK_POLICY: ("next", {"podSelector": {}}),
    Kind.CALICO_NODE_STATUS: ("status-n1", {"node": "n1", "classes": ["BGP"]}),
}
WRITTEN = [kind for kind in Kind if kind is not Kind.CLUSTER_INFORMATION]
VIEWS = {Kind.NODE, Kind.PROFILE, Kind.WORKLOAD_ENDPOINT}
"""Of which Kubernetes has objects of its own."""


def sample(kind: Kind, **more: Any) -> dict[str, Any]:
    name, spec = SAMPLES[kind]
    return thing(kind, name, "shop" if kind.namespaced else "", **{**spec, **more})


@pytest.fixture(params=list(STORES))
def on(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CtlOn]:
    with STORES[request.param](tmp_path) as made:
        yield made


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[CtlOn]:
    with on_sqlite(tmp_path) as made:
        yield made


def test_every_verb_works_or_is_refused_before_anything_is_changed(on: CtlOn) -> None:
    kubernetes = on.environ["DATASTORE_TYPE"] == "kubernetes"
    for kind in WRITTEN:
        name, _ = SAMPLES[kind]
        space = ("-n", "shop") if kind.namespaced else ()
        if kubernetes and kind in VIEWS:
            for verb in ("create", "apply") if kind is not Kind.NODE else ("create",):
                said = on.write(verb, sample(kind), status=1).stderr
                assert f"operation {verb} is not supported on {kind}" in said
            said = on.run("delete", kind, name, *space, status=1).stderr
            assert f"operation delete is not supported on {kind}" in said
            continue
        said = on.write("create", sample(kind)).output
        assert said == f"Successfully created 1 '{kind}' resource(s)\n"
        assert "already exists" in on.write("create", sample(kind), status=1).stderr
        assert on.write("create", sample(kind), args=["--skip-exists"]).output.endswith(
            "created 0 resource(s)\n"
        )
        on.write("apply", sample(kind))
        on.write("replace", sample(kind))
        on.run("label", kind, name, "rack=r1", *space)
        assert on.stored(kind, name, "shop" if kind.namespaced else "").metadata.labels["rack"]
        done = on.run("patch", kind, name, "-p", '{"metadata":{"labels":{"rack":"r2"}}}', *space)
        assert done.output == f"Successfully patched 1 '{kind}' resource\n"
        assert on.shown(kind, name, *space)["metadata"]["labels"]["rack"] == "r2"
        on.run("label", kind, name, "rack", "--remove", *space)
        if not (kind is Kind.TIER or kind is Kind.IPAM_CONFIGURATION):
            on.run("delete", kind, name, *space)
            assert on.run("delete", kind, name, *space, status=1).stderr.count("does not exist")
            on.run("delete", kind, name, *space, "--skip-not-exists")


def test_what_is_shown_can_be_written_back(on: CtlOn) -> None:
    on.write("create", sample(Kind.IP_POOL), sample(Kind.TIER))
    for kind in (Kind.IP_POOL, Kind.TIER):
        name = SAMPLES[kind][0]
        before = on.shown(kind, name)
        on.run("replace", "-f", "-", text=on.run("get", kind, name, "-o", "yaml").stdout)
        after = on.shown(kind, name)
        for body in (before, after):
            body["metadata"].pop("resourceVersion")
            body["metadata"].pop("generation", None)
        assert after == before


def test_a_revision_that_is_stale_is_refused(on: CtlOn) -> None:
    on.write("create", sample(Kind.IP_POOL))
    old = on.run("get", "ippool", "pool-a", "-o", "json").stdout
    on.run("patch", "ippool", "pool-a", "-p", '{"spec":{"natOutgoing":true}}')
    for verb in ("replace", "apply", "delete"):
        said = on.run(verb, "-f", "-", text=old, status=1).stderr
        assert "update conflict: IPPool(pool-a)" in said
    stale = json.loads(old)["metadata"]["resourceVersion"]
    patch = json.dumps({"metadata": {"resourceVersion": stale}, "spec": {"disabled": True}})
    assert "update conflict" in on.run("patch", "ippool", "pool-a", "-p", patch, status=1).stderr
    assert on.shown(Kind.IP_POOL, "pool-a")["spec"].get("disabled") is None
    said = on.run("create", "-f", "-", text=old.replace("pool-a", "pool-b"), status=1).stderr
    assert "metadata.resourceVersion: a new resource has none" in said or "overlaps" in said


def test_one_that_cannot_be_written_leaves_all_unwritten(on: CtlOn) -> None:
    on.write("create", sample(Kind.TIER))
    done = on.write("create", sample(Kind.BGP_FILTER), sample(Kind.TIER), status=1)
    assert "failed to create 'Tier' resource: [resource already exists: Tier(first)" in done.stderr
    assert on.names(Kind.BGP_FILTER) == []
    done = on.write("replace", sample(Kind.BGP_FILTER), sample(Kind.TIER), status=1)
    assert "resource does not exist: BGPFilter(pools-only)" in done.stderr


def test_references_are_looked_for_before_anything_is_written(on: CtlOn) -> None:
    peer = sample(Kind.BGP_PEER, filters=["none", "pools-only"])
    policy = sample(Kind.GLOBAL_NETWORK_POLICY, tier="nowhere")
    said = on.write("apply", peer, policy, sample(Kind.BGP_FILTER), status=1).stderr
    assert "GlobalNetworkPolicy(deny): spec.tier: there is no tier 'nowhere'" in said
    assert "BGPPeer(rack1): spec.filters.0: there is no BGPFilter 'none'" in said
    assert "pools-only'" not in said
    assert on.names(Kind.BGP_FILTER) == []
    said = on.write("apply", sample(Kind.IP_POOL), thing(Kind.IP_POOL, "b", cidr="10.65.0.0/16"),
                    status=1).stderr  # fmt: skip
    assert "IPPool(b): spec.cidr: 10.65.0.0/16 overlaps 10.65.0.0/24 of IPPool(pool-a)" in said
    assert on.names(Kind.IP_POOL) == []


def test_a_pools_cidr_and_block_size_stay(on: CtlOn) -> None:
    on.write("create", sample(Kind.IP_POOL))
    said = on.write("apply", sample(Kind.IP_POOL, blockSize=29), status=1).stderr
    assert "IPPool(pool-a): spec.blockSize is 30 and cannot be changed (to 29)" in said
    said = on.run("patch", "ippool", "pool-a", "-p", "spec: {cidr: 10.66.0.0/24}", status=1).stderr
    assert "spec.cidr is 10.65.0.0/24 and cannot be changed" in said


def test_tiers_that_are_needed_stay(on: CtlOn) -> None:
    on.write("create", sample(Kind.TIER), sample(Kind.NETWORK_POLICY, tier="first"))
    said = on.run("delete", "tier", "first", status=1).stderr
    assert "Tier(first) is named by NetworkPolicy(shop/web): delete them first" in said
    on.run("delete", "np", "web", "-n", "shop")
    on.run("delete", "tier", "first")
    on.write("apply", thing(Kind.TIER, "default"))
    assert "it is always there" in on.run("delete", "tier", "default", status=1).stderr


def test_cluster_information_is_the_nodes(on: CtlOn) -> None:
    body = thing(Kind.CLUSTER_INFORMATION, "default", datastoreReady=False)
    for verb in ("create", "apply", "replace", "delete"):
        said = on.write(verb, body, status=1).stderr
        assert f"operation {verb} is not supported on ClusterInformation" in said
    assert on.names(Kind.CLUSTER_INFORMATION) == []


def test_ipam_reads_what_is_applied(on: CtlOn) -> None:
    body = thing(
        Kind.IPAM_CONFIGURATION,
        "default",
        strictAffinity=True,
        maxBlocksPerHost=3,
        kubeVirtVMAddressPersistence="Disabled",
        ipCooldownSeconds=9,
    )
    on.write("apply", body)
    said = on.store.get(IPAMConfigKey()).value
    assert isinstance(said, IPAMConfig)
    assert (said.strict_affinity, said.max_blocks_per_host, said.cooldown_seconds) == (True, 3, 9)
    assert said.kubevirt_persistence is Persistence.DISABLED
    on.run("patch", "ipamconfig", "default", "-p", "spec: {ipCooldownSeconds: 0}")
    said = on.store.get(IPAMConfigKey()).value
    assert isinstance(said, IPAMConfig)
    assert (said.max_blocks_per_host, said.cooldown_seconds) == (3, 0)


# --- one store is enough -----------------------------------------------------------------------


def test_many_resources_are_stored_together_or_told(sqlite: CtlOn) -> None:
    many = [thing(Kind.GLOBAL_NETWORK_SET, f"s{n:03}", nets=["10.0.0.0/8"]) for n in range(150)]
    said = sqlite.write("apply", *many).output
    assert said == "Successfully applied 150 'GlobalNetworkSet' resource(s)\n"
    assert len(sqlite.names(Kind.GLOBAL_NETWORK_SET)) == 150
    sqlite.write("delete", *many)
    assert sqlite.names(Kind.GLOBAL_NETWORK_SET) == []


def test_what_was_done_before_a_failure_is_told(tmp_path: Path) -> None:
    """Without transactions: one by one, and the server may refuse the second."""
    with on_kubernetes(Group.V3)(tmp_path) as on:
        first = thing(Kind.GLOBAL_NETWORK_SET, "a", nets=["10.0.0.0/8"])
        second = thing(Kind.NETWORK_SET, "b", "no-such-namespace", nets=["10.0.0.0/8"])
        said = on.write("create", first, second, status=1).stderr
        assert "Partial success: Successfully created 1 'GlobalNetworkSet' resource(s)" in said
        assert "(GlobalNetworkSet a)" in said
        assert "hit error: [" in said
        assert on.names(Kind.GLOBAL_NETWORK_SET) == ["a"]


def test_directories_and_lists_and_standard_input(sqlite: CtlOn) -> None:
    sqlite.file(sample(Kind.TIER), name="d/a.yaml")
    sqlite.file(sample(Kind.BGP_FILTER), sample(Kind.BGP_PEER), name="d/b.yml")
    sqlite.file({"not": "ours"}, name="d/c.txt")
    (sqlite.root / "d/e.json").write_text(json.dumps(sample(Kind.IP_RESERVATION)))
    sqlite.file(sample(Kind.IP_POOL), name="d/deep/p.yaml")
    assert "4 resource(s)" in sqlite.run("apply", "-f", str(sqlite.root / "d")).output
    assert "5 resource(s)" in sqlite.run("apply", "-R", "-f", str(sqlite.root / "d")).output
    body = {"kind": "List", "items": [sample(Kind.TIER), sample(Kind.IP_POOL)]}
    said = sqlite.run("delete", "-f", "-", text=yaml.safe_dump(body)).output
    assert said == "Successfully deleted 2 resource(s)\n"
    assert sqlite.names(Kind.TIER) == []


def test_files_that_hold_nothing_or_a_resource_twice(sqlite: CtlOn) -> None:
    empty = sqlite.file()
    assert "no resource is in it" in sqlite.run("apply", "-f", empty, status=1).stderr
    assert sqlite.run("apply", "-f", empty, "--skip-empty").output.endswith("0 resource(s)\n")
    (sqlite.root / "none").mkdir()
    said = sqlite.run("apply", "-f", str(sqlite.root / "none"), status=1).stderr
    assert "no file in it ends in .yaml" in said
    said = sqlite.write("apply", sample(Kind.TIER), sample(Kind.TIER), status=1).stderr
    assert "document 2: Tier(first) is in" in said


def test_two_who_label_at_once_both_succeed(sqlite: CtlOn) -> None:
    sqlite.write("create", sample(Kind.NODE))
    together = threading.Barrier(4)
    failed: list[str] = []

    def label(number: int) -> None:
        from tortiectl.editing import edit

        together.wait()

        def change(wire: dict[str, Any]) -> dict[str, Any]:
            labels = {**(wire["metadata"].get("labels") or {}), f"k{number}": "v"}
            return {**wire, "metadata": {**wire["metadata"], "labels": labels}}

        try:
            edit(sqlite.store, sqlite.stored(Kind.NODE, "n1").key, change)
        except Exception as error:
            failed.append(str(error))

    threads = [threading.Thread(target=label, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert set(sqlite.stored(Kind.NODE, "n1").metadata.labels) == {"k0", "k1", "k2", "k3"}


def test_patches_of_every_type(sqlite: CtlOn) -> None:
    sqlite.write("create", sample(Kind.BGP_FILTER), sample(Kind.FELIX_CONFIGURATION))
    patch = '[{"op": "add", "path": "/spec/exportV4/0", "value": {"action": "Accept"}}]'
    sqlite.run("patch", "bgpfilter", "pools-only", "-t", "json", "-p", patch)
    assert [one["action"] for one in sqlite.shown(Kind.BGP_FILTER, "pools-only")["spec"]["exportV4"]
            ] == ["Accept", "Reject"]  # fmt: skip
    file = sqlite.file({"spec": {"floatingIPs": None, "reportingInterval": "90s"}}, name="p.yaml")
    sqlite.run("patch", "felixconfig", "default", "-t", "merge", "--patch-file", file)
    spec = sqlite.shown(Kind.FELIX_CONFIGURATION, "default")["spec"]
    assert (spec["floatingIPs"], spec["reportingInterval"]) == ("Disabled", "1m30s")
    for patch, words in (
        ("spec: {floatingIPs: Maybe}", "FelixConfiguration(default): spec.floatingIPs: 'Maybe'"),
        ("metadata: {name: other}", "metadata.name: cannot be changed"),
        ("kind: IPPool", "kind: cannot be changed"),
        ("[]", "is not an object"),
        ("{", "the patch: line 1"),
    ):
        said = sqlite.run("patch", "felixconfig", "default", "-p", patch, status=1).stderr
        assert words in said


def test_labels_that_are_wrong_or_there_already(sqlite: CtlOn) -> None:
    sqlite.write("create", sample(Kind.NODE))
    said = sqlite.run("label", "node", "n1", "rack=r1", "zone=z").output
    assert said == (
        "Successfully set label rack on Node n1\nSuccessfully set label zone on Node n1\n"
    )
    for args, words in (
        (("rack=r2",), "the label rack is 'r1'; --overwrite changes it"),
        (("nothing", "--remove"), "there is no label nothing"),
        (("rack",), "want KEY=VALUE, or --remove"),
        (("a b=c",), "is not a key"),
        (("a=b c",), "is not a label's value"),
    ):
        assert words in sqlite.run("label", "node", "n1", *args, status=1).stderr
    sqlite.run("label", "node", "n1", "rack=r2", "--overwrite")
    sqlite.run("label", "node", "n1", "rack=r2")
    assert sqlite.stored(Kind.NODE, "n1").metadata.labels == {"rack": "r2", "zone": "z"}


def test_what_was_wrong_before_a_change_does_not_stop_it(sqlite: CtlOn) -> None:
    """A newer Calico may have stored a field that is not known here; it stays."""
    from libtortie.model.resources import parse_resource

    body = sample(Kind.FELIX_CONFIGURATION, futureField="x")
    resource = parse_resource(Kind.FELIX_CONFIGURATION, body)
    sqlite.store.create(resource.key, resource)
    sqlite.run("label", "felixconfig", "default", "a=b")
    assert sqlite.shown(Kind.FELIX_CONFIGURATION, "default")["spec"]["futureField"] == "x"
