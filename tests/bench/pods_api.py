"""The API of a large cluster, as far as the collector asks: `python -m tests.bench.pods_api NODES`.

Nodes and pods of `ipam_cluster`, in pages, each object as large as a small pod's of a real API
(about 3 kB). It prints its URL and serves until its standard input ends.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.bench.ipam_cluster import PER_NODE, address_of, node_name, pod_name, pod_uid

VERSION = "1000000"
PADDING = "x" * 1800
"""What a real pod's spec says about images, mounts and probes."""


def pod(number: int) -> dict[str, Any]:
    """One of the cluster's pods."""
    node, ordinal = divmod(number, PER_NODE)
    address = address_of(node, ordinal)
    return {
        "metadata": {
            "name": pod_name(node, ordinal),
            "namespace": "default",
            "uid": pod_uid(node, ordinal),
            "resourceVersion": str(number + 1),
            "labels": {"app": f"app-{node}", "pod-template-hash": "5d9c7b9f6"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": "1"}
            ],
        },
        "spec": {
            "nodeName": node_name(node),
            "containers": [{"name": "app", "image": "app:1", "args": [PADDING]}],
        },
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


def node(number: int) -> dict[str, Any]:
    """One of the cluster's nodes."""
    name = node_name(number)
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(number + 1)},
        "spec": {},
        "status": {"nodeInfo": {"kubeletVersion": PADDING}},
    }


LISTS: dict[str, tuple[str, int, Callable[[int], dict[str, Any]]]] = {
    "/api/v1/pods": ("PodList", PER_NODE, pod),
    "/api/v1/nodes": ("NodeList", 1, node),
}
"""By path: the list's kind, how many objects each node has in it, what makes one."""


class Handler(BaseHTTPRequestHandler):
    """Pages of a list; the continue token is the number of the next object."""

    protocol_version = "HTTP/1.1"
    nodes = 0

    def do_GET(self) -> None:
        """One page."""
        asked = urlsplit(self.path)
        found = LISTS.get(asked.path)
        if found is None:
            self._answer(404, {"kind": "Status", "status": "Failure", "code": 404})
            return
        kind, each, make = found
        count = each * self.nodes
        query = parse_qs(asked.query)
        start = int(query.get("continue", ["0"])[0])
        end = min(start + int(query.get("limit", [str(count)])[0]), count)
        metadata = {"resourceVersion": VERSION}
        if end < count:
            metadata["continue"] = str(end)
        items = [make(number) for number in range(start, end)]
        self._answer(200, {"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """It says nothing."""


def main() -> None:
    """Serve until standard input ends."""
    Handler.nodes = int(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
