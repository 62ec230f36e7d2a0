"""The Node resource: what is written, what stays, and who may have an address."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path
from typing import Any

import pytest

from felix_shim.node import (
    PAUSES,
    AddressTakenError,
    NodeFacts,
    claim,
    plan_node,
    register,
    without_addresses,
    write_files,
)
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.errors import Malformed
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import Node, parse_resource
from tests.fakes.faulty_store import Fault, FaultyStore, Killed, StepwiseStore

ADDRESS = IPv4Interface("192.0.2.11/24")


def facts(name: str = "node-1", **changes: Any) -> NodeFacts:
    return replace(NodeFacts(name, ADDRESS, "eth0"), **changes)


def stored_node(name: str = "node-1", **spec: Any) -> Node:
    body = {"kind": "Node", "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}}
    found = parse_resource(Kind.NODE, body | {"spec": spec})
    assert isinstance(found, Node)
    return found


def address_of(store: Datastore, name: str) -> str:
    value = store.get(ResourceKey(Kind.NODE, name)).value
    assert isinstance(value, Node)
    return value.spec.bgp.ipv4_address if value.spec.bgp else ""


def no_pause(_: float) -> None:
    pass


def test_fields_of_others_stay() -> None:
    before = stored_node(
        bgp={"ipv4Address": "192.0.2.9/24", "ipv4IPIPTunnelAddr": "10.0.0.1", "asNumber": 64999},
        orchRefs=[{"nodeName": "vm-7", "orchestrator": "openstack"}],
        ipv4VXLANTunnelAddr="10.0.0.2",
        interfaces=[{"name": "old", "addresses": []}],
        newerField={"kept": True},
    )
    made = facts(interfaces=(("eth0", ("192.0.2.11",)),), kube_node="node-1")
    after = plan_node(before, made)
    assert after.spec.to_wire() == {
        "bgp": {
            "asNumber": 64999,
            "ipv4Address": "192.0.2.11/24",
            "ipv4IPIPTunnelAddr": "10.0.0.1",
        },
        "orchRefs": [
            {"nodeName": "vm-7", "orchestrator": "openstack"},
            {"nodeName": "node-1", "orchestrator": "k8s"},
        ],
        "ipv4VXLANTunnelAddr": "10.0.0.2",
        "interfaces": [{"name": "eth0", "addresses": ["192.0.2.11"]}],
        "newerField": {"kept": True},
    }
    assert plan_node(after, made) == after


def test_a_configured_as_number_is_written() -> None:
    after = plan_node(stored_node(bgp={"asNumber": 64999}), facts(as_number=65001))
    assert after.spec.bgp is not None
    assert after.spec.bgp.as_number == 65001


def test_the_second_time_nothing_is_written() -> None:
    store = FaultyStore(MemoryDatastore())
    assert claim(store, facts(), no_pause)
    assert not claim(store, facts(), no_pause)
    assert len(store.commits) == 1


def test_a_conflict_is_decided_again_on_what_the_other_wrote() -> None:
    inner = MemoryDatastore()
    inner.create(facts().key, stored_node())

    def tunnel(_: object) -> None:
        record = inner.get(facts().key)
        if len(store.commits) == 1:
            inner.update(facts().key, stored_node(bgp={"ipv4IPIPTunnelAddr": "t"}), record.revision)

    store = FaultyStore(inner, before_commit=tunnel)
    assert register(store, facts())
    record = inner.get(facts().key).value
    assert isinstance(record, Node)
    assert record.spec.to_wire()["bgp"] == {
        "ipv4Address": "192.0.2.11/24",
        "ipv4IPIPTunnelAddr": "t",
    }


@pytest.mark.parametrize("fault", list(Fault))
def test_whatever_becomes_of_the_write_a_repeat_ends_well(fault: Fault) -> None:
    for kind in (FaultyStore, StepwiseStore):
        store = kind(MemoryDatastore(), [fault])
        for _ in range(2):
            try:
                claim(store, facts(), no_pause)
            except (Killed, Exception):
                continue
        assert address_of(store, "node-1") == "192.0.2.11/24"


def test_an_address_another_node_has_is_refused_before_anything_is_written() -> None:
    store = FaultyStore(MemoryDatastore())
    claim(store, facts("node-2", address=IPv4Interface("10.0.2.2/24")), no_pause)
    store.commits.clear()
    mine = facts("node-1", address=IPv4Interface("10.0.2.2/16"), link="nat0")
    with pytest.raises(AddressTakenError) as caught:
        claim(store, mine, no_pause)
    assert "10.0.2.2 (on nat0)" in str(caught.value)
    assert "node node-2" in str(caught.value)
    assert "skip-interface=nat0" in str(caught.value)
    assert store.commits == []


def test_a_node_that_restarts_is_not_its_own_rival() -> None:
    store = MemoryDatastore()
    for _ in range(2):
        claim(store, facts(), no_pause)


def test_an_unreadable_node_is_nobodys_rival() -> None:
    store = MemoryDatastore()
    store.put_raw("/calico/resources/v3/projectcalico.org/nodes/broken", b"{")
    assert claim(store, facts(), no_pause)


def test_an_unreadable_node_of_ones_own_is_left_alone() -> None:
    store = MemoryDatastore()
    store.put_raw("/calico/resources/v3/projectcalico.org/nodes/node-1", b"{")
    with pytest.raises(Malformed, match="nodes/node-1"):
        claim(store, facts(), no_pause)


def outcome(work: Callable[[], object]) -> bool:
    """Whether a claim was granted."""
    try:
        work()
    except AddressTakenError:
        return False
    return True


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_of_two_that_looked_before_either_wrote_at_most_one_stays(first: str, second: str) -> None:
    """The second goes all the way between the first's look and its write."""
    inner = MemoryDatastore()
    granted: dict[str, bool] = {}

    def overtake(_: object) -> None:
        if not granted:
            granted[second] = outcome(lambda: claim(inner, facts(second), no_pause))

    store = FaultyStore(inner, before_commit=overtake)
    granted[first] = outcome(lambda: claim(store, facts(first), no_pause))
    assert granted == {first: False, second: True}
    assert address_of(inner, first) == ""
    assert address_of(inner, second) == "192.0.2.11/24"


