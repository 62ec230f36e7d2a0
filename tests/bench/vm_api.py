"""The API of a large cluster of VMs: `python -m tests.bench.vm_api VMS NODES`.

Every object is padded to about the size that a real one has. It prints its URL and serves until its
standard input ends.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from tests.fakes.vm_api import put_site, vm_api
from tests.fakes.vm_cluster import Site, healthy

PADDING = {"bench/padding": "x" * 2500}
"""What real objects have in status, managed fields and probes."""


def site(vms: int, nodes: int) -> Site:
    """A healthy cluster; its certificates and leases are of now."""
    made = healthy(vms, nodes, datetime.now(UTC))
    for body in (*made.vmis, *made.pods, *made.nodes):
        notes = body["metadata"].setdefault("annotations", {})
        notes.update(PADDING)
    for name in made.renewals:
        made.renewals[name] = datetime.now(UTC) - timedelta(seconds=3)
    return made


def main() -> None:
    """Serve until told to end."""
    vms, nodes = map(int, sys.argv[1:3])
    with vm_api() as server:
        put_site(server, site(vms, nodes))
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
