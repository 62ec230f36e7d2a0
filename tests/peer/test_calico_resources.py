"""Resources through one etcd: what we store is Calico's to read and rewrite, and the reverse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from libtortie.datastore.codec import NAME_ANNOTATION, decode, encode
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import (
    IPAMConfigKey,
    Kind,
    ResourceKey,
    Resources,
    parse_path,
    path_of,
)
from libtortie.model.resources import IPPool, Resource
from tests.fakes.calico import Calicoctl, CalicoError, stored
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.ipam_world import pool
from tests.peer import story
from tortiectl.cli import main as tortiectl

OURS = story.read((Path(__file__).parents[1] / "unit/libtortie/golden/calico_etcd.txt").read_text())
RESOURCES = {key: text for path, text in OURS if isinstance(key := parse_path(path), ResourceKey)}
UNKNOWN_KINDS = {
    Kind.IPAM_CONFIGURATION,
    Kind.TIER,
    Kind.STAGED_NETWORK_POLICY,
    Kind.STAGED_GLOBAL_NETWORK_POLICY,
    Kind.STAGED_KUBERNETES_NETWORK_POLICY,
    Kind.CALICO_NODE_STATUS,
}
RENAMED_KINDS = {Kind.NETWORK_POLICY, Kind.GLOBAL_NETWORK_POLICY}
READABLE = [key for key in RESOURCES if key.kind not in UNKNOWN_KINDS | RENAMED_KINDS]
YOUNGER = {
    "IPPool spec.assignmentMode",
    "Node spec.interfaces",
    "BGPConfiguration spec.serviceLoadBalancerAggregation",
    "BGPFilter spec.exportV4.0.prefixLength",
    "BGPFilter spec.exportV4.0.operations",
    "FelixConfiguration spec.nftablesMode",
    "FelixConfiguration spec.nftablesFlowTableOffload",
    "KubeControllersConfiguration spec.controllers.loadBalancer",
    "KubeControllersConfiguration spec.controllers.migration",
    "KubeControllersConfiguration spec.controllers.node.hostEndpoint.createDefaultHostEndpoint",
}
"""Fields of what we store that this release of Calico does not know."""
FILLED_IN = {
    "Profile spec.egress.0.source",
    "Profile spec.egress.0.destination",
    "Profile spec.ingress.0.source",
    "Profile spec.ingress.0.destination",
    "KubeControllersConfiguration status.runningConfig",
}
"""What its command line prints where nothing is stored: empty objects."""


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path and both values wherever two JSON values differ; None where one has nothing."""
    if isinstance(ours, list) and isinstance(theirs, list):
        ours, theirs = dict(enumerate(ours)), dict(enumerate(theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours | theirs:
            below = f"{path}.{name}" if path else str(name)
            yield from differences(ours.get(name), theirs.get(name), below)
    elif ours != theirs:
        yield path, ours, theirs


def seed(member: EtcdMember, store: EtcdDatastore) -> None:
    """Store each of our golden values, through our own datastore."""
    for key, text in RESOURCES.items():
        store.create(key, decode(key, text.encode()))
        found = member.read(path_of(key))
        assert found is not None
        assert found["value"].decode() == text


def test_all_that_we_store_is_read_by_calicoctl(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl
) -> None:
    seed(member, store)
    younger: set[str] = set()
    filled: set[str] = set()
    for key in READABLE:
        theirs = calicoctl.get(key.kind.value, key.name, key.namespace)
        for path, ours, read in differences(json.loads(RESOURCES[key]), theirs):
            place = f"{key.kind} {path}"
            assert ours is None or read is None, f"{place}: {ours!r} is read as {read!r}"
            (younger if read is None else filled).add(place)
    assert younger == YOUNGER
    assert filled == FILLED_IN


@pytest.mark.parametrize("kind", sorted(RENAMED_KINDS))
def test_policies_are_listed_by_calicoctl_under_their_names(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl, kind: Kind
) -> None:
    """This release looks up `default.<name>`, as all before v3.32, but its lists show ours."""
    seed(member, store)
    (key,) = [one for one in RESOURCES if one.kind is kind]
    where = ("-A",) if kind.namespaced else ()
    listing = json.loads(calicoctl.run("get", kind.value, *where, "-o", "json"))
    (found,) = listing["items"]
    ours = json.loads(RESOURCES[key])
    assert found["metadata"]["name"] == key.name
    assert found["spec"]["selector"] == ours["spec"]["selector"]
    with pytest.raises(CalicoError, match=f"default.{key.name}"):
        calicoctl.get(kind.value, key.name, key.namespace)


@pytest.mark.parametrize("kind", sorted(UNKNOWN_KINDS))
def test_kinds_it_does_not_know_trouble_it_nowhere_else(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl, kind: Kind
) -> None:
    seed(member, store)
    with pytest.raises(CalicoError, match=f"resource type '{kind}' is not supported"):
        calicoctl.get(kind.value, "default")
    assert "10.250.0.0/16" in calicoctl.run("ipam", "show")


def test_what_calicoctl_applied_is_read_and_rewritten_without_loss(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl
) -> None:
    calicoctl.apply((story.HERE / "resources.yaml").read_text())
    before = dict(stored(member, "/calico/resources/"))
    assert len(before) > 15
    shown = {}
    for path in before:
        key = parse_path(path)
        assert isinstance(key, ResourceKey)
        shown[key] = _shown(calicoctl, key)
        record = store.get(key)
        store.update(key, record.value, record.revision)
    for path, text in stored(member, "/calico/resources/"):
        changed = list(differences(json.loads(before[path]), json.loads(text)))
        assert all(old is None for _, old, _ in changed), (path, changed)
    for key, old in shown.items():
        changed = list(differences(old, _shown(calicoctl, key)))
        for path, _, new in changed:
            assert path.removesuffix(f".{NAME_ANNOTATION}") == "metadata.annotations", (key, path)
            assert key.name in json.dumps(new)


def _shown(calicoctl: Calicoctl, key: ResourceKey) -> dict[str, Any]:
    return calicoctl.get(key.kind.value, key.name.removeprefix("default."), key.namespace)


def test_a_pool_goes_from_hand_to_hand(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl
) -> None:
    """Ours, replaced by calicoctl, read by us, updated by us, deleted by calicoctl."""
    store.create(ResourceKey(Kind.IP_POOL, "a"), pool("a", "10.1.0.0/16", natOutgoing=True))
    theirs = calicoctl.get("ippool", "a")
    theirs["spec"] |= {"disabled": True, "vxlanMode": "CrossSubnet"}
    calicoctl.run("replace", "-f", "-", text=json.dumps(theirs))
    record = store.get(ResourceKey(Kind.IP_POOL, "a"))
    assert isinstance(record.value, IPPool)
    assert record.value.spec.disabled
    assert record.value.spec.nat_outgoing
    assert record.value.metadata.uid == theirs["metadata"]["uid"]
    enabled = record.value.spec.model_copy(update={"disabled": False})
    ours = record.value.model_copy(update={"spec": enabled})
    store.update(record.key, ours, record.revision)
    found = calicoctl.get("ippool", "a")["spec"]
    assert "disabled" not in found
    assert found["vxlanMode"] == "CrossSubnet"
    calicoctl.run("delete", "ippool", "a")
    assert store.list(Resources(Kind.IP_POOL)).records == ()


def test_a_stale_replace_by_calicoctl_meets_our_update(
    store: EtcdDatastore, calicoctl: Calicoctl
) -> None:
    key = ResourceKey(Kind.IP_POOL, "a")
    record = store.create(key, pool("a", "10.1.0.0/16"))
    stale = calicoctl.run("get", "ippool", "a", "-o", "json")
    store.update(key, record.value, record.revision)
    with pytest.raises(CalicoError, match="update conflict: IPPool"):
        calicoctl.run("replace", "-f", "-", text=stale)


@pytest.mark.parametrize("strict", [True, False])
def test_ipam_configure_of_either_is_seen_by_the_other(
    member: EtcdMember, store: EtcdDatastore, calicoctl: Calicoctl, strict: bool
) -> None:
    said = calicoctl.run("ipam", "configure", f"--strictaffinity={str(strict).lower()}")
    assert f"Successfully set StrictAffinity to: {str(strict).lower()}" in said
    assert store.get(IPAMConfigKey()).value == IPAMConfig(strict_affinity=strict)
    done = CliRunner().invoke(
        tortiectl,
        ["ipam", "configure", f"--strictaffinity={str(not strict).lower()}"],
        env={"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.url},
    )
    assert done.exit_code == 0, done.output
    shown = calicoctl.run("ipam", "show", "--show-configuration")
    assert f"| StrictAffinity     | {str(not strict).lower():<5} |" in shown
    assert "| AutoAllocateBlocks | true  |" in shown


def test_ipam_configure_of_this_release_forgets_younger_settings(
    store: EtcdDatastore, calicoctl: Calicoctl
) -> None:
    """Why an older calicoctl must not configure IPAM beside us: persistence is `Enabled` again."""
    ours = IPAMConfig(kubevirt_persistence=Persistence.DISABLED, cooldown_seconds=30)
    store.create(IPAMConfigKey(), ours)
    calicoctl.run("ipam", "configure", "--strictaffinity=true")
    assert store.get(IPAMConfigKey()).value == IPAMConfig(strict_affinity=True)


def test_the_golden_file_is_what_it_writes(member: EtcdMember) -> None:
    told = [(path, story.masked(text)) for path, text in story.tell(member)]
    golden = story.read(story.GOLDEN.read_text())
    assert told == [(path, story.masked(text)) for path, text in golden]
    for path, text in golden:
        key = parse_path(path)
        value = decode(key, text.encode())
        assert not isinstance(value, Resource) or decode(key, encode(key, value)) == value
