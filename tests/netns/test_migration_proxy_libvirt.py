"""Two libvirt daemons migrate a guest through two proxies, as KubeVirt's launchers have theirs do.

libvirt's own connection, the guest's memory and its disk each go through a unix socket of the
source's proxy, over TLS, to the target's programs. The guest is its own witness, see
`lab.qemu_guest`; while its memory moves it stands still, see `lab.qemu.Guest.pause`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lab.qemu import Machine
from lab.qemu_guest import disk_sector
from lab.tools import run
from tests.fakes.libvirt_hosts import DOMAIN, Job, Libvirt, migration
from tests.fakes.migration_proxies import until
from tests.fakes.proxied_hosts import Hosts, hosts
from tortiectl.downtime.domjobinfo import parse_domjobinfo
from tortiectl.downtime.job import Outcome

pytestmark = pytest.mark.root

LIBVIRT, DIRECT, BLOCK = 0, 49152, 49153
COUNTS_BYTES = 4 << 20
"""The beginning of the disk, that the guest writes its counts to."""
DISK_BYTES = 64 << 20
DATA_BYTES = 8 << 20
MACHINE = Machine(memory_mib=96, witness_mib=8)
SLOW = ("--bandwidth", "1")
"""MiB a second: a full disk takes a minute."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A guest that was started once: its state, its disk, and what libvirt found out of QEMU."""

    state: Path
    disk: Path
    cache: Path


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Seed:
    """Booting costs more than all else; every test goes on from here."""
    made = tmp_path_factory.mktemp("seed")
    found = Seed(made / "state", made / "disk.img", made / "cache")
    found.cache.mkdir()
    with ExitStack() as stack:
        both = stack.enter_context(hosts())
        libvirt = Libvirt(both.source, MACHINE, found.cache, sockets=".")
        stack.callback(libvirt.close)
        libvirt.ready()
        _write_disk(libvirt.disk, DATA_BYTES)
        libvirt.boot()
        libvirt.wait_ticks(1)
        libvirt.virsh("save", DOMAIN, str(found.state))
        shutil.copy(libvirt.disk, found.disk)
    return found


def _write_disk(path: Path, data_bytes: int) -> None:
    """Random data behind the counts' place, then nothing."""
    with path.open("r+b" if path.exists() else "wb") as disk:
        disk.truncate(DISK_BYTES)
        disk.seek(COUNTS_BYTES)
        disk.write(os.urandom(data_bytes))


class Bench:
    """Two hosts with libvirt and a proxy each, and a guest at the source."""

    def __init__(self, hosts: Hosts, seed: Seed, stack: ExitStack) -> None:
        self.hosts = hosts
        self.source = Libvirt(hosts.source, MACHINE, seed.cache, sockets="migrationproxy")
        stack.callback(self.source.close)
        self.target = Libvirt(hosts.target, MACHINE, seed.cache, sockets=".")
        stack.callback(self.target.close)
        hosts.source.start(node="node1")
        hosts.target.start(node="node2")
        self.source.ready()
        self.target.ready()
        shutil.copy(seed.disk, self.source.disk)
        self.source.virsh("restore", str(seed.state))
        self.before = self.source.wait_ticks()[-1]

    def begin(self, *words: str, block: bool, channels: int) -> Job:
        """A migration through the proxies, under way."""
        self.target.disk.unlink(missing_ok=True)
        if block:
            self.target.disk.touch()
            os.truncate(self.target.disk, DISK_BYTES)
        else:
            self.target.disk.hardlink_to(self.source.disk)
        self.hosts.connect(LIBVIRT, DIRECT, *([BLOCK] if block else []))
        return self.source.begin(*migration(block=block, channels=channels), *words)

    def move(self, *, block: bool, channels: int) -> None:
        """Move the guest, and see that it goes on at the target and only there."""
        self.source.virsh("suspend", DOMAIN)
        last = self.source.ticks()[-1]
        assert self.begin(block=block, channels=channels).end() == (0, "")
        assert self.source.state() == ""
        assert self.target.state() == "paused"
        if block:
            assert _data(self.target.disk) == _data(self.source.disk)
        self.target.virsh("resume", DOMAIN)
        first, *_, now = self.target.wait_ticks(last.count + 6)  # it sums up every fifth time
        assert 0 < first.count - last.count <= 2  # a line may have been cut in two
        assert first.witness == now.witness == self.before.witness
        assert now.disk == now.count
        assert now.uptime > last.uptime
        self.target.virsh("suspend", DOMAIN)
        for count in (self.before.count, now.count):
            at, written = disk_sector(count)
            assert self.target.disk.read_bytes()[at : at + len(written)] == written

    def fails(self, job: Job) -> None:
        """A migration ends in failure; the guest runs on at the source, and is not elsewhere."""
        code, said = job.end()
        assert code == 1
        assert said.startswith("error: ")
        assert self.source.state() == "running"
        until(lambda: self.target.state() == "")
        last = self.source.ticks()[-1]
        now = self.source.wait_ticks(last.count + 2)[-1]
        assert now.witness == self.before.witness
        assert now.disk == now.count
        assert self.target.ticks() == ()


