"""The persistence toggle end to end on one machine: kubectl's patch and `tortiectl`, over HTTP and
SQLite, decide what the plugin does to real namespaces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cni_plugin.skel import PluginVerbs, dispatch
from cni_plugin.types import NetConf
from cni_plugin.undo import silent
from cni_plugin.wiring import SharedParts, build_plugin
from lab.apiserver.faults import Fault, Reject
from lab.apiserver.server import ApiServer
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Pod
from libtortie.linux import netns
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.netns import Netns
from libtortie.model.resources import IPPool, IPPoolSpec
from tests.fakes.cni_world import CniWorld
from tests.fakes.fresh_names import fresh_name
from tortiectl.cli import main

pytestmark = pytest.mark.root

REFUSAL = "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled"
CONF = {"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "tortie"}


class Site:
    """A node's namespace, its datastore, an API server, and the two ways to set the toggle."""

    def __init__(self, root: Path, server: ApiServer, world: CniWorld, stack: ExitStack) -> None:
        """`stack` takes away what is made here."""
        self.root, self.server, self.world = root, server, world
        self.prefix = fresh_name("p")
        stack.callback(self._delete_namespaces)
        self.node = self.make("node")
        self.store = SqliteDatastore(root / "t.db")
        stack.callback(self.store.close)
        pool = IPPool(metadata={"name": "p"}, spec=IPPoolSpec(cidr="10.65.0.0/24"))  # type: ignore[arg-type]  # pydantic reads the dict
        self.store.create(pool.key, pool)
        self.client = HttpKubeClient(direct(server.url))
        stack.callback(self.client.close)
        self.kernel = NetlinkKernel(f"/run/netns/{self.node}")
        stack.callback(self.kernel.close)

    def make(self, name: str) -> str:
        full = f"{self.prefix}-{name}"
        if not Path(f"/run/netns/{full}").exists():
            netns.create(full)
        return full

    def call(self, command: str, pod: str, container: str) -> tuple[int, Any]:
        """One CNI call, as the agent answers it."""
        env = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": f"/run/netns/{self.make(container)}",
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}",
        }
        answer = dispatch(env, json.dumps(CONF).encode(), self.build)
        return answer.code, json.loads(answer.stdout) if answer.stdout else None

    def build(self, conf: NetConf) -> PluginVerbs:
        fake = self.world.node()
        parts = SharedParts(
            store=self.store,
            kube=self.client,
            kernel=self.kernel,
            node="node1",
            table_ready=lambda: True,
            log=silent,
            namespaces=Netns(),
            locks=fake.locks,
            mtu_file=self.root / "mtu",
        )
        return build_plugin(conf, shared=parts)

    def address(self, pod: str, container: str) -> str:
        code, body = self.call("ADD", pod, container)
        assert code == 0, body
        return str(body["ips"][0]["address"])

    def stop(self, pod: str, container: str) -> None:
        assert self.call("DEL", pod, container)[0] == 0
        self.world.kube.remove(Pod, pod, "default")

    def kubectl(self, value: str | None) -> None:
        """kubectl patch ipamconfigurations default --type=merge -p '{"spec":{...}}'"""
        self.client.raw(
            "PATCH",
            "/apis/projectcalico.org/v3/ipamconfigurations/default",
            {"spec": {"kubeVirtVMAddressPersistence": value}},
            content_type="application/merge-patch+json",
        )

    def tortiectl(self, value: str) -> str:
        spec = {"sqlitePath": str(self.root / "t.db"), "k8sAPIEndpoint": self.server.url}
        body = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": spec}
        (self.root / "c.cfg").write_text(yaml.safe_dump(body))
        option = f"--kubevirt-ip-persistence={value}"
        command = ["ipam", "configure", option, "-c", str(self.root / "c.cfg")]
        done = CliRunner().invoke(main, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def _delete_namespaces(self) -> None:
        for entry in Path("/run/netns").glob(f"{self.prefix}-*"):
            with suppress(FileNotFoundError):
                netns.delete(entry.name)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    world = CniWorld(tmp_path)
    with ApiServer(api=world.kube.api) as server, ExitStack() as stack:
        made = Site(tmp_path, server, world, stack)
        made.client.raw(
            "POST",
            "/apis/projectcalico.org/v3/ipamconfigurations",
            {
                "apiVersion": "projectcalico.org/v3",
                "kind": "IPAMConfiguration",
                "metadata": {"name": "default"},
                "spec": {"strictAffinity": False},
            },
        )
        world.put_vm()
        world.put_launcher("virt-launcher-db-a")
        world.put_migration("m1")
        world.put_launcher("virt-launcher-db-b", migration="m1")
        yield made
    assert server.crashes == []


def links(site: Site, container: str) -> bool:
    inside = NetlinkKernel(f"/run/netns/{site.prefix}-{container}")
    try:
        return any(link.name == "eth0" for link in inside.links())
    finally:
        inside.close()


@pytest.mark.parametrize("off", ["kubectl", "tortiectl"])
@pytest.mark.parametrize("on", ["kubectl", "tortiectl"])
def test_whichever_way_it_is_set_it_is_one_setting(site: Site, off: str, on: str) -> None:
    had = site.address("virt-launcher-db-a", "c1")
    getattr(site, off)("Disabled")
    code, body = site.call("ADD", "virt-launcher-db-b", "c2")
    assert (code, body["code"], body["msg"]) == (1, 104, REFUSAL)
    assert not links(site, "c2")
    site.stop("virt-launcher-db-a", "c1")
    site.world.put_launcher("virt-launcher-db-c")
    ordinary = site.address("virt-launcher-db-c", "c3")
    assert ordinary != had
    site.stop("virt-launcher-db-c", "c3")
    getattr(site, on)("Enabled")
    site.world.put_launcher("virt-launcher-db-d")
    assert site.address("virt-launcher-db-d", "c4") == had
    code, body = site.call("ADD", "virt-launcher-db-b", "c5")
    assert (code, body["ips"][0]["address"]) == (0, had)
    assert links(site, "c5")


def test_an_api_that_refuses_to_say_makes_the_runtime_try_again(site: Site) -> None:
    site.tortiectl("Enabled")
    remove = site.server.faults.add(
        Fault(Reject(403, "Forbidden"), resource="ipamconfigurations.projectcalico.org")
    )
    code, body = site.call("ADD", "virt-launcher-db-a", "c1")
    assert (code, body["code"]) == (1, 11)
    assert "ipamconfigurations" in body["msg"]
    assert not links(site, "c1")
    site.world.put_pod("web-0")
    site.address("web-0", "c2")  # an ordinary pod is not asked about
    remove()
    site.address("virt-launcher-db-a", "c1")
