"""Every way to pretend to be a VM's pod, against a real agent: refused, told, counted; the VM keeps
what it has."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from libtortie.errors import Unavailable
from tests.fakes.called_node import HANDLE, CalledNode
from tests.fakes.cni_world import owner_reference
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

PORT = 9092
FORGED = "virt-launcher-db-forged"
IDENTITY, RIVAL = (101, "identity"), (103, "address_of_another")
RIGHT = owner_reference("VirtualMachineInstance", "db", "vmi-db-1")
JOB = "kubevirt.io/migrationJobUID"


def references(**changes: Any) -> dict[str, Any]:
    """A launcher whose owner reference is not what KubeVirt's controller makes."""
    return {"ownerReferences": [{**RIGHT, **changes}]}


FORGERIES: dict[str, tuple[dict[str, Any], tuple[int, str]]] = {
    "name and label alone": ({"ownerReferences": []}, IDENTITY),
    "the UID of another": (references(uid="vmi-db-0"), IDENTITY),
    "no UID": (references(uid=""), IDENTITY),
    "no such instance": (references(name="ghost"), IDENTITY),
    "not its controller": (references(controller=False), IDENTITY),
    "another API": (references(apiVersion="example.org/v1"), IDENTITY),
    "two references": ({"ownerReferences": [RIGHT, RIGHT]}, IDENTITY),
    "another namespace's instance": (references(name="theirs", uid="vmi-theirs-1"), IDENTITY),
    "the job of another VM's migration": ({"labels": {JOB: "vmim-of-web"}}, IDENTITY),
    "a correct UID": ({}, RIVAL),
    "a correct UID and a migration that is over": ({"labels": {JOB: "vmim-over"}}, RIVAL),
    "a correct UID and a migration that never was": ({"labels": {JOB: "vmim-no"}}, RIVAL),
    "a job's label on what is no launcher": (
        {"labels": {JOB: "vmim-m1", "kubevirt.io": "x"}},
        RIVAL,
    ),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalledNode]:
    """A node with an agent; the VM runs on another one, and migrations of its and others live."""
    made = CalledNode(tmp_path_factory.mktemp("fp") / "node", fresh_name("fp"), metrics_port=PORT)
    with closing(made):
        made.address = made.vm_elsewhere()
        made.world.put_vm("web")
        made.world.put_vm("theirs", "other")
        made.world.put_migration("m1", phase="Running")
        made.world.put_migration("of-web", "web", phase="Running")
        made.world.put_migration("over", phase="Succeeded")
        made.start()
        yield made


def scrape() -> str:
    """What the agent's port says. Raises `Unavailable` before it listens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{PORT}/metrics", timeout=60) as answer:
            return str(answer.read().decode())
    except OSError as error:
        raise Unavailable(str(error)) from error


def counted(node: CalledNode, reason: str) -> float:
    """Refusals that the agent counted for a reason."""
    start = f'tortie_cni_refusals_total{{reason="{reason}"}} '
    lines = until("metrics are served", lambda: node.inside(scrape)).splitlines()
    return sum(float(one.removeprefix(start)) for one in lines if one.startswith(start))


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_pod_is_refused_told_and_counted(node: CalledNode, what: str) -> None:
    pod, (code, reason) = FORGERIES[what]
    node.world.put_launcher(FORGED, **pod)
    before, number, told = node.left(), counted(node, reason), len(node.lines("cni_error"))
    assert node.owners() == {node.address: (HANDLE, "virt-launcher-db-0", "")}
    answer = node.call("ADD", FORGED, "c1")
    assert answer.code == code, answer.body
    assert counted(node, reason) == number + 1
    (line,) = node.lines("cni_error")[told:]
    assert (line["namespace"], line["pod"], line["code"]) == ("default", FORGED, code)
    assert node.left() == before
    node.done("DEL", FORGED, "c1")
    assert node.left() == before
    assert node.owners() == {node.address: (HANDLE, "virt-launcher-db-0", "")}


def test_the_table_is_of_forgeries(node: CalledNode) -> None:
    """What is not forged is served: the refusals above are for what they change."""
    node.world.put_launcher("virt-launcher-db-real", migration="m1")
    assert node.done("ADD", "virt-launcher-db-real", "c9").address == node.address
    node.done("DEL", "virt-launcher-db-real", "c9")
