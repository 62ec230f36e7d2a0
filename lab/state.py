"""What the lab must remember, and the lock that lets one command at a time change it.

Layout of the state directory: `lab.json` (what is up), `processes` (the ledger), `nodes/<node>/…`
(a node's private directories), `shared/` (the datastore all nodes open), `ns/` (a small tmpfs that
pins the nodes' mount namespaces), `log/`, `tor/`, `pods/`, `guests/`, `kubeconfig`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab import names
from lab.processes import Ledger
from lab.tools import LabError

LOCK = Path("/run/tortie-lab.lock")
"""One per machine, whatever the state directory: the namespaces' names are the machine's."""

ACTIVE = Path("/run/tortie-lab.active")
"""Names the state directory of the lab that is up, so that no command needs to be told twice."""

NODE_MOUNTS = {
    "/run/tortie": "run",
    "/var/lib/tortie": "lib",
    "/etc/tortie": "etc",
    "/etc/cni/net.d": "net.d",
    "/var/log/tortie": "log",
    "/var/lib/cni": "cni",
    "/opt/cni/bin": "cni-bin",
}
"""Directories that every node has for itself: where it sees them, and their name in its state."""


@dataclass(frozen=True, slots=True)
class LabRecord:
    """What `lab.json` says about the lab that is up."""

    nodes: int
    convergence: str
    made_dirs: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths under the state directory."""

    root: Path = names.DEFAULT_STATE_DIR

    @property
    def record_file(self) -> Path:
        """The record of what is up."""
        return self.root / "lab.json"

    @property
    def ledger(self) -> Ledger:
        """The processes started."""
        return Ledger(self.root / "processes")

    @property
    def pins(self) -> Path:
        """A tmpfs whose files keep the nodes' mount namespaces."""
        return self.root / "ns"

    @property
    def logs(self) -> Path:
        """Output of the lab's own processes."""
        return self.root / "log"

    @property
    def tor(self) -> Path:
        """The ToR's BIRD: configuration, control socket, log."""
        return self.root / "tor"

    @property
    def database(self) -> Path:
        """The one datastore file of all nodes."""
        return self.root / "shared" / "tortie.db"

    @property
    def pods(self) -> Path:
        """What the kubelets remember of the sandboxes they made."""
        return self.root / "pods"

    @property
    def guests(self) -> Path:
        """What the hypervisors remember of their guests."""
        return self.root / "guests"

    @property
    def kubeconfig(self) -> Path:
        """How `kubectl` reaches the API, from its namespace."""
        return self.root / "kubeconfig"

    def node(self, node: str, part: str = "") -> Path:
        """A node's own directory, or one of `NODE_MOUNTS`' values in it."""
        return self.root / "nodes" / node / part

    def mount_pin(self, node: str) -> Path:
        """The file that holds a node's mount namespace."""
        return self.pins / f"{node}.mnt"

    def uts_pin(self, node: str) -> Path:
        """The file that holds a node's host name."""
        return self.pins / f"{node}.uts"

    def read(self) -> LabRecord:
        """What is up. Raises `LabError` when nothing is."""
        try:
            data = json.loads(self.record_file.read_text())
        except FileNotFoundError as error:
            raise LabError(f"no lab is up in {self.root}; start one with `lab up`") from error
        return LabRecord(data["nodes"], data["convergence"], tuple(data["made_dirs"]))

    def write(self, record: LabRecord) -> None:
        """Remember what is up (before the first thing is made, so that a kill loses nothing)."""
        self.root.mkdir(parents=True, exist_ok=True)
        ACTIVE.write_text(f"{self.root}\n")
        fresh = self.record_file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(record)))
        fresh.rename(self.record_file)


def active_root() -> Path | None:
    """State directory of the lab that is up, or was when the machine's power failed."""
    with contextlib.suppress(FileNotFoundError):
        return Path(ACTIVE.read_text().strip())
    return None


@contextlib.contextmanager
def lab_lock(path: Path = LOCK) -> Iterator[None]:
    """Hold the machine's lab lock. Raises `LabError` at once when another command has it."""
    descriptor = _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LabError("another lab command is running (up, down, demo or bench)") from None
        # Its last holder may have removed the file between our open and our lock.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)
