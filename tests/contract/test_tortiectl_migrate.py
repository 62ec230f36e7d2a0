"""A datastore's contents from each kind of datastore to each: nothing is lost, nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from libtortie.datastore.codec import encode
from libtortie.datastore.crd_names import Group
from libtortie.datastore.port import Datastore
from libtortie.history import history, keep
from libtortie.model.history import Fact, What
from libtortie.model.keys import Affinities, Blocks, Handles, IPAMConfigKey, Key, Kind
from tests.fakes.ctl_stores import (
    STORES,
    CtlOn,
    on_etcd,
    on_kubernetes,
    on_server,
    on_sqlite,
    thing,
)
from tests.fakes.kubernetes_store import kubernetes_api

RULE = {"action": "Allow"}
WRITTEN = (
    thing(Kind.IP_POOL, "pool-a", cidr="10.65.0.0/24", blockSize=30),
    thing(Kind.TIER, "first", order=10),
    thing(Kind.GLOBAL_NETWORK_POLICY, "g", tier="first", ingress=[RULE]),
    thing(Kind.NETWORK_POLICY, "p", "shop", ingress=[RULE]),
    thing(Kind.NETWORK_SET, "s", "shop", nets=["10.0.0.0/8"]),
    thing(Kind.BGP_FILTER, "f", exportV4=[{"action": "Reject"}]),
    thing(Kind.BGP_PEER, "b", peerIP="192.0.2.1", asNumber=1, filters=["f"]),
    thing(Kind.FELIX_CONFIGURATION, "default", floatingIPs="Enabled"),
    thing(Kind.IPAM_CONFIGURATION, "default", strictAffinity=True),
)


FACTS = (
    Fact(datetime(2026, 8, 1, tzinfo=UTC), What.GRANTED, "n1", "net.Handle1", vm="db"),
    Fact(datetime(2026, 8, 2, tzinfo=UTC), What.RELEASED, "n1", "net.Handle2", pod="web"),
)


def fill(on: CtlOn) -> None:
    on.write("create", *WRITTEN)
    client = IPAMClient(on.store, "n1", now=lambda: datetime.now(UTC))
    for number in range(6):
        owner = pod_owner(
            namespace="shop", pod=f"p{number}", node="n1", timestamp=datetime.now(UTC)
        )
        client.assign(f"net.Handle{number}", owner, AddressRequest())


def ipam(store: Datastore) -> dict[Key, bytes]:
    """IPAM's records as etcd would hold them."""
    found = {}
    for scope in (Affinities(), Blocks(4), Handles()):
        for record in store.list(scope).records:
            found[record.key] = encode(record.key, record.value)
    config = store.get(IPAMConfigKey())
    found[IPAMConfigKey()] = encode(config.key, config.value)
    return found


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[CtlOn, CtlOn]]:
    source, target = request.param
    with ExitStack() as stack:
        made = []
        for name, place in ((source, "source"), (target, "target")):
            (tmp_path / place).mkdir()
            made.append(stack.enter_context(STORES[name](tmp_path / place)))
        yield made[0], made[1]


PAIRS = [
    ("sqlite", "etcd"),
    ("etcd", "sqlite"),
    ("etcd", "kubernetes-v1"),
    ("kubernetes-v3", "sqlite"),
    ("sqlite", "kubernetes-v3"),
    ("kubernetes-v1", "etcd"),
]


@pytest.mark.parametrize("pair", PAIRS, indirect=True, ids="-to-".join)
def test_all_of_it_arrives_and_a_repeat_changes_nothing(pair: tuple[CtlOn, CtlOn]) -> None:
    source, target = pair
    fill(source)
    keep(source.store, FACTS, "test")
    said = source.run("datastore", "migrate", "export", status=1).stderr
    assert "the datastore is not locked" in said
    assert source.run("datastore", "migrate", "lock").output == "Datastore locked.\n"
    text = source.run("datastore", "migrate", "export").stdout
    assert text.count("\n===\n") == 2
    said = target.run("datastore", "migrate", "import", "-f", "-", text=text).output
    assert "Successfully imported" in said
    assert ipam(target.store) == ipam(source.store)
    for body in WRITTEN:
        kind, meta = Kind(body["kind"]), body["metadata"]
        if kind is Kind.IPAM_CONFIGURATION:
            continue
        space = meta.get("namespace", "")
        before = source.stored(kind, meta["name"], space).to_wire()["spec"]
        assert target.stored(kind, meta["name"], space).to_wire()["spec"] == before
    client = IPAMClient(target.store, "n1", now=lambda: datetime.now(UTC))
    assert len(client.by_handle("net.Handle3")) == 1
    again = target.run("datastore", "migrate", "import", "-f", "-", text=text).output
    assert "0 records of IPAM, 0 of the history" in again
    assert history(target.store).facts == history(source.store).facts == FACTS
    assert target.run("datastore", "migrate", "unlock").output == "Datastore unlocked.\n"


