"""STATUS says whether ADD could be served, and changes nothing."""

from __future__ import annotations

import pytest

from cni_plugin import status
from cni_plugin.errors import InvalidConfig, NotReady
from cni_plugin.plugin import Plugin
from ipam.client import AddressRequest
from libtortie.errors import Unauthorized, Unavailable
from libtortie.kube.objects import Pod
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import ClusterInformation, IPPool
from tests.fakes.cni_world import CniWorld, conf


def refused(world: CniWorld, text: str, code: int = 50, **settings: object) -> None:
    with pytest.raises(NotReady, match=text) as caught:
        world.node().plugin.cmd_status(conf(**settings))
    assert caught.value.code == code


def test_all_is_well_and_nothing_changes(world: CniWorld) -> None:
    world.node().plugin.cmd_status(conf())
    changes = ("create", "update", "delete", "commit")
    assert world.faults.seen, "it asked"
    assert not [step for step in world.faults.seen if step.startswith(changes)]


def test_no_agent(world: CniWorld) -> None:
    node = world.node()
    node.gate.is_ready = False
    refused(world, "tortie-node")


def test_no_rules_any_more_while_workloads_are_there(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.gate.is_ready = False
    refused(world, "tortie-node", code=51)
    node.kernel.delete_link(next(iter(node.veths())))
    refused(world, "tortie-node", code=50)


def test_an_agent_that_is_away_for_longer_than_a_restart(world: CniWorld) -> None:
    """The fallback would attach the pod, and nobody would let a packet of it pass."""
    node = world.node()
    back = {"at": 0.0}
    ports = node.ports(agent_listens=lambda: world.clock.elapsed >= back["at"])
    for back["at"] in (0.0, 3.0):
        Plugin(ports).cmd_status(conf())
    back["at"] = float("inf")
    with pytest.raises(NotReady, match=r"no agent listens.*tortie-node"):
        Plugin(ports).cmd_status(conf())
    assert world.clock.elapsed == pytest.approx(3.0 + status.AWAY_SECONDS, abs=0.5)


def test_a_locked_datastore(world: CniWorld) -> None:
    key = ResourceKey(Kind.CLUSTER_INFORMATION, "default")
    locked = ClusterInformation.model_validate(
        {"metadata": {"name": "default"}, "spec": {"datastoreReady": False}}
    )
    world.memory.create(key, locked)
    refused(world, "the datastore is locked")
    world.put_pod("web-0")
    with pytest.raises(Unavailable, match="not ready"):
        world.node().add("web-0", "c1")


def test_a_silent_datastore(world: CniWorld) -> None:
    world.memory.close()
    refused(world, "no address could be assigned")


def test_no_pool_of_a_family_that_pods_get(world: CniWorld) -> None:
    refused(world, "IPv6", ipam={"assign_ipv6": True})
    refused(world, "nowhere", ipam={"ipv4_pools": ["nowhere"]})


def test_addresses_are_used_up(world: CniWorld) -> None:
    pool = IPPool.model_validate(
        {"metadata": {"name": "tiny"}, "spec": {"cidr": "10.66.0.0/31", "blockSize": 31}}
    )
    world.memory.create(pool.key, pool)
    tiny = {"ipv4_pools": ["tiny"]}
    world.node().plugin.cmd_status(conf(ipam=tiny))
    for number in range(2):
        want = AddressRequest(ipv4_pools=("tiny",))
        world.node().ipam.assign(f"net.c{number}", {"node": "node1"}, want)
    refused(world, "no address could be assigned", ipam=tiny)


def test_pools_for_some_namespaces_only_are_not_judged(world: CniWorld) -> None:
    """Whose pods come next is not known."""
    record = world.memory.get(ResourceKey(Kind.IP_POOL, "pool-4"))
    pool = record.value
    assert isinstance(pool, IPPool)
    spec = pool.spec.model_copy(update={"namespace_selector": "team == 'a'"})
    changed = pool.model_copy(update={"spec": spec})
    world.memory.update(record.key, changed, record.revision)
    world.node().plugin.cmd_status(conf())


@pytest.mark.parametrize("error", [Unavailable("silence"), Unauthorized("pods: get refused")])
def test_the_api_cannot_be_used(world: CniWorld, error: Exception) -> None:
    def broken(model: object, name: str, namespace: str = "") -> Pod:
        raise error

    world.kube.get = broken  # type: ignore[method-assign,assignment]  # the API's fault
    refused(world, f"API cannot be used: {error}")


def test_a_bad_configuration_is_that_and_not_a_status(world: CniWorld) -> None:
    with pytest.raises(InvalidConfig):
        world.node().plugin.cmd_status(conf(policy_setup_timeout_seconds=-1))
