"""A command that is killed after any write, and given again, ends as one that was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Create, Datastore, Delete, Op, Record, Update, Value
from libtortie.errors import TortieError
from libtortie.model.ipam import Block
from libtortie.model.keys import (
    Affinities,
    Blocks,
    Handles,
    Key,
    Kind,
    ResourceKey,
    Resources,
    Scope,
)
from libtortie.model.resources import IPPool, Resource
from libtortie.model.written import checked
from tests.fakes.ctl_stores import thing
from tests.fakes.faulty_store import FaultyStore, Killed
from tortiectl import migrating, migration_file
from tortiectl.manifests import Wanted
from tortiectl.readiness import cluster_of, set_ready
from tortiectl.removing import remove_all
from tortiectl.splitting import find, parts_of, split
from tortiectl.writing import Verb, write_all

POOL = ResourceKey(Kind.IP_POOL, "pool-a")
NODE = ResourceKey(Kind.NODE, "n1")


class Mortal(FaultyStore):
    """Ends the process after so many writes; `stepwise`: within a commit, too."""

    def __init__(self, inner: Datastore, writes: int, *, stepwise: bool) -> None:
        super().__init__(inner)
        self.left, self._stepwise = writes, stepwise

    @property
    def atomic(self) -> bool:
        return not self._stepwise

    def create(self, key: Key, value: Value) -> Record:
        done = self.inner.create(key, value)
        self._wrote()
        return done

    def update(self, key: Key, value: Value, revision: str) -> Record:
        done = self.inner.update(key, value, revision)
        self._wrote()
        return done

    def delete(self, key: Key, revision: str | None = None) -> None:
        self.inner.delete(key, revision)
        self._wrote()

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        if not self._stepwise:
            done = self.inner.commit(ops)
            self._wrote()
            return done
        self.inner.commit([op for op in ops if not isinstance(op, Create | Update | Delete)])
        found: list[Record | None] = []
        for op in ops:
            match op:
                case Create(key, value):
                    found.append(self.create(key, value))
                case Update(key, value, revision):
                    found.append(self.update(key, value, revision))
                case Delete(key, revision):
                    self.delete(key, revision)
                    found.append(None)
                case _:
                    found.append(None)
        return tuple(found)

    def _wrote(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def resource(kind: Kind, name: str, namespace: str = "", **spec: object) -> Resource:
    found, problems = checked(kind, thing(kind, name, namespace, **spec))
    assert not problems
    assert found is not None
    return found


def filled() -> MemoryDatastore:
    """A pool, a node with what is its own, a pod's address and a VM's."""
    store = MemoryDatastore()
    for one in (
        resource(Kind.IP_POOL, "pool-a", cidr="10.65.0.0/26", blockSize=30),
        resource(Kind.NODE, "n1"),
        resource(Kind.NODE, "n2"),
        resource(Kind.HOST_ENDPOINT, "n1-eth0", node="n1", interfaceName="eth0"),
        resource(Kind.BGP_PEER, "of-n1", node="n1", peerIP="192.0.2.1"),
        resource(Kind.FELIX_CONFIGURATION, "node.n1"),
    ):
        assert write_all(store, Verb.CREATE, [Wanted("", one)]).errors == []
    client = IPAMClient(store, "n1", now=lambda: datetime.now(UTC))
    for number in range(6):
        vm = {"vmi_name": "vm"} if number == 5 else {}
        owner = pod_owner(
            namespace="shop", pod=f"p{number}", node="n1", timestamp=datetime.now(UTC), **vm
        )
        handle = "net.vmi.shop.vm" if vm else f"net.p{number}"
        client.assign(handle, owner, AddressRequest())
    return store


def contents(store: Datastore) -> list[str]:
    """What is there: resources and handles by name, blocks by how much is held."""
    scopes: list[Scope] = [*map(Resources, Kind), Handles()]
    found = [str(record.key) for scope in scopes for record in store.list(scope).records]
    found += ["affinity"] * len(store.names(Affinities()))
    for record in store.list(Blocks(4)).records:
        block = record.value
        assert isinstance(block, Block)
        held = sum(index is not None for index in block.allocations)
        found.append(f"block of {block.affinity} with {held} of {block.cidr.prefixlen}")
    return found


def differences(found: list[str], wanted: list[str]) -> list[str]:
    """Affinities and blocks are counted: which ranges a node took is chance."""
    return sorted((Counter(found) - Counter(wanted)) + (Counter(wanted) - Counter(found)))


def removes(key: ResourceKey) -> Callable[[Datastore], None]:
    def run(store: Datastore) -> None:
        outcome = remove_all(store, [key], skip_absent=True)
        if outcome.errors:
            raise TortieError(outcome.errors[0][1])

    return run


def splits(store: Datastore) -> None:
    set_ready(store, False)
    if POOL in store.snapshot([POOL]).records:
        record = find(store, "", "pool-a")
        assert isinstance(record.value, IPPool)
        split(store, record, parts_of(record.value, 4))


def exported_text(store: Datastore) -> str:
    pieces: list[str] = []
    for kind, records in migrating.resources_of(store, everything=False):
        pieces += migration_file.resources_text(kind, records)
    pieces += ["===", migration_file.cluster_text(cluster_of(store)[0]), "==="]
    pieces += migration_file.ipam_text(migrating.ipam_of(store))
    return "\n".join(pieces)


CARRIED = migration_file.parse(exported_text(filled()), "test")


def imports(store: Datastore) -> None:
    migrating.import_all(store, CARRIED, "etcdv3", lambda count: None)


# A node is not deleted in the one datastore that has no transactions: it is Kubernetes' own.
COMMANDS: dict[str, tuple[Callable[[], MemoryDatastore], Callable[[Datastore], None]]] = {
    "delete a pool": (filled, removes(POOL)),
    "delete a node": (filled, removes(NODE)),
    "split a pool": (filled, splits),
    "import": (MemoryDatastore, imports),
}


@pytest.mark.parametrize(
    ("name", "stepwise"),
    [(name, stepwise) for name in COMMANDS for stepwise in (False, True)
     if (name, stepwise) != ("delete a node", True)],
)  # fmt: skip
def test_killed_after_any_write_and_given_again(name: str, stepwise: bool) -> None:
    start, command = COMMANDS[name]
    whole = start()
    counted = Mortal(whole, 10**9, stepwise=stepwise)
    command(counted)
    writes = 10**9 - counted.left
    assert writes > 1
    wanted = contents(whole)
    for place in range(1, writes + 1):
        store = start()
        with pytest.raises(Killed):
            command(Mortal(store, place, stepwise=stepwise))
        command(Mortal(store, 10**9, stepwise=stepwise))
        assert differences(contents(store), wanted) == [], f"after write {place}"
