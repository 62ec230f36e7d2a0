"""An etcd that was put back to a backup: revisions begin again below those that clients know."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from ipam.client import AddressRequest, IPAMClient
from ipam.reads import Reads, prepare
from ipam.transaction import Transaction
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.etcd_rpc import Connection
from libtortie.datastore.port import Op, Record
from libtortie.errors import NoFreeAddresses
from libtortie.model.keys import Blocks, Kind, ResourceKey
from tests.fakes.etcd_server import EtcdMember, etcd_members
from tests.fakes.ipam_batches import together
from tests.fakes.ipam_world import World, plain_pod, pool

V4 = AddressRequest()


def back_up(member: EtcdMember, directory: Path) -> None:
    """A copy of its data, made while it is down."""
    member.stop()
    shutil.copytree(directory / member.name, directory / "backup")
    member.start()
    member.wait_healthy()


def restore(member: EtcdMember, directory: Path) -> None:
    """Everything since the backup never was."""
    member.stop()
    shutil.rmtree(directory / member.name)
    shutil.copytree(directory / "backup", directory / member.name)
    member.start()
    member.wait_healthy()


@contextmanager
def a_store(directory: Path) -> Iterator[tuple[EtcdMember, EtcdDatastore, World]]:
    """An etcd, its client, and one pool in it."""
    with etcd_members(directory) as (member,), closing(EtcdDatastore(EtcdConfig(member.url))) as st:
        yield member, st, World(st).pools(pool("a", "10.0.0.0/24", blockSize=26))


@contextmanager
def reservation_back(
    directory: Path, reserved: str
) -> Iterator[tuple[EtcdMember, EtcdDatastore, World, IPAMClient]]:
    """A client that remembers no reservation `r`, which a restore has just brought back.

    It is older than another that is still there, so no revision of the list tells.
    """
    with a_store(directory) as (member, store, world):
        client = world.client()
        client.assign("before", plain_pod("before"), V4)
        world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": [reserved]})
        world.resource(Kind.IP_RESERVATION, "s", {"reservedCIDRs": ["192.0.2.0/24"]})
        back_up(member, directory)
        store.delete(ResourceKey(Kind.IP_RESERVATION, "r"))
        remember(client, store)
        restore(member, directory)
        yield member, store, world, client


def remember(client: IPAMClient, store: EtcdDatastore) -> None:
    """Read what an allocation would, as one does that is refused."""
    prepare(Transaction(store, client._loop.cache), "n1", [Reads("x", allocates=True)])


def test_a_reservation_made_after_a_restore_is_kept(tmp_path: Path) -> None:
    with a_store(tmp_path) as (member, st, world):
        world.client().assign("before", plain_pod("before"), V4)
        back_up(member, tmp_path)
        for _ in range(30):
            member.put("/elsewhere", b"")
        client = world.client()
        remember(client, st)
        restore(member, tmp_path)
        world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": ["10.0.0.0/24"]})
        with pytest.raises(NoFreeAddresses):
            client.assign("after", plain_pod("after"), V4)


@pytest.mark.parametrize("seen", [False, True])
def test_a_reservation_that_came_back_with_a_restore_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """If the answer to the allocation itself tells of the restore, as behind a proxy that keeps
    its connections, it is taken back."""
    monkeypatch.setattr(Connection, "over", False)
    commits = list[Sequence[Op]]()
    with reservation_back(tmp_path, "10.0.0.0/24") as (_, st, world, client):
        if seen:
            assert len(client.by_handle("before")) == 1
        commit = st.commit

        def counted(ops: Sequence[Op]) -> tuple[Record | None, ...]:
            commits.append(ops)
            return commit(ops)

        monkeypatch.setattr(st, "commit", counted)
        with pytest.raises(NoFreeAddresses):
            client.assign("after", plain_pod("after"), V4)
        assert len(commits) == (0 if seen else 2), "made and taken back"
        assert world.allocated() == {"before": 1}
        world.audit()
        st.delete(ResourceKey(Kind.IP_RESERVATION, "r"))
        assert len(client.assign("after", plain_pod("after"), V4)) == 1


def test_a_restored_store_that_is_written_to_beyond_what_was_seen_is_told_apart(
    tmp_path: Path,
) -> None:
    """No number that etcd says is lower than one that it said: cluster, revision and term fit."""
    with reservation_back(tmp_path, "10.0.0.0/24") as (member, st, _, client):
        for _ in range(30):
            member.put("/elsewhere", b"")
        with pytest.raises(NoFreeAddresses):
            client.assign("after", plain_pod("after"), V4)
        st.delete(ResourceKey(Kind.IP_RESERVATION, "r"))
        assert len(client.assign("after", plain_pod("after"), V4)) == 1


def test_another_block_of_the_very_revision_that_is_remembered_is_not_overwritten(
    tmp_path: Path,
) -> None:
    """What was given after the backup and what others gave after the restore look the same."""
    with a_store(tmp_path) as (member, store, world):
        client = world.client()
        client.assign("before", plain_pod("before"), V4)
        back_up(member, tmp_path)
        client.assign("lost", plain_pod("lost"), V4)
        remembered = revisions(store)
        restore(member, tmp_path)
        with closing(EtcdDatastore(EtcdConfig(member.url))) as another:
            World(another).client().assign("other", plain_pod("other"), V4)
            assert revisions(another) == remembered
        client.assign("after", plain_pod("after"), V4)
        assert world.allocated() == {"before": 1, "other": 1, "after": 1}
        world.audit()


def revisions(store: EtcdDatastore) -> list[tuple[object, str]]:
    """Of every block."""
    return [(record.key, record.revision) for record in store.list(Blocks(4)).records]


def test_callers_of_one_batch_after_a_restore_each_decide_anew(tmp_path: Path) -> None:
    with reservation_back(tmp_path, "10.0.0.0/25") as (_, _, world, client):
        calls: list[Callable[..., object]] = [
            lambda client, h=f"h{n}": client.assign(h, plain_pod(h), V4) for n in range(4)
        ]
        got = [one[0].address for one in together(client, *calls) if isinstance(one, tuple)]
        assert len(set(got)) == 4
        assert not [one for one in got if one in ip_network("10.0.0.0/25")]
        world.audit()


def test_what_was_given_after_the_backup_is_given_once_more_and_no_address_twice(
    tmp_path: Path,
) -> None:
    with a_store(tmp_path) as (member, _, world):
        client, other = world.client(), world.client("n2")
        client.assign("before", plain_pod("before"), V4)
        back_up(member, tmp_path)
        for number in range(3):
            client.assign(f"lost{number}", plain_pod(f"lost{number}"), V4)
            other.assign(f"other{number}", plain_pod(f"other{number}", node="n2"), V4)
        restore(member, tmp_path)
        assert world.allocated() == {"before": 1}
        for number in range(3):
            assert other.release(f"other{number}") == ()
            client.assign(f"lost{number}", plain_pod(f"lost{number}"), V4)
            other.assign(f"new{number}", plain_pod(f"new{number}", node="n2"), V4)
        assert sum(world.allocated().values()) == 7
        world.audit()
