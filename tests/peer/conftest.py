"""An etcd for each test module, empty for each test, and Calico's command line on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from libtortie.datastore.etcd import EtcdDatastore
from tests.fakes.calico import Calicoctl, on_etcd
from tests.fakes.etcd_client import store_at
from tests.fakes.etcd_server import EtcdMember, etcd_members


@pytest.fixture(scope="module")
def shared_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    with etcd_members(tmp_path_factory.mktemp("etcd")) as (member,):
        yield member


@pytest.fixture
def member(shared_member: EtcdMember) -> EtcdMember:
    shared_member.remove_all()
    return shared_member


@pytest.fixture
def calicoctl(member: EtcdMember) -> Calicoctl:
    return Calicoctl(on_etcd(member))


@pytest.fixture
def store(member: EtcdMember) -> Iterator[EtcdDatastore]:
    with closing(store_at(member.url)) as opened:
        yield opened
