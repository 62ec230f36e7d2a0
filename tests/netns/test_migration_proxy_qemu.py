"""Real QEMU guests migrate through two proxies, between two network namespaces, over TLS.

The guest is its own witness: it counts on its serial line, with the sum of random bytes it keeps
in memory. A count that goes on at the target, and that sum, say that it is the same guest. While
its memory moves it stands still: see `Guest.pause`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.qemu import Guest, Machine, Progress, Status, Transfer
from lab.qemu_guest import Tick, disk_sector
from tests.fakes.migration_proxies import until
from tests.fakes.proxied_hosts import Hosts, hosts

pytestmark = pytest.mark.root

DIRECT, BLOCK = 49152, 49153
DISK_BYTES = 12 << 20
MACHINE = Machine(memory_mib=96, witness_mib=24)
SLOW = 256 << 10
"""Bytes a second: 24 MiB that cannot be compressed take longer than any test."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A guest that was started once: its state, and its disk then."""

    state: Path
    disk: Path


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Seed:
    """Booting costs more than all else; every test goes on from here."""
    made = tmp_path_factory.mktemp("seed")
    disk = made / "disk.img"
    disk.write_bytes(bytes(4 << 20) + os.urandom(DISK_BYTES - (4 << 20)))
    with Guest(made / "guest", MACHINE, disk=disk) as guest:
        guest.wait_ticks(1)
        guest.save(made / "state")
    return Seed(made / "state", disk)


class Bench:
    """Two hosts whose proxies run, and a guest at the source."""

    def __init__(self, hosts: Hosts, seed: Seed, stack: ExitStack) -> None:
        self.hosts, self._seed, self._stack = hosts, seed, stack
        self._tries = 0
        self.source_disk = hosts.source.directory / "disk.img"
        shutil.copy(seed.disk, self.source_disk)
        self.source = self._guest(hosts.source.directory / "g", self.source_disk)
        self.source.restore(seed.state)
        self.before = self.source.wait_ticks()[-1]

    def _guest(self, directory: Path, disk: Path) -> Guest:
        made = Guest(directory, MACHINE, disk=disk, incoming=True)
        self._stack.callback(made.close)
        return made

    def target(self, transfer: Transfer, *, block: bool) -> Guest:
        """QEMU at the target, listening, for one try; `block` gives it a disk of its own."""
        self._tries += 1
        directory = self.hosts.target.directory / f"g{self._tries}"
        disk = self.source_disk
        if block:
            directory.mkdir()
            disk = directory / "disk.img"
            disk.write_bytes(bytes(DISK_BYTES))
        made = self._guest(directory, disk)
        made.listen(
            self.hosts.socket(DIRECT), transfer, self.hosts.socket(BLOCK) if block else None
        )
        return made

    def begin(self, transfer: Transfer, *, block: bool) -> Guest:
        """A migration through the proxies, under way; the target.

        A slow one, which is not to arrive, leaves the guest running.
        """
        target = self.target(transfer, block=block)
        files = self.hosts.connect(DIRECT, *([BLOCK] if block else []))
        if block:
            self.source.mirror(files[BLOCK])  # while the guest writes
        if not transfer.most_bytes_per_second:
            self.source.pause()
        self.source.migrate(files[DIRECT], transfer)
        return target

    def arrives(self, target: Guest) -> Tick:
        """The migration ends well: the guest goes on at the target, and only there."""
        self.source.hand_over(target)
        assert not self.source.running
        last = self.source.ticks()[-1]
        first, *_, now = target.wait_ticks(last.count + 6)  # the sum is looked at every fifth time
        assert 0 < first.count - last.count <= 2  # a line may have been cut in two
        assert first.witness == now.witness == self.before.witness
        assert now.uptime > last.uptime >= self.before.uptime
        assert now.disk == now.count
        return now

    def stays(self) -> None:
        """The guest runs at the source and counts on."""
        assert self.source.running
        last = self.source.ticks()[-1]
        now = self.source.wait_ticks(last.count + 2)[-1]
        assert now.witness == self.before.witness


@pytest.fixture
def bench(seed: Seed) -> Iterator[Bench]:
    with ExitStack() as stack:
        both = stack.enter_context(hosts())
        both.source.start(node="node1")
        both.target.start(node="node2")
        yield Bench(both, seed, stack)


def carried(bench: Bench, logical: int) -> tuple[int, int]:
    """How many connections of a stream there were, and the bytes they carried to the target."""
    (one,) = [
        each for each in bench.hosts.target.status()["streams"] if each["logical_port"] == logical
    ]
    return one["streams_ever"], one["bytes_in"]


@pytest.mark.parametrize("channels", [0, 8])
def test_memory_moves_through_the_proxies(bench: Bench, channels: int) -> None:
    """One stream, and eight beside the first; the disk is one that both hosts share."""
    target = bench.begin(Transfer(channels), block=False)
    bench.arrives(target)
    connections, moved = carried(bench, DIRECT)
    assert connections == 1 + channels
    assert moved > MACHINE.witness_mib << 20
    assert bench.hosts.source.findings() == bench.hosts.target.findings() == []


@pytest.mark.parametrize("channels", [0, 8])
def test_memory_and_disk_move_through_the_proxies(bench: Bench, channels: int) -> None:
    target = bench.begin(Transfer(channels), block=True)
    now = bench.arrives(target)
    assert carried(bench, BLOCK)[1] > DISK_BYTES - (4 << 20)
    assert bench.hosts.source.findings() == bench.hosts.target.findings() == []
    copy = (target.directory / "disk.img").read_bytes()
    half = 4 << 20
    assert _sum(copy[half:]) == _sum(bench.source_disk.read_bytes()[half:])
    for count in (bench.before.count, now.count):
        at, written = disk_sector(count)
        assert copy[at : at + len(written)] == written


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("channels", [0, 8])
@pytest.mark.parametrize("killed", ["source", "target"])
def test_a_proxy_killed_in_the_middle(bench: Bench, killed: str, channels: int) -> None:
    """The migration fails, the guest goes on at the source, and the next try succeeds."""
    lost = bench.begin(Transfer(channels, SLOW), block=False)
    until(lambda: carried(bench, DIRECT)[1] > SLOW)
    assert bench.source.progress().status is Status.ACTIVE
    victim = getattr(bench.hosts, killed)
    victim.kill()
    bench.source.wait_migration("no failure", _failed)
    bench.stays()
    lost.close()  # with multifd QEMU 7.2 waits for ever; libvirt kills it, too
    assert lost.ticks() == ()
    before = bench.hosts.generation
    victim.start()
    again = bench.begin(Transfer(channels), block=False)
    assert (bench.hosts.generation != before) is (killed == "target")
    bench.arrives(again)


def _failed(seen: Progress) -> bool:
    return seen.status is Status.FAILED
