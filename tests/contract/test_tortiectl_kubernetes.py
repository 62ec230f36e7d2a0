"""`tortiectl` on a datastore in Kubernetes, with a kubeconfig, against a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ipam.client import AddressRequest, IPAMClient
from lab.apiserver import kubeconfig
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import KubeNode, Pod
from libtortie.kube.port import PatchType
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey, Kind
from tests.fakes.ipam_world import World, plain_pod, pool
from tests.fakes.kubernetes_store import kubernetes_api, put_object, stores_of
from tortiectl.cli import main


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as running:
        yield running


@pytest.fixture(params=list(Group))
def store(server: ApiServer, request: pytest.FixtureRequest) -> Iterator[KubernetesDatastore]:
    with stores_of(server, request.param) as (opened,):
        yield opened


class Ctl:
    """The command line on a server, told of it by the environment."""

    def __init__(self, server: ApiServer, root: Path, group: Group) -> None:
        self.client = HttpKubeClient(direct(server.url))
        self._config = root / "kubeconfig"
        kubeconfig.write(self._config, kubeconfig.render(server.url, {}, None))
        self._group = group

    def __call__(self, *args: str, ok: bool = True) -> Result:
        environ = {
            "DATASTORE_TYPE": "kubernetes",
            "KUBECONFIG": str(self._config),
            "CALICO_API_GROUP": self._group.value,
        }
        done = CliRunner().invoke(main, args, env=environ, catch_exceptions=False)
        assert done.exit_code == (0 if ok else 1), done.output
        return done

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "-o", "json").stdout)


@pytest.fixture
def ctl(server: ApiServer, store: KubernetesDatastore, tmp_path: Path) -> Iterator[Ctl]:
    made = Ctl(server, tmp_path, store.group)
    yield made
    made.client.close()


def test_resources_of_every_kind_are_shown(store: KubernetesDatastore, ctl: Ctl) -> None:
    world = World(store).pools(pool("a", "10.65.0.0/24", blockSize=30))
    world.resource(Kind.BGP_PEER, "rack", {"peerIP": "192.0.2.1", "asNumber": 65000})
    notes = {"projectcalico.org/IPv4Address": "192.0.2.11/24"}
    ctl.client.create(KubeNode, {"metadata": {"name": "n1", "annotations": notes}})
    ctl.client.create(Pod, {"metadata": {"name": "web", "namespace": "shop"}})
    assert "10.65.0.0/24" in ctl("get", "ippools").output
    assert ctl.json("get", "node", "n1")["spec"]["bgp"]["ipv4Address"] == "192.0.2.11/24"
    assert ctl.json("get", "bgppeer", "rack")["spec"]["peerIP"] == "192.0.2.1"
    assert "kns.shop" in ctl("get", "profiles").output
    assert ctl("get", "wep", "-A").output.splitlines()[1:] == []
    for kind in Kind:
        ctl("get", kind.plural, *(["-A"] if kind.namespaced else []))
    missing = ctl("get", "ippool", "aa", ok=False).output
    assert "resource does not exist: IPPool(aa) with error: <nil>; did you mean a" in missing


def test_an_object_that_cannot_be_read_is_named(
    server: ApiServer, store: KubernetesDatastore, ctl: Ctl
) -> None:
    World(store).pools(pool("a", "10.65.0.0/24"))
    resource = f"ippools.{store.group.value.partition('/')[0]}"
    put_object(server, resource, {"metadata": {"name": "bad"}, "spec": {"cidr": 5}})
    done = ctl("get", "ippools", ok=False)
    assert "10.65.0.0/24" in done.output
    assert f"{resource}/bad: IPPool 'bad': spec.cidr" in done.output


def test_ipam_show_and_configure(store: KubernetesDatastore, ctl: Ctl) -> None:
    World(store).pools(pool("a", "10.65.0.0/24", blockSize=30))
    node = IPAMClient(store, "n1", now=lambda: datetime.now(UTC))
    (got,) = node.assign("net.c1", plain_pod("web"), AddressRequest())
    assert "1 (0%)" in ctl("ipam", "show").output
    assert "10.65.0." in ctl("ipam", "show", "--show-blocks").output
    assert f"IP {got.address} is in use" in ctl("ipam", "show", f"--ip={got.address}").output
    ctl("ipam", "configure", "--strictaffinity=true", "--max-blocks-per-host=7")
    done = ctl("ipam", "configure", "--kubevirt-ip-persistence=Disabled").output
    assert "kubernetes http://" in done
    shown = ctl("ipam", "show", "--show-configuration").output
    assert "Disabled" in shown
    config = store.get(IPAMConfigKey()).value
    assert isinstance(config, IPAMConfig)
    assert (config.strict_affinity, config.max_blocks_per_host) == (True, 7)
    assert config.kubevirt_persistence is Persistence.DISABLED


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("kubeVirtVMAddressPersistence", "--kubevirt-ip-persistence=Disabled"),
        ("strictAffinity", "--strictaffinity=true"),
        ("ipCooldownSeconds", "--ip-cooldown-seconds=5"),
    ],
)
def test_a_setting_that_cannot_be_read_is_set_anew(
    server: ApiServer, store: KubernetesDatastore, ctl: Ctl, field: str, option: str
) -> None:
    plural = "ipamconfigs" if store.group is Group.V1 else "ipamconfigurations"
    resource = f"{plural}.{store.group.value.partition('/')[0]}"
    spec = {"strictAffinity": True, "autoAllocateBlocks": True, "maxBlocksPerHost": 3}
    body = {"metadata": {"name": "default"}, "spec": {**spec, field: "perhaps"}}
    put_object(server, resource, body)
    refused = ctl("ipam", "show", "--show-configuration", ok=False).output
    assert f"{resource}/default: " in refused
    assert f"`tortiectl ipam configure {option.partition('=')[0]}" in refused
    ctl("ipam", "configure", option)
    config = store.get(IPAMConfigKey()).value
    assert isinstance(config, IPAMConfig)
    assert (config.strict_affinity, config.max_blocks_per_host) == (True, 3)


def test_what_kubectl_patched_is_shown(store: KubernetesDatastore, ctl: Ctl) -> None:
    ctl("ipam", "configure", "--kubevirt-ip-persistence=Enabled")
    plural = "ipamconfigs" if store.group is Group.V1 else "ipamconfigurations"
    path = f"/apis/{store.group.value}/{plural}/default"
    patch = {"spec": {"kubeVirtVMAddressPersistence": "Disabled"}}
    if store.group is Group.V1:  # where both groups are served apart, the younger decides
        younger = "/apis/projectcalico.org/v3/ipamconfigurations/default"
        ctl.client.raw("DELETE", younger)
    ctl.client.raw("PATCH", path, patch, content_type=PatchType.MERGE.value)
    assert "Disabled" in ctl("ipam", "show", "--show-configuration").output


def test_a_server_without_the_crds_is_one_message(
    server: ApiServer, store: KubernetesDatastore, ctl: Ctl
) -> None:
    group = store.group.value.partition("/")[0]
    server.api.catalogue.hide(group)
    done = ctl("get", "ippools", ok=False).output
    assert f"does not serve ippools.{group}: install Calico's CustomResourceDefinition" in done
    assert len(done.strip().splitlines()) == 1