def test_of_two_that_wrote_before_either_looked_the_first_by_name_stays() -> None:
    inner = MemoryDatastore()
    granted: dict[str, bool] = {}

    class Looks(FaultyStore):
        """Lets `b` write before `a` does, and look only when `a` pauses."""

        def list(self, scope: Any) -> Any:
            found = super().list(scope)
            if not self.commits:
                inner.create(facts("b").key, plan_node(None, facts("b")))
            return found

    def other_looks(_: float) -> None:
        if "b" not in granted:
            granted["b"] = outcome(lambda: claim_after_writing("b"))

    def claim_after_writing(name: str) -> None:
        class Wrote(FaultyStore):
            """The first look was before anybody wrote."""

            looks = 0

            def list(self, scope: Any) -> Any:
                self.looks += 1
                return MemoryDatastore().list(scope) if self.looks == 1 else super().list(scope)

        claim(Wrote(inner), facts(name), no_pause)

    store = Looks(inner)
    granted["a"] = outcome(lambda: claim(store, facts("a"), other_looks))
    assert granted == {"a": True, "b": False}
    assert address_of(inner, "b") == ""


def test_who_comes_upon_a_running_node_gives_way_whatever_its_name() -> None:
    inner = MemoryDatastore()
    pauses: list[float] = []

    def arrives(_: object) -> None:
        if len(store.commits) == 1:
            inner.create(facts("z").key, plan_node(None, facts("z")))

    store = FaultyStore(inner, before_commit=arrives)
    with pytest.raises(AddressTakenError, match="node z"):
        claim(store, facts("a"), pauses.append)
    assert len(pauses) == PAUSES
    assert address_of(inner, "a") == ""
    assert address_of(inner, "z") == "192.0.2.11/24"


def test_the_last_by_name_gives_way_at_once() -> None:
    """If both waited, both would give way in the end."""
    inner = MemoryDatastore()
    pauses: list[float] = []

    def arrives(_: object) -> None:
        if len(store.commits) == 1:
            inner.create(facts("a").key, plan_node(None, facts("a")))

    store = FaultyStore(inner, before_commit=arrives)
    with pytest.raises(AddressTakenError, match="node a"):
        claim(store, facts("z"), pauses.append)
    assert pauses == []


@pytest.mark.parametrize("others", [("a", "z"), ("z", "a")])
def test_of_three_only_the_first_by_name_waits(others: tuple[str, str]) -> None:
    """The one between two others gives way at once, in whatever order they are listed."""
    inner = MemoryDatastore()
    pauses: list[float] = []

    class Listed(FaultyStore):
        """Lists the others in an order of its own."""

        def list(self, scope: Any) -> Any:
            found = super().list(scope)
            place = {name: number for number, name in enumerate((*others, "m"))}
            records = sorted(found.records, key=lambda record: place[record.key.name])  # type: ignore[union-attr]  # Nodes only
            return replace(found, records=tuple(records))

    def arrive(_: object) -> None:
        if len(store.commits) == 1:
            for name in others:
                inner.create(facts(name).key, plan_node(None, facts(name)))

    store = Listed(inner, before_commit=arrive)
    with pytest.raises(AddressTakenError):
        claim(store, facts("m"), pauses.append)
    assert pauses == []
    assert address_of(inner, "m") == ""


