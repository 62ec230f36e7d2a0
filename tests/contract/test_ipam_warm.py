"""Clients that remember, and batches, over the stores that have transactions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from ipam.client import AddressRequest
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.model.keys import Kind, ResourceKey
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.faulty_store import Fault
from tests.fakes.ipam_world import World, plain_pod, pool
from tests.fakes.patience import PATIENCE
from tests.property.test_ipam_clients import Act, cluster_of, configs
from tests.property.test_ipam_warm_clients import Cluster, play, steps

EXAMPLES = 500 if os.environ.get("TORTIE_SOAK") else 10
STORES = ["etcd", "sqlite"]
CALLERS, ROUNDS = 16, 6
BOTH = AddressRequest(ipv6=True)


@contextmanager
def empty_store(kind: str, member: EtcdMember, directory: Path) -> Iterator[Datastore]:
    """A store with nothing in it."""
    if kind == "etcd":
        member.remove_all()
        with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
            yield store
        return
    for old in directory.glob("tortie.db*"):
        old.unlink()
    with closing(SqliteDatastore(directory / "tortie.db", shared=True)) as file:
        yield file


@pytest.mark.parametrize("kind", STORES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(config=configs, story=steps)
def test_what_is_remembered_never_gives_what_may_not_be_given(
    shared_etcd: EtcdMember,
    tmp_path: Path,
    kind: str,
    config: dict[str, object],
    story: list[tuple[str, list[Act], list[Fault], list[Act | str], list[str]]],
) -> None:
    with empty_store(kind, shared_etcd, tmp_path) as store:
        play(Cluster(cluster_of(World(store), config)), story)


@pytest.mark.parametrize("kind", STORES)
def test_a_crowd_on_one_node_while_the_operator_is_at_work(
    shared_etcd: EtcdMember, tmp_path: Path, kind: str
) -> None:
    """Each caller gets and gives back, and keeps its last; then a pool is disabled for good."""
    with empty_store(kind, shared_etcd, tmp_path) as store:
        pools = [pool("a", "10.0.0.0/24", blockSize=29), pool("b", "fd00::/64")]
        other = pool("z", "10.9.0.0/24", blockSize=29)
        world = World(store).pools(*pools, other)
        client, errors = world.client(), []
        halfway = threading.Barrier(CALLERS + 1)

        def work(lane: int) -> None:
            try:
                for number in range(ROUNDS):
                    handle = f"h{lane}-{number}"
                    client.assign(handle, plain_pod(handle), BOTH)
                    if number % 2:
                        client.release(f"h{lane}-{number - 1}")
                halfway.wait(PATIENCE)
                halfway.wait(PATIENCE)
                (v4, _) = client.assign(f"late{lane}", plain_pod(f"late{lane}"), BOTH)
                assert str(v4.address).startswith("10.9."), "given by a disabled pool"
            except BaseException as error:
                errors.append(error)
                halfway.abort()
                raise

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(CALLERS)]
        for thread in threads:
            thread.start()
        halfway.wait(PATIENCE)
        disabled = pool("a", "10.0.0.0/24", blockSize=29, disabled=True)
        record = store.get(ResourceKey(Kind.IP_POOL, "a"))
        store.update(record.key, disabled, record.revision)
        halfway.wait(PATIENCE)
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert errors == []
        world.audit()
        held = world.allocated()
        assert set(held.values()) == {2}
        assert len(held) == CALLERS * (ROUNDS // 2 + 1)
        for handle in held:
            client.release(handle)
        assert world.allocated() == {}
        assert world.handles() == {}
