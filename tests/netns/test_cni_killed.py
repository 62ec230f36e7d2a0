"""kill -9 of the plugin's process at every step of ADD and DEL: real namespaces, SQLite and API.

Each call is `tortie-cni`'s own `main` in a process of its own (`mortal_cni`), killed before step
k for every k. Then the runtime does what it does: it repeats the call, or takes the sandbox down.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.apiserver.server import ApiServer
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.kube.objects import Pod
from libtortie.linux import netns
from libtortie.linux.netns import Netns
from libtortie.model.ipam import Block
from libtortie.model.keys import Blocks, Handles, Kind, Resources
from libtortie.model.resources import IPPool, IPPoolSpec, WorkloadEndpoint
from tests.fakes.cni_world import CniWorld
from tests.fakes.fresh_names import fresh_name
from tests.fakes.mortal_cni import Ended, MortalCni
from tests.fakes.mortal_parent import KILLED

pytestmark = pytest.mark.root

NODE = "node1"
MOST_STEPS = 100


def ip(inside: str, *command: str) -> Any:
    done = subprocess.run(
        ["ip", "-n", inside, "-j", *command], capture_output=True, check=True, timeout=120
    )
    return json.loads(done.stdout or b"[]")


@dataclass(frozen=True, slots=True)
class Left:
    """What attachments leave behind, wherever that is."""

    links: tuple[str, ...]
    routes: tuple[str, ...]
    inside: tuple[str, ...]
    endpoints: tuple[str, ...]
    owners: tuple[tuple[str, str, str, str], ...]
    handles: tuple[str, ...]
    delegated: tuple[str, ...]
    locks: tuple[str, ...]


class Site:
    """A node with an API and a datastore, and a plugin that can be killed."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        """`stack` takes away what is made here."""
        self.root = root
        self.prefix = fresh_name("k")
        self.world = CniWorld(root)
        stack.callback(self._delete_namespaces)
        self.node = self.make("node")
        self.make("sandbox")
        path = f"/run/netns/{self.node}"
        self.server = ApiServer(api=self.world.kube.api)
        stack.callback(self.server.close)
        Netns(deadline=120).call(path, self.server.start)
        for words in ("ip link set lo up", "nft add table inet tortie"):  # as an agent left it
            command = ["nsenter", f"--net={path}", *words.split()]
            subprocess.run(command, check=True, timeout=120)
        self.store = SqliteDatastore(root / "t.db", node=NODE)
        stack.callback(self.store.close)
        pool = IPPool(metadata={"name": "p"}, spec=IPPoolSpec(cidr="10.65.0.0/24"))  # type: ignore[arg-type]  # pydantic reads the dict
        self.store.create(pool.key, pool)
        self.plugin = stack.enter_context(MortalCni(root, path))
        self.settings: dict[str, Any] = {}

    def make(self, name: str) -> str:
        full = f"{self.prefix}-{name}"
        netns.create(full)
        return full

    def call(
        self, verb: str, pod: str, container: str, *, die_at: int = 0, node: str = NODE
    ) -> Ended:
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": f"/run/netns/{self.prefix}-sandbox",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/usr/lib/cni",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_UID=uid-of-{pod}",
        }
        conf = {
            "cniVersion": "1.1.0",
            "name": "k8s-pod-network",
            "type": "tortie",
            "nodename": node,
            "datastore_type": "sqlite",
            "sqlite_path": str(self.root / "t.db"),
            "sqlite_shared": True,
            "agent_socket": str(self.root / "run" / "cni.sock"),
            "endpoint_status_dir": str(self.root / "run"),
            "kubernetes": {"k8s_api_root": self.server.url},
            **self.settings,
        }
        return self.plugin.call(env, conf, die_at=die_at)

    def done(self, verb: str, pod: str, container: str) -> Ended:
        ended = self.call(verb, pod, container)
        assert ended.status == 0, ended
        return ended

    def killed(self, verb: str, pod: str, container: str, die_at: int) -> str:
        """Be killed before this step; what that step would have been."""
        ended = self.call(verb, pod, container, die_at=die_at)
        assert ended.status == KILLED, ended
        assert len(ended.steps) == die_at
        return ended.steps[-1]

    def left(self) -> Left:
        """Everything there is now."""
        blocks = [record.value for record in self.store.list(Blocks(4)).records]
        return Left(
            links=tuple(one["ifname"] for one in ip(self.node, "link")),
            routes=tuple(f"{one['dst']} {one['dev']}" for one in ip(self.node, "route")),
            inside=tuple(one["ifname"] for one in ip(f"{self.prefix}-sandbox", "link")),
            endpoints=tuple(
                record.value.spec.pod
                for record in self.store.list(Resources(Kind.WORKLOAD_ENDPOINT)).records
                if isinstance(record.value, WorkloadEndpoint)
            ),
            owners=tuple(
                (
                    str(block.address(ordinal)),
                    block.attributes[index].handle_id or "",
                    block.attributes[index].active.get("pod", ""),
                    block.attributes[index].alternate.get("pod", ""),
                )
                for block in blocks
                if isinstance(block, Block)
                for ordinal, index in enumerate(block.allocations)
                if index is not None
            ),
            delegated=tuple(p.name for p in (self.root / "ipam").glob("*/[0-9]*")),
            handles=tuple(str(record.key) for record in self.store.list(Handles()).records),
            locks=tuple(path.name for path in self.root.glob("run/**/*.lock")),
        )

    def _delete_namespaces(self) -> None:
        for entry in Path("/run/netns").glob(f"{self.prefix}-*"):
            with suppress(FileNotFoundError):
                netns.delete(entry.name)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(tmp_path, stack)
        yield made
    assert made.server.crashes == []


def address(ended: Ended) -> str:
    return str(ended.body["ips"][0]["address"])


class Pods:
    """Pods to attach, a new one for each round; `expected` is the address it must get."""

    expected = ""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.count = itertools.count()

    def next(self) -> tuple[str, str]:
        """Name and container of a pod that exists in the API."""
        number = next(self.count)
        self.put(f"{self.base}-{number}")
        return f"{self.base}-{number}", f"ctr{number}"

    base = "web"
    least = 20
    """More steps than this has an ADD."""

    def put(self, name: str) -> None:
        self.site.world.put_pod(name)

    def gone(self, name: str) -> None:
        """The API deletes the pod, as it does once its sandbox is down."""
        self.site.world.kube.remove(Pod, name, "default")


class Launchers(Pods):
    """The launchers of one VM, one after the other: it must keep its first one's address."""

    base = "virt-launcher-db"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        site.world.put_vm()
        pod, container = self.next()
        self.expected = address(site.done("ADD", pod, container))
        site.done("DEL", pod, container)
        self.gone(pod)

    def put(self, name: str) -> None:
        self.site.world.put_launcher(name)


