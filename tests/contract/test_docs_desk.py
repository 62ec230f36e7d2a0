"""The commands of the documentation's pages, as they stand there, one page after the other.

Around them is what a reader would have: an API server with VMs, a datastore, files of his own.
What each command does is proved where it is tested; here a page is held to how it ends and to
what it shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from lab.apiserver import kubeconfig
from lab.apiserver.api import Api
from lab.apiserver.kind import Kind as ServedKind
from lab.apiserver.kinds import KINDS, Catalogue
from lab.apiserver.server import ApiServer
from libtortie.datastore.sqlite import SqliteDatastore
from tests.fakes.doc_desk import Desk
from tests.fakes.doc_pages import PAGES, ROOT, STAGES, Stage, blocks, commands
from tests.fakes.gc_site import furnish
from tests.fakes.kubernetes_store import kubernetes_api
from tests.fakes.vm_api import put_site, vm_api
from tests.fakes.vm_cluster import Site, healthy
from tests.unit.tortiectl.test_downtime_domjobinfo import LIBVIRT_9
from tests.unit.tortiectl.test_preflight import misplaced_annotation, operator, owned_nat

pytestmark = pytest.mark.root

Before = Callable[[int], None]
"""What happens before a page's block, by its number."""
Scene = Callable[[Desk, ExitStack], Before]
DATABASE = "/var/lib/tortie/tortie.db"
CONFLIST = (ROOT / "conf" / "10-tortie.conflist").read_text()
ELSEWHERE = {("admission.md", 4): "asked of a server with the policy: test_admission_policies"}


def nothing(_: int) -> None:
    """Nothing happens."""


def served(desk: Desk, server: ApiServer) -> None:
    """The reader's kubeconfig."""
    path = desk.root / "kubeconfig"
    kubeconfig.write(path, kubeconfig.render(server.url, server.tokens.users(), None))
    desk.environ["KUBECONFIG"] = str(path)


def with_vms(desk: Desk, stack: ExitStack, site: Site) -> ApiServer:
    """A cluster with KubeVirt, whose network is kept in its API."""
    server = desk.inside(lambda: stack.enter_context(vm_api(hooks=True)))
    put_site(server, site)
    served(desk, server)
    desk.environ |= {"DATASTORE_TYPE": "kubernetes", "CALICO_API_GROUP": "projectcalico.org/v3"}
    return server


def with_sqlite(desk: Desk, stack: ExitStack, *pods: str) -> IPAMClient:
    """A host's own datastore, with a pool and some pods."""
    store = stack.enter_context(closing(SqliteDatastore(desk.place(DATABASE))))
    desk.environ |= {"DATASTORE_TYPE": "sqlite", "TORTIE_SQLITE_PATH": DATABASE}
    desk.file("manifests/pool.yaml", yaml.safe_dump_all(POOLS))
    done = desk.run("tortiectl apply -f manifests/")
    assert done.returncode == 0, done.stderr
    client = IPAMClient(store, "n1", now=lambda: datetime.now(UTC))
    for pod in pods:
        now = datetime.now(UTC)
        owner = pod_owner(namespace="shop", pod=pod, node="n1", timestamp=now)
        client.assign(f"k8s-pod-network.c-{pod}", owner, AddressRequest())
    return client


def pool(name: str, cidr: str, size: int) -> dict[str, Any]:
    """A pool, as its manifest."""
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": "IPPool",
        "metadata": {"name": name},
        "spec": {"cidr": cidr, "blockSize": size},
    }


POOLS = (pool("pool-a", "10.65.0.0/16", 30), pool("pool-6", "fd00:10::/64", 122))
GROUP = "admissionregistration.k8s.io"


def admission(desk: Desk, stack: ExitStack) -> Before:
    """A server that keeps the policy and its binding."""
    made = [
        ServedKind(GROUP, "v1", plural, kind, namespaced=False, builtin=True)
        for plural, kind in (
            ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
            ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
        )
    ]
    api = Api(catalogue=Catalogue((*KINDS, *made)))
    served(desk, stack.enter_context(ApiServer(api=api)))
    desk.where = ROOT
    return nothing


def apiserver(desk: Desk, stack: ExitStack) -> Before:
    """Its port is the desk's own."""
    desk.alone = True
    return nothing


def bgp(desk: Desk, stack: ExitStack) -> Before:
    """A cluster with two ToRs."""
    with_sqlite(desk, stack)
    peers = [
        {
            "apiVersion": "projectcalico.org/v3",
            "kind": "BGPPeer",
            "metadata": {"name": name},
            "spec": {"peerIP": address, "asNumber": 65000},
        }
        for name, address in (("tor", "172.31.1.1"), ("tor6", "fd00::1"))
    ]
    node = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "spec": {"bgp": {"ipv4Address": "172.31.1.2/24", "ipv6Address": "fd00::2/64"}},
    }
    desk.file("peers.yaml", yaml.safe_dump_all([*peers, node]))
    done = desk.run("tortiectl apply -f peers.yaml")
    assert done.returncode == 0, done.stderr
    return nothing