def test_only_the_address_that_was_claimed_is_taken_back() -> None:
    node = stored_node(bgp={"ipv4Address": "192.0.2.11/24", "asNumber": 64999}, extra="kept")
    after = without_addresses(node, facts())
    assert after is not None
    assert after.spec.to_wire() == {"bgp": {"asNumber": 64999}, "extra": "kept"}
    bare = without_addresses(stored_node(bgp={"ipv4Address": "192.0.2.11/24"}), facts())
    assert bare is not None
    assert bare.spec.to_wire() == {}, "bgp must not be {}"
    assert without_addresses(stored_node(bgp={"ipv4Address": "192.0.2.9/24"}), facts()) is None
    assert without_addresses(None, facts()) is None


def test_both_families_are_claimed_registered_and_taken_back() -> None:
    six = IPv6Interface("fd00:1::11/64")
    here = facts(address6=six, link6="eth1")
    store = MemoryDatastore()
    assert claim(store, here, no_pause)
    mine = store.get(ResourceKey(Kind.NODE, "node-1")).value
    assert isinstance(mine, Node)
    assert mine.spec.bgp is not None
    assert mine.spec.bgp.ipv6_address == str(six)
    assert not claim(store, here, no_pause), "nothing to write"
    after = without_addresses(mine, here)
    assert after is not None
    assert after.spec.bgp is None
    other = facts("node-2", address=IPv4Interface("192.0.2.12/24"), address6=six, link6="eth1")
    with pytest.raises(
        AddressTakenError, match=r"^ip6: this node's address fd00:1::11 \(on eth1\)"
    ):
        claim(store, other, no_pause)
    stored = [record.key for record in store.list(Resources(Kind.NODE)).records]
    assert stored == [ResourceKey(Kind.NODE, "node-1")], "nothing was written"


def test_a_node_of_ipv6_alone_says_no_ipv4_address() -> None:
    six = IPv6Interface("fd00:1::11/64")
    here = facts(address=None, link="", address6=six, link6="eth1")
    before = stored_node(bgp={"ipv4Address": "192.0.2.9/24", "asNumber": 64999})
    after = plan_node(before, here)
    assert after.spec.to_wire()["bgp"] == {"asNumber": 64999, "ipv6Address": str(six)}
    assert here.addresses == ((six, "eth1"),)
    store = MemoryDatastore()
    assert claim(store, here, no_pause)
    taken = without_addresses(after, here)
    assert taken is not None
    assert taken.spec.to_wire()["bgp"] == {"asNumber": 64999}
    assert without_addresses(stored_node(bgp={"ipv4Address": "192.0.2.9/24"}), here) is None
    other = facts("node-2", address=None, link="", address6=six, link6="eth1")
    with pytest.raises(AddressTakenError, match=r"^ip6: this node's address fd00:1::11"):
        claim(store, other, no_pause)


def test_ipv6_of_others_stays_where_this_node_speaks_none() -> None:
    before = stored_node(bgp={"ipv6Address": "fd00:1::9/64"})
    after = plan_node(before, facts())
    assert after.spec.bgp is not None
    assert after.spec.bgp.ipv6_address == "fd00:1::9/64"


def test_files_are_bare_and_readable_whatever_the_umask(tmp_path: Path) -> None:
    name, mtu = tmp_path / "a" / "nodename", tmp_path / "b" / "mtu"
    before = os.umask(0o077)
    try:
        write_files(name, "node-1", mtu, 1450)
    finally:
        os.umask(before)
    assert name.read_bytes() == b"node-1"
    assert mtu.read_bytes() == b"1450"
    assert {path.stat().st_mode & 0o777 for path in (name, mtu)} == {0o644}
    write_files(name, "node-1", mtu, 0)
    assert mtu.read_bytes() == b"1450", "unknown is no reason to forget"


def test_files_that_say_so_already_are_left_alone(tmp_path: Path) -> None:
    name, mtu = tmp_path / "nodename", tmp_path / "mtu"

    def which() -> list[tuple[int, int]]:
        found = [path.lstat() for path in (name, mtu)]
        return [(one.st_ino, one.st_mtime_ns) for one in found]

    write_files(name, "node-1", mtu, 1450)
    before = which()
    write_files(name, "node-1", mtu, 1450)
    assert which() == before


@pytest.mark.parametrize("spoil", ["content", "mode", "link"])
def test_files_that_do_not_say_so_are_replaced(tmp_path: Path, spoil: str) -> None:
    name, mtu = tmp_path / "nodename", tmp_path / "mtu"
    other = tmp_path / "other"
    other.write_text("node-1")
    other.chmod(0o644)
    write_files(name, "node-1", mtu, 1450)
    if spoil == "content":
        name.write_text("node-2")
    elif spoil == "mode":
        name.chmod(0o600)
    else:
        name.unlink()
        name.symlink_to(other)
    write_files(name, "node-1", mtu, 1450)
    assert name.read_text() == "node-1"
    assert name.lstat().st_mode == stat.S_IFREG | 0o644
    assert other.exists()
