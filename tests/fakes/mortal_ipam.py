"""IPAM operations in processes that die where a test wants them to.

One process imports everything once and forks a child for each operation; the child opens the
store, has the calls it makes of it counted, and kills itself with SIGKILL at one of them. Nothing
of the store is open before the fork. `MortalIpam` is the test's side of it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from tests.fakes.ipam_operations import BY_NAME
from tests.fakes.ipam_world import World
from tests.fakes.mortal import Tell, die, trace_transactions
from tests.fakes.mortal_parent import MortalParent, serve
from tests.fakes.mortal_store import Countdown, told
from tests.fakes.patience import be_patient


@dataclass(frozen=True, slots=True)
class Ended:
    """How an operation's process ended: its exit status (-9: killed) and the steps it took."""

    status: int
    steps: tuple[str, ...]


class MortalIpam(MortalParent):
    """Does operations on one store (a file's path or an etcd's URL), each in its own process."""

    def __init__(self, directory: Path, store: str) -> None:
        self._store = store
        super().__init__(directory, "tests.fakes.mortal_ipam")

    def act(self, name: str, time: datetime, *, die_at: int = 0) -> Ended:
        """One operation, by name; with `die_at` it is killed at that step (from 1)."""
        steps = self._directory / "steps"
        request = {
            "name": name,
            "time": time.isoformat(),
            "die_at": die_at,
            "store": self._store,
            "steps": str(steps),
        }
        status = self.ask(request)
        return Ended(status, tuple(steps.read_text().splitlines()))


def _run(request: Mapping[str, str]) -> NoReturn:
    code = 99
    try:
        with Path(request["steps"]).open("wb") as steps:
            countdown = Countdown(int(request["die_at"]), die)

            def tell(what: str) -> None:
                os.write(steps.fileno(), what.encode() + b"\n")
                countdown(what)

            store = _open(request["store"], tell)
            world = World(store, datetime.fromisoformat(request["time"]))
            BY_NAME[request["name"]].act(world, told(store, tell))
            store.close()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _open(place: str, tell: Tell) -> Datastore:
    if place.startswith("http:"):
        return EtcdDatastore(EtcdConfig(place))
    trace_transactions(tell)
    return SqliteDatastore(Path(place), shared=True)


if __name__ == "__main__":
    be_patient()
    serve(_run)