class Targets(Pods):
    """Targets of one migration, whose source runs on another node."""

    base = "virt-launcher-db-target"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        site.world.put_vm()
        site.world.put_launcher("virt-launcher-db-source")
        source = site.call("ADD", "virt-launcher-db-source", "source", node="elsewhere")
        self.expected = address(source)
        host = source.body["interfaces"][0]["name"]
        subprocess.run(["ip", "-n", site.node, "link", "delete", host], check=True)
        site.world.put_migration("m1")

    def put(self, name: str) -> None:
        self.site.world.put_launcher(name, migration="m1")


class Delegated(Pods):
    """Pods whose addresses Debian's host-local gives; after a kill a repeat may give another."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        section = {"type": "host-local", "dataDir": str(site.root / "ipam")}
        site.settings["ipam"] = {**section, "subnet": "10.99.0.0/24"}


class OnALan(Pods):
    """Pods that another plugin wires, with addresses of ours."""

    least = 5

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        site.settings |= {"type": "bridge", "ipam": {"type": "tortie-ipam"}}


KINDS = [Pods, Launchers, Targets, Delegated, OnALan]


def full_rounds(site: Site, pods: Pods) -> tuple[Left, int, int]:
    """What is there before and after an undisturbed round, and how many steps ADD and DEL take.

    The first round makes what stays: the affinity of a block, the gateway's route.
    """
    for _ in range(2):
        before = site.left()
        pod, container = pods.next()
        added = site.done("ADD", pod, container)
        assert pods.expected in ("", address(added))
        deleted = site.done("DEL", pod, container)
        pods.gone(pod)
    assert site.left() == before
    assert pods.least < len(added.steps) < MOST_STEPS, added.steps
    return before, len(added.steps), len(deleted.steps)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_step_of_add_del_cleans_up(site: Site, kind: type[Pods]) -> None:
    pods = kind(site)
    before, adding, _ = full_rounds(site, pods)
    for k in range(1, adding + 1):
        pod, container = pods.next()
        at = site.killed("ADD", pod, container, k)
        for _ in range(2):
            site.done("DEL", pod, container)
            assert site.left() == before, (k, at)
        pods.gone(pod)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_step_a_repeat_completes(site: Site, kind: type[Pods]) -> None:
    """Of ADD and, on the attachment that its repeat made, of DEL."""
    pods = kind(site)
    before, adding, deleting = full_rounds(site, pods)
    for k in range(1, max(adding, deleting) + 1):
        pod, container = pods.next()
        at = site.killed("ADD", pod, container, min(k, adding))
        first = site.done("ADD", pod, container)
        assert pods.expected in ("", address(first)), (k, at)
        assert site.done("ADD", pod, container).body == first.body, (k, at)
        at += ", " + site.killed("DEL", pod, container, (k - 1) % deleting + 1)
        site.done("DEL", pod, container)
        assert site.left() == before, (k, at)
        pods.gone(pod)
