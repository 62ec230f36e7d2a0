"""IPAM over the embedded datastore, in several processes, some of which are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from ipam.client import AddressRequest, IPAMClient
from libtortie.datastore.sqlite import SqliteDatastore
from tests.fakes.ipam_world import World, plain_pod, pool

BOTH = AddressRequest(ipv6=True)
WORKER = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from ipam.client import AddressRequest, IPAMClient
from libtortie.datastore.sqlite import SqliteDatastore
from tests.fakes.ipam_world import plain_pod, vm_pod

path, name, node, count = sys.argv[1:]
store = SqliteDatastore(Path(path), node=node, shared=True)
client = IPAMClient(store, node, now=lambda: datetime.now(UTC))
want = AddressRequest(ipv6=True)
for number in range(int(count)):
    handle = f"{name}-{number}"
    client.assign(handle, plain_pod(handle, node=node), want)
    client.claim_vm("vm", vm_pod(f"vm-{name}", node=node), want)
    if number % 3 == 0:
        client.release(handle)
    print(number, flush=True)
store.close()
"""


def worker(path: Path, name: str, node: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), name, node, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def reap(*workers: subprocess.Popen[str]) -> None:
    for process in workers:
        process.kill()
        process.communicate(timeout=30)


def opened(path: Path) -> World:
    return World(SqliteDatastore(path, shared=True))


def pools(world: World) -> World:
    return world.pools(pool("a", "10.0.0.0/24", blockSize=29), pool("b", "fd00::/64"))


def test_processes_of_two_nodes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "tortie.db"
    world = pools(opened(path))
    workers = [worker(path, f"w{i}", f"n{i % 2}", 12) for i in range(3)]
    try:
        for process in workers:
            process.communicate(timeout=60)
        assert [process.returncode for process in workers] == [0, 0, 0]
    finally:
        reap(*workers)
    held = world.allocated()
    assert held.pop("vm") == 2
    assert set(held.values()) == {2}
    assert len(held) == 3 * 8
    world.audit()
    world.store.close()


def test_killed_processes_leave_a_sound_store(tmp_path: Path) -> None:
    """kill -9 at whatever point it meets; then the same attachments are asked for again."""
    path = tmp_path / "tortie.db"
    world = pools(opened(path))
    for turn in range(4):
        process = worker(path, f"k{turn}", "n1", 10_000)
        try:
            assert process.stdout is not None
            for _ in range(3 + turn):
                assert process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            assert process.wait(timeout=30) == -signal.SIGKILL
        finally:
            reap(process)
        world.audit()
    client = IPAMClient(world.store, "n1", now=lambda: datetime.now(UTC))
    for handle in world.handles():
        before = client.by_handle(handle)
        if handle != "vm":
            assert client.assign(handle, plain_pod(handle), BOTH) == before
        client.release(handle)
    assert world.allocated() == {}
    assert world.handles() == {}
    world.store.close()