def cni(desk: Desk, stack: ExitStack) -> Before:
    """A node's root, and another one's."""
    with_sqlite(desk, stack)
    return nothing


def gc(desk: Desk, stack: ExitStack) -> Before:
    """A cluster that leaks nothing at first; then a pod and a node are gone."""
    server = stack.enter_context(kubernetes_api())
    served(desk, server)
    desk.environ |= {"DATASTORE_TYPE": "sqlite", "TORTIE_SQLITE_PATH": DATABASE}
    store = stack.enter_context(closing(SqliteDatastore(desk.place(DATABASE))))
    town = furnish(store, server)
    town.stop("web")

    def before(number: int) -> None:
        if number == 2:
            town.start("job", "n2")
            town.remove_pod("job")
            town.remove_node("n2")

    return before


def node(desk: Desk, stack: ExitStack) -> Before:
    """Nothing but a shell."""
    return nothing


def page(desk: Desk, stack: ExitStack) -> Before:
    """A cluster, and a page of it that is looked at, at the port that the page names."""
    desk.take_network(stack)
    with_vms(desk, stack, healthy(vms=3, nodes=3, now=datetime.now(UTC)))
    self_signed = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=n1"
        " -keyout /etc/tortie/page.key -out /etc/tortie/page.crt"
    )

    def before(number: int) -> None:
        if number == 2:
            process = desk.start("exec tortie-controllers page")
            stack.callback(process.communicate)
            stack.callback(process.kill)
            ready = "until curl -sf http://127.0.0.1:9093/ > page.html; do sleep 0.2; done"
            assert desk.run(ready).returncode == 0
        if number == 3:
            desk.file("/etc/tortie/page.tokens", "a-token-of-some-length-0123456789\n")
            assert desk.run(self_signed).returncode == 0

    return before


def policy_timeout(desk: Desk, stack: ExitStack) -> Before:
    """A cluster of Calico's operator, seen from a node."""
    site = healthy(vms=3, nodes=3, now=datetime.now(UTC))
    operator(site)
    with_vms(desk, stack, site)
    desk.file("/etc/cni/net.d/10-tortie.conflist", CONFLIST)
    return nothing


def simulator(desk: Desk, stack: ExitStack) -> Before:
    """The repository."""
    desk.where = ROOT
    return nothing


def tortiectl(desk: Desk, stack: ExitStack) -> Before:
    """A host's datastore with an address that nobody uses, an API, and another datastore."""
    server = stack.enter_context(vm_api(hooks=True))
    put_site(server, healthy(vms=1, nodes=1, now=datetime.now(UTC)))
    served(desk, server)
    with_sqlite(desk, stack, "web")
    for name, database in (("old", DATABASE), ("new", "/var/lib/tortie/new.db")):
        with closing(SqliteDatastore(desk.place(database))):
            spec = {"datastoreType": "sqlite", "sqlitePath": database}
            body = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": spec}
            desk.file(f"{name}.cfg", json.dumps(body))
    return nothing


def vm_operators(desk: Desk, stack: ExitStack) -> Before:
    """VMs, one of them with its annotation in the wrong place, in a pool with NAT; then with it in
    the right one, beside one that nothing starts again."""

    def site(*faults: Callable[[Site], None]) -> Site:
        made = healthy(vms=4, nodes=3, now=datetime.now(UTC))
        for fault in faults:
            fault(made)
        return made

    server = with_vms(desk, stack, site(misplaced_annotation, owned_nat, better_cpu))
    desk.file("saved.txt", LIBVIRT_9)

    def before(number: int) -> None:
        if number == 3:
            put_site(server, site(unowned))

    return before


def better_cpu(site: Site) -> None:
    """Node n2 requires of a target what the others do not have."""
    (node,) = [one for one in site.nodes if one["metadata"]["name"] == "n2"]
    for feature in ("avx512-vnni", "pku"):
        for what in ("cpu-feature", "host-model-required-features"):
            node["metadata"]["labels"][f"{what}.node.kubevirt.io/{feature}"] = "true"


def unowned(site: Site) -> None:
    """The last VM's instance was made by hand."""
    del site.vms[-1]
    site.vmis[-1]["spec"]["evictionStrategy"] = "None"
    site.vmis[-1]["metadata"].pop("ownerReferences", None)


SCENES: dict[str, Scene] = {
    "admission.md": admission,
    "apiserver.md": apiserver,
    "bgp.md": bgp,
    "cni.md": cni,
    "gc.md": gc,
    "node.md": node,
    "page.md": page,
    "policy-timeout.md": policy_timeout,
    "simulator.md": simulator,
    "tortiectl.md": tortiectl,
    "vm-operators.md": vm_operators,
}
MINE = [one for one in PAGES if STAGES.get(one.name) is Stage.DESK]


@pytest.mark.parametrize("path", MINE, ids=lambda one: one.name)
def test_a_page_does_what_it_says(path: Path, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with ExitStack() as stack:
        before = SCENES[path.name](desk, stack)
        for block in blocks(path):
            if block.runs and (block.page, block.number) not in ELSEWHERE:
                before(block.number)
                for command in commands(block):
                    desk.type(command)
