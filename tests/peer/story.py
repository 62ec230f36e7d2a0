"""What Calico's programs are made to write: one of each kind, then some of everything of IPAM.

`python -m tests.peer.story` records it, in etcd and in Kubernetes, as the golden files that the
ordinary tests read.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.apiserver.server import ApiServer
from tests.fakes.calico import Calicoctl, CalicoNode, Place, on_etcd, on_kubernetes, stored
from tests.fakes.etcd_server import EtcdMember, etcd_members
from tests.fakes.kubernetes_store import kubernetes_api

HERE = Path(__file__).parent
RECORDS = HERE.parent / "unit" / "libtortie" / "golden"
GOLDEN = RECORDS / "calico_written_by_v3_28.txt"
CRDS = RECORDS / "calico_crds_written_by_v3_28.txt"
HEADER = """\
# What Calico's calicoctl and libcalico-go, of branch release-v3.28 (module version
# v1.11.0-cni-plugin.0.20250813170300-a0db560f0520, after v3.28.5), wrote to {}. A path, the
# stored text, an empty line. Recorded by `make peer-golden`; not to be edited.
"""
GROUP = "crd.projectcalico.org"
PODS_AND_NODES = "Node|Profile|WorkloadEndpoint"
WEB = {
    "namespace": "shop",
    "node": "node-1",
    "pod": "web-0",
    "timestamp": "2026-08-22 13:33:20.123456789 +0000 UTC",
}


def tell(member: EtcdMember) -> list[tuple[str, str]]:
    """Let Calico write into an empty etcd; returns every key and text."""
    place = on_etcd(member)
    Calicoctl(place).apply((HERE / "resources.yaml").read_text())
    _allocate(place)
    return stored(member)


def tell_kubernetes(server: ApiServer, directory: Path) -> list[tuple[str, str]]:
    """Let Calico write to an API server that has a node `node-1`; its CRDs' paths and objects.

    What Calico keeps in core objects is left out.
    """
    place = on_kubernetes(server.url, directory)
    every = (HERE / "resources.yaml").read_text().split("---\n")
    mine = [one for one in every if not re.search(f"^kind: ({PODS_AND_NODES})$", one, re.M)]
    Calicoctl(place).apply("---\n".join(mine))
    _allocate(place)
    found = []
    for kind in server.api.catalogue.kinds:
        if kind.resource.endswith(f".{GROUP}"):
            for body in server.api.store.list(kind.resource)[0]:
                where = (body["metadata"].get("namespace", ""), body["metadata"]["name"])
                path = "/".join(part for part in (kind.resource, *where) if part)
                found.append((path, json.dumps(body, separators=(",", ":"))))
    return sorted(found)


def _allocate(place: Place) -> None:
    Calicoctl(place).run("ipam", "configure", "--strictaffinity=true")
    with CalicoNode(place, "node-1") as node:
        node.assign("k8s-pod-network.9f3C", WEB, ipv6=1)
        node.assign("k8s-pod-network.aaaa", {"pod": "web-1"}, ipv4=2)
        node.assign("gone", {})
        node.release("gone")
        node.claim("explicit", "10.250.3.1", {"node": "node-1", "type": "ipipTunnelAddress"})
        for ordinal in range(8):
            node.claim("full", f"10.250.4.{ordinal}", {"note": "all of 10.250.4.0/29"})
        node.claim("emptied", "10.250.5.1", {})
        node.release("emptied")
        node.ask("claim", handle="bare", address="10.250.6.1")


MASKS = (
    (r'"uid":"[0-9a-f-]{36}"', '"uid":"U"'),
    (r'"clusterGUID":"[0-9a-f]{32}"', '"clusterGUID":"G"'),
    (r'"creationTimestamp":"[0-9TZ:-]{20}"', '"creationTimestamp":"T"'),
    (r'\\"creationTimestamp\\":\\"[0-9TZ:-]{20}\\"', "MT"),
    (r'("sequenceNumber":|"\d+":)\d{19}', r"\1N"),
    (r',?"resourceVersion":"\d+"', ""),
)


def masked(text: str) -> str:
    """A stored text without what differs from run to run."""
    for pattern, instead in MASKS:
        text = re.sub(pattern, instead, text)
    return text


def read(golden: str) -> list[tuple[str, str]]:
    """The entries of a golden file."""
    entries = [one for one in golden.strip().split("\n\n") if not one.startswith("#")]
    return [(path, text) for path, text in (one.split("\n", 1) for one in entries)]


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """The lab's, with the node of the story."""
    with kubernetes_api() as server:
        server.api.bootstrap_kind("nodes", ({"metadata": {"name": "node-1"}},))
        yield server


def record() -> None:
    """Write the golden files anew."""
    with tempfile.TemporaryDirectory() as place, etcd_members(Path(place)) as (member,):
        _write(GOLDEN, "an etcd", tell(member))
        with api_server() as server:
            _write(CRDS, "a Kubernetes API server", tell_kubernetes(server, Path(place)))


def _write(golden: Path, whereto: str, told: list[tuple[str, str]]) -> None:
    entries = [f"{path}\n{text}\n" for path, text in told]
    golden.write_text(HEADER.format(whereto) + "\n" + "\n".join(entries))


if __name__ == "__main__":
    record()