def _data(disk: Path) -> bytes:
    """A disk but for the place of the counts."""
    return disk.read_bytes()[COUNTS_BYTES:]


@pytest.fixture
def bench(seed: Seed) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack.enter_context(hosts()), seed, stack)


def carried(bench: Bench, logical: int) -> tuple[int, int]:
    """How many connections of a stream there were, and the bytes they carried to the target."""
    (one,) = [
        each for each in bench.hosts.target.status()["streams"] if each["logical_port"] == logical
    ]
    return one["streams_ever"], one["bytes_in"]


@pytest.mark.parametrize("channels", [0, 8])
@pytest.mark.parametrize("block", [False, True])
def test_a_guest_moves(bench: Bench, block: bool, channels: int) -> None:
    """Memory alone, its disk being one that both hosts share; and both."""
    bench.move(block=block, channels=channels)
    assert carried(bench, LIBVIRT)[0] == 1
    connections, moved = carried(bench, DIRECT)
    assert connections == 1 + channels
    assert moved > MACHINE.witness_mib << 20
    assert not block or carried(bench, BLOCK)[1] > DATA_BYTES
    assert bench.hosts.source.findings() == bench.hosts.target.findings() == []


LANGUAGES = ("de_DE", "ru_RU", "zh_CN")


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """virsh's environment for each language that libvirt has been translated into."""
    made = tmp_path_factory.mktemp("locales")
    for name in LANGUAGES:
        run(["localedef", "-i", name, "-f", "UTF-8", str(made / f"{name}.UTF-8")])
    return [{"LOCPATH": str(made), "LC_ALL": f"{name}.UTF-8"} for name in LANGUAGES]


def test_its_statistics_are_read_in_any_language(
    bench: Bench, languages: list[dict[str, str]]
) -> None:
    """The target's libvirt has them, the source's record being with the source."""
    bench.move(block=False, channels=0)
    words = ("domjobinfo", DOMAIN, "--completed", "--keep-completed")
    said = bench.target.virsh(*words)
    job = parse_domjobinfo(said)
    assert job.outcome is Outcome.COMPLETED
    assert job.memory_total is not None
    assert job.memory_total >= MACHINE.memory_mib << 20
    assert job.total_ms is not None
    assert job.downtime_ms is not None
    assert job.downtime_ms <= job.total_ms  # an idle guest's rounds down to 0
    assert job.data_processed == pytest.approx(carried(bench, DIRECT)[1], rel=0.05)
    for language in languages:
        translated = bench.target.virsh(*words, env=language)
        assert translated != said
        found = parse_domjobinfo(translated)
        assert found == replace(job, operation=found.operation)


@pytest.mark.parametrize("killed", ["source", "target"])
def test_a_proxy_killed_while_the_disk_moves(bench: Bench, killed: str) -> None:
    """The guest runs on at the source, and the next try succeeds.

    While memory moves, `test_migration_proxy_qemu` kills them: as libvirt drives QEMU 7.2, a broken
    connection then ended QEMU at the source in three of some 45 kills, by an assertion of its own
    (`yank_unregister_instance`).
    """
    _write_disk(bench.source.disk, DISK_BYTES - COUNTS_BYTES)
    lost = bench.begin(*SLOW, block=True, channels=8)
    until(lambda: carried(bench, BLOCK)[1] > 256 << 10 or not lost.runs)
    assert lost.runs
    assert carried(bench, DIRECT)[0] == 0  # that comes after the disk
    victim = getattr(bench.hosts, killed)
    victim.kill()
    bench.fails(lost)
    victim.start()
    bench.move(block=True, channels=8)