def test_a_cluster_keeps_its_identity(tmp_path: Path) -> None:
    from libtortie.model.resources import parse_resource

    with on_sqlite(tmp_path) as source, on_etcd(tmp_path) as target:
        body = thing(Kind.CLUSTER_INFORMATION, "default", clusterGUID="beef", clusterType="k8s")
        resource = parse_resource(Kind.CLUSTER_INFORMATION, body)
        source.store.create(resource.key, resource)
        source.run("datastore", "migrate", "lock")
        text = source.run("datastore", "migrate", "export").stdout
        target.run("datastore", "migrate", "import", "-f", "-", text=text)
        spec = target.shown(Kind.CLUSTER_INFORMATION, "default")["spec"]
        assert spec == {"clusterGUID": "beef", "clusterType": "k8s", "datastoreReady": False}


def test_a_datastore_in_use_is_refused_untouched(tmp_path: Path) -> None:
    with on_sqlite(tmp_path) as source, on_etcd(tmp_path) as target:
        fill(source)
        fill(target)
        before = ipam(target.store)
        source.run("datastore", "migrate", "lock")
        text = source.run("datastore", "migrate", "export").stdout
        said = target.run("datastore", "migrate", "import", "-f", "-", text=text, status=1).stderr
        assert "is there already, and another: this datastore is in use" in said
        assert ipam(target.store) == before
        assert target.names(Kind.CLUSTER_INFORMATION) == []


def test_what_cannot_be_read_of_the_history_stops_nothing(tmp_path: Path) -> None:
    """Neither here, nor in a file of a version that knows more."""
    with on_sqlite(tmp_path) as source, on_etcd(tmp_path) as target:
        fill(source)
        keep(source.store, FACTS, "test")
        source.run("datastore", "migrate", "lock")
        text = source.run("datastore", "migrate", "export").stdout
        text = text.replace('"what": "released"', '"what": "teleported"')
        assert "teleported" in text
        done = target.run("datastore", "migrate", "import", "-f", "-", text=text)
        assert "1 of the history" in done.stdout
        assert "not in the history: " in done.stderr
        assert "teleported" in done.stderr
        assert history(target.store).facts == FACTS[:1]


def test_a_cluster_without_a_place_for_the_history_takes_all_else(tmp_path: Path) -> None:
    with (
        on_sqlite(tmp_path) as source,
        kubernetes_api() as server,
        on_server(server, Group.V1, tmp_path) as target,
    ):
        fill(source)
        keep(source.store, FACTS, "test")
        source.run("datastore", "migrate", "lock")
        text = source.run("datastore", "migrate", "export").stdout
        server.api.catalogue.hide("tortie.io")
        done = target.run("datastore", "migrate", "import", "-f", "-", text=text)
        assert "0 of the history" in done.stdout
        assert "not in the history: 0 of 2 records are written: " in done.stderr
        assert ipam(target.store) == ipam(source.store)
        exported = target.run("datastore", "migrate", "export")
        assert (exported.stderr, "history" in exported.stdout) == ("", False)


def test_endpoints_are_carried_where_they_are_asked_for(tmp_path: Path) -> None:
    with on_sqlite(tmp_path) as source, on_etcd(tmp_path) as target:
        endpoint = thing(
            Kind.WORKLOAD_ENDPOINT, "", "shop", orchestrator="k8s", node="n1", pod="web",
            endpoint="eth0", interfaceName="cali1",
        )  # fmt: skip
        del endpoint["metadata"]["name"]
        source.write("create", endpoint, thing(Kind.PROFILE, "kns.shop", ingress=[RULE]))
        source.run("datastore", "migrate", "lock")
        for args, names in (((), []), (("--with-endpoints",), ["n1-k8s-web-eth0"])):
            text = source.run("datastore", "migrate", "export", *args).stdout
            target.run("datastore", "migrate", "import", "-f", "-", text=text)
            assert target.names(Kind.WORKLOAD_ENDPOINT) == names


def test_nodes_must_be_kubernetes_own(tmp_path: Path) -> None:
    with on_sqlite(tmp_path) as source, on_kubernetes(Group.V3)(tmp_path) as target:
        ref = [{"nodeName": "other", "orchestrator": "k8s"}]
        source.write("create", thing(Kind.NODE, "n1", orchRefs=ref), thing(Kind.NODE, "n2"))
        source.run("datastore", "migrate", "lock")
        text = source.run("datastore", "migrate", "export").stdout
        said = target.run("datastore", "migrate", "import", "-f", "-", text=text, status=1).stderr
        assert "Node(n1) is other in Kubernetes: a node's names must be the same" in said
        assert "Node(n2) is not in the cluster: let its kubelet register it first" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "want three parts"),
        ("a\n===\n{}\n===\n{}", "the first part: not a list of resources"),
        ("kind: Pod\n===\n{}\n===\n{}", "not a resource of a kind that is known"),
        ("---\n===\nx\n===\n{}", "the second part: not JSON"),
        ("---\n===\n7\n===\n{}", "the second part: not an object"),
        ("---\n===\n{}\n===\n[]", "the third part: not an object"),
        ('---\n===\n{}\n===\n{"blocks": [{"Key": "/x"}]}', "blocks.0: "),
        (
            '---\n===\n{}\n===\n{"blocks": [{"Key": "/calico/ipam/v2/handle/h", "Value": '
            '{"block": {}, "deleted": false}}]}',
            "blocks.0: holds another kind of record",
        ),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    with on_sqlite(tmp_path) as target:
        said = target.run("datastore", "migrate", "import", "-f", "-", text=text, status=1).stderr
        assert words in said
        assert target.names(Kind.CLUSTER_INFORMATION) == []
