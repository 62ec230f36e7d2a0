"""What Calico's programs are made to write: one of each kind, then some of everything of IPAM.

`python -m tests.peer.story` records it as the golden file that the ordinary tests read.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.fakes.calico import Calicoctl, CalicoError, CalicoNode, on_etcd, stored
from tests.fakes.etcd_server import EtcdMember, etcd_members

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "unit" / "libtortie" / "golden" / "calico_written_by_v3_28.txt"
HEADER = """\
# What Calico's calicoctl and libcalico-go, of branch release-v3.28 (module version
# v1.11.0-cni-plugin.0.20250813170300-a0db560f0520, after v3.28.5), wrote to an etcd. A path, the
# stored text, an empty line. Recorded by `make peer-golden`; not to be edited.
"""
WEB = {
    "namespace": "shop",
    "node": "node-1",
    "pod": "web-0",
    "timestamp": "2026-08-22 13:33:20.123456789 +0000 UTC",
}


def tell(member: EtcdMember) -> list[tuple[str, str]]:
    """Let Calico write into an empty etcd; returns every key and text."""
    calicoctl = Calicoctl(on_etcd(member))
    calicoctl.apply((HERE / "resources.yaml").read_text())
    calicoctl.run("ipam", "configure", "--strictaffinity=true")
    with CalicoNode(on_etcd(member), "node-1") as node:
        node.assign("k8s-pod-network.9f3c", WEB, ipv6=1)
        node.assign("k8s-pod-network.aaaa", {"pod": "web-1"}, ipv4=2)
        node.assign("gone", {})
        node.release("gone")
        node.claim("explicit", "10.250.3.1", {"node": "node-1", "type": "ipipTunnelAddress"})
        full = "10.250.4.0/29"
        for ordinal in range(8):
            node.claim("full", f"10.250.4.{ordinal}", {"note": f"all of {full}"})
        node.claim("emptied", "10.250.5.1", {})
        node.release("emptied")
        try:
            node.release("nobody")
        except CalicoError as error:
            assert "resource does not exist" in str(error)
    return stored(member)


MASKS = (
    (r'"uid":"[0-9a-f-]{36}"', '"uid":"U"'),
    (r'"clusterGUID":"[0-9a-f]{32}"', '"clusterGUID":"G"'),
    (r'"creationTimestamp":"[0-9TZ:-]{20}"', '"creationTimestamp":"T"'),
    (r'("sequenceNumber":|"\d+":)\d{19}', r"\1N"),
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


def record() -> None:
    """Write the golden file anew."""
    with tempfile.TemporaryDirectory() as place, etcd_members(Path(place)) as (member,):
        entries = [f"{path}\n{text}\n" for path, text in tell(member)]
    GOLDEN.write_text(HEADER + "\n" + "\n".join(entries))


if __name__ == "__main__":
    record()
