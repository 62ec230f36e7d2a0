"""Agent and plugin with all data in Kubernetes: real processes, an API that comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libtortie.datastore.crd_names import Group
from libtortie.kube.objects import KubeNode, Pod
from libtortie.model.ipam import IPAMConfig
from libtortie.model.keys import IPAMConfigKey
from tests.fakes.agent_world import NODE
from tests.fakes.called_node import HANDLE, CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.kubernetes_store import put_object
from tests.fakes.node_process import until

pytestmark = pytest.mark.root


class KubernetesNode(CalledNode):
    """A node whose API holds the data, too; what is stored is looked at in the server itself."""

    def __init__(self, root: Path, group: Group) -> None:
        super().__init__(root, fresh_name("ak"), datastore_type="kubernetes")
        self._named, self._group = group.value, group.value.partition("/")[0]
        self.config["calico_api_group"] = group.value
        self.world.kube.put({"metadata": {"name": NODE}}, KubeNode)
        spec = {"cidr": "10.65.0.0/24", "blockSize": 26, "nodeSelector": "all()"}
        put_object(self.server, f"ippools.{self._group}", {"metadata": {"name": "p"}, "spec": spec})

    def begin(self, verb: str, pod: str, container: str, **settings: Any) -> Any:
        """As a runtime with the node's own configuration."""
        own = {"datastore_type": "kubernetes", "calico_api_group": self._named}
        return super().begin(verb, pod, container, **own | settings)

    def objects(self, plural: str) -> dict[str, Any]:
        """The specs of IPAM's objects, by name."""
        found, _ = self.server.api.store.list(f"{plural}.{self._group}")
        return {body["metadata"]["name"]: body["spec"] for body in found}

    def allocated(self) -> int:
        """Addresses that are given, in all blocks."""
        blocks = self.objects("ipamblocks").values()
        return sum(index is not None for spec in blocks for index in spec["allocations"])

    def notes(self, pod: str) -> dict[str, str]:
        """A pod's annotations."""
        return self.world.kube.get(Pod, pod, "default").metadata.annotations


@pytest.fixture(params=list(Group))
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KubernetesNode]:
    (tmp_path / "node").mkdir()
    made = KubernetesNode(tmp_path / "node", request.param)
    try:
        yield made
    finally:
        made.close()


def test_pods_come_and_go_while_the_api_does(node: KubernetesNode) -> None:
    node.start()
    core = node.world.kube.get(KubeNode, NODE).metadata.annotations
    assert core["projectcalico.org/IPv4Address"] == "172.31.1.2/24"
    for pod in ("one", "two"):
        node.world.put_pod(pod, spec={"nodeName": NODE})
    first = node.done("ADD", "one", "c1").address
    assert node.status("one"), "policy was not waited for"
    assert node.notes("one")["cni.projectcalico.org/podIPs"] == f"{first}/32"
    assert node.done("ADD", "one", "c1", program="tortie-cni").address == first
    node.server.stop()
    assert node.call("ADD", "two", "c2").code == 11
    assert node.status("one"), "a lost API deletes nothing"
    node.inside(node.server.start)
    second = node.done("ADD", "two", "c2").address
    assert second != first
    until("policy of two", lambda: node.status("two"))
    assert node.stop() == 0
    node.done("DEL", "one", "c1", program="tortie-cni")
    node.start()
    until("the status of one goes", lambda: not node.status("one"))
    assert node.status("two")
    node.done("DEL", "two", "c2")
    assert node.notes("two")["cni.projectcalico.org/podIP"] == ""
    assert node.allocated() == 0
    assert node.objects("ipamhandles") == {}
    assert node.lines("agent_failed") == []


def test_a_vm_keeps_its_address_through_a_reboot_until_persistence_is_off(
    node: KubernetesNode,
) -> None:
    node.start()
    node.world.put_vm()
    node.world.put_launcher("virt-launcher-db-1", spec={"nodeName": NODE})
    first = node.done("ADD", "virt-launcher-db-1", "c1").address
    node.done("DEL", "virt-launcher-db-1", "c1")
    node.world.kube.remove(Pod, "virt-launcher-db-1", "default")
    assert list(node.objects("ipamhandles")) == [HANDLE]
    node.world.put_vm(generation=2)
    node.world.put_launcher("virt-launcher-db-2", generation=2, spec={"nodeName": NODE})
    assert node.done("ADD", "virt-launcher-db-2", "c2").address == first
    node.done("DEL", "virt-launcher-db-2", "c2")
    assert node.allocated() == 1


def test_an_agent_with_another_datastore_says_what_to_set(node: KubernetesNode) -> None:
    node.config["datastore_type"] = "sqlite"
    node.config["calico_api_group"] = ""
    node.store.create(IPAMConfigKey(), IPAMConfig())
    node.start()
    node.world.put_pod("one", spec={"nodeName": NODE})
    answer = node.call("ADD", "one", "c1", datastore_type=None)
    assert answer.code == 7
    assert "set datastore_type to it" in answer.body["msg"] + str(answer.body.get("details"))
