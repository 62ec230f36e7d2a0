"""The nodes of the CNI benchmark: an agent each, on SQLite or etcd, in its own namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from cni_plugin.durable import replace_file
from cni_plugin.program import NATIVE, executable, native_executable
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.port import Datastore
from libtortie.linux.netns import enter
from libtortie.model.keys import Kind
from tests.bench.cni_calls import Caller, Sandbox
from tests.fakes.agent_world import NODE, resource_record
from tests.fakes.etcd_server import etcd_members
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import NodeProcess, ip, until

PYTHON = "/usr/bin/python3"
FALLBACK = Path(".venv/bin/tortie-cni").absolute()
REFERENCE = "/usr/lib/cni"
POOL = {"cidr": "10.65.0.0/16", "blockSize": 26}


class BenchNode:
    """A node, its plugin's callers, and the reference plugin's caller in the same namespace."""

    def __init__(self, node: NodeProcess, datastore: dict[str, object]) -> None:
        self.node = node
        conf = {
            "cniVersion": "1.0.0",
            "name": "k8s-pod-network",
            "type": "tortie",
            "nodename": NODE,
            "agent_socket": str(node.root / "run" / "cni.sock"),
            "endpoint_status_dir": str(node.root / "run" / "endpoint-status"),
            **datastore,
        }
        shim = node.root / "tortie"
        replace_file(
            shim, executable(str(node.root / "run/cni.sock"), str(FALLBACK), PYTHON), 0o755
        )
        calls = node.root / "calls"
        calls.mkdir()
        self.ours = Caller("tortie", [str(shim)], conf, calls)
        self._native = Caller("native", [str(node.root / "native")], conf, calls)
        self.peer = Caller("ptp", [f"{REFERENCE}/ptp"], _reference(node.root), calls, REFERENCE)

    def native(self) -> list[Caller]:
        """The caller of the native shim, where it was built."""
        if not NATIVE.exists():
            return []
        made = native_executable(str(self.node.root / "run/cni.sock"), str(FALLBACK))
        replace_file(self.node.root / "native", made, 0o755)
        return [self._native]

    def enter(self) -> None:
        """Move the benchmark, and with it what it runs, into the node's namespace."""
        enter(f"/run/netns/{self.node.name}")

    def sandboxes(self, what: str, count: int) -> list[Sandbox]:
        """Fresh namespaces."""
        made = [fresh_name(what) for _ in range(count)]
        for name in made:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            self.node.namespaces.append(name)
        return [Sandbox(f"/run/netns/{name}", name, name) for name in made]

    def drop(self, sandboxes: list[Sandbox]) -> None:
        """Delete namespaces."""
        for sandbox in sandboxes:
            ip("netns", "delete", sandbox.pod)
            self.node.namespaces.remove(sandbox.pod)

    def settle(self, sandboxes: list[Sandbox], *, present: bool) -> None:
        """Wait until the agent has done with endpoints that came, or went."""
        for sandbox in sandboxes:
            until(
                f"the agent has seen {sandbox.pod}",
                partial(self._has_status, sandbox.pod, present),
            )

    def _has_status(self, pod: str, present: bool) -> bool:
        return (self.node.status(pod) is not None) == present


def _reference(root: Path) -> dict[str, object]:
    ipam = {"type": "host-local", "subnet": "10.99.0.0/16", "dataDir": str(root / "host-local")}
    return {"cniVersion": "1.0.0", "name": "reference", "type": "ptp", "ipam": ipam}


@contextmanager
def sqlite_node(root: Path) -> Iterator[BenchNode]:
    """A node on a SQLite file of its own."""
    root.mkdir()
    node = NodeProcess(root, fresh_name("bs"), default_pools="none", log_level="info")
    datastore = {
        "datastore_type": "sqlite",
        "sqlite_path": node.config["sqlite_path"],
        "sqlite_shared": True,
    }
    with closing(node):
        _put_pool(node.store)
        node.start()
        yield BenchNode(node, datastore)


@contextmanager
def etcd_node(root: Path) -> Iterator[BenchNode]:
    """A node with its etcd in its namespace. The caller's thread is in there, too, afterwards."""
    root.mkdir()
    node = NodeProcess(root, fresh_name("be"), default_pools="none", log_level="info")
    with closing(node):
        enter(f"/run/netns/{node.name}")
        with etcd_members(root) as (member,):
            with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
                _put_pool(store)
            node.config |= {"datastore_type": "etcdv3", "etcd_endpoints": member.url}
            node.start()
            yield BenchNode(node, {"datastore_type": "etcdv3", "etcd_endpoints": member.url})


def _put_pool(store: Datastore) -> None:
    pool = resource_record(Kind.IP_POOL, "pool", POOL)
    store.create(pool.key, pool.value)
