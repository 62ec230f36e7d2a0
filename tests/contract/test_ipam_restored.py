"""An etcd that was put back to a backup: revisions begin again below those that clients know."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from ipam.client import AddressRequest, IPAMClient
from ipam.reads import Reads, prepare
from ipam.transaction import Transaction
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.errors import NoFreeAddresses
from libtortie.model.keys import Kind
from tests.fakes.etcd_server import EtcdMember, etcd_members
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


def remember(client: IPAMClient, store: EtcdDatastore) -> None:
    """Read what an allocation would, as one does that is refused."""
    prepare(Transaction(store, client._loop.cache), "n1", [Reads("x", allocates=True)])


def test_a_reservation_made_after_a_restore_is_kept(tmp_path: Path) -> None:
    with etcd_members(tmp_path) as (member,), closing(EtcdDatastore(EtcdConfig(member.url))) as st:
        world = World(st).pools(pool("a", "10.0.0.0/24", blockSize=26))
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


def test_what_was_given_after_the_backup_is_given_once_more_and_no_address_twice(
    tmp_path: Path,
) -> None:
    with etcd_members(tmp_path) as (member,), closing(EtcdDatastore(EtcdConfig(member.url))) as st:
        world = World(st).pools(pool("a", "10.0.0.0/24", blockSize=26))
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
