"""What the lab must remember, and the lock that lets one command at a time change it.

Layout of the state directory: `lab.json` (what is up), `processes` (the ledger), `nodes/<node>/…`
(a node's private directories), `shared/` (the datastore all nodes open), `ns/` (a small tmpfs that
pins the nodes' mount namespaces), `log/`, `tor/`, `pods/`, `guests/`, `kubeconfig`, `peers/` (the
authority of the nodes' certificates), `bundles/` (versions that `lab upgrade` installs).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from lab import names
from lab.processes import Ledger
from lab.tools import LabError
from libtortie.errors import first_line

LOCK = Path("/run/tortie-lab.lock")
"""One per machine, whatever the state directory: the namespaces' names are the machine's."""

ACTIVE = Path("/run/tortie-lab.active")
"""Names the state directory of the lab that is up, so that no command needs to be told twice."""

CHECKOUT = Path(__file__).resolve().parent.parent
"""Where this code lives: a lab is that of the checkout that started it."""

ENTRIES = (
    *("log", "tor", "shared", "pods", "guests", "nodes", "ns", "kubectl-cache", "kubeconfig"),
    *("peers", "bundles", "processes", "lab.new", "lab.json"),
)
"""All that a lab makes in its state directory, in the order of removal: the record goes last."""

LOCK_PATIENCE_S = 10.0
POLL_S = 0.1

NODE_MOUNTS = {
    "/run/tortie": "run",
    "/var/lib/tortie": "lib",
    "/etc/tortie": "etc",
    "/etc/cni/net.d": "net.d",
    "/var/log/tortie": "log",
    "/var/lib/cni": "cni",
    "/opt/cni/bin": "cni-bin",
    "/opt/tortie": "opt",
}
"""Directories that every node has for itself: where it sees them, and their name in its state."""


@dataclass(frozen=True, slots=True)
class LabRecord:
    """What `lab.json` says about the lab that is up."""

    nodes: int
    convergence: str
    made_dirs: tuple[str, ...] = field(default=())
    checkout: str = str(CHECKOUT)
    datastore: str = "sqlite"
    guest: str = "packet"
    vxlan: str = "Never"
    reflectors: int = 0


_RECORD = TypeAdapter(LabRecord)


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
        return Ledger(self.ledger_file)

    @property
    def ledger_file(self) -> Path:
        """Where they are written down."""
        return self.root / "processes"

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
    def peers(self) -> Path:
        """The authority whose certificates tell the agents who is which node."""
        return self.root / "peers"

    @property
    def bundles(self) -> Path:
        """Versions of our programs, before nodes have them."""
        return self.root / "bundles"

    @property
    def kubeconfig(self) -> Path:
        """How `kubectl` reaches the API, from its namespace."""
        return self.root / "kubeconfig"

    def entries(self) -> tuple[Path, ...]:
        """What is there of a lab, in the order of its removal."""
        return tuple(path for name in ENTRIES if os.path.lexists(path := self.root / name))

    def strangers(self) -> tuple[str, ...]:
        """Names of what is there and not of a lab."""
        return tuple(sorted({path.name for path in self.root.iterdir()} - {*ENTRIES}))

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
        """What is up. Raises `LabError` when nothing is, or the record is damaged."""
        try:
            data = json.loads(self.record_file.read_text())
            return _RECORD.validate_python({"checkout": "", **data})
        except FileNotFoundError as error:
            raise LabError(f"no lab is up in {self.root}; start one with `lab up`") from error
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise LabError(
                f"{self.record_file} is damaged ({first_line(error)});"
                f" `lab --state-dir {self.root} down` removes what is left of that lab"
            ) from error

    def write(self, record: LabRecord) -> None:
        """Remember what is up (before the first thing is made, so that a kill loses nothing)."""
        self.root.mkdir(parents=True, exist_ok=True)
        _replace(ACTIVE, f"{self.root}\n")
        _replace(self.record_file, json.dumps(asdict(record)))


def _replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def active_root() -> Path | None:
    """State directory of the lab that is up, or was when the machine's power failed.

    None also when that cut the file short.
    """
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        root = Path(ACTIVE.read_text().strip())
        return root if root.is_absolute() else None
    return None


def active_state() -> StateDir | None:
    """The lab that is up, in whichever place."""
    root = active_root()
    return StateDir(root) if root is not None and StateDir(root).record_file.exists() else None


def refuse_foreign(state: StateDir, *, given: bool) -> None:
    """Raise `LabError` unless the lab that is up, if any, is in `state` and ours to change.

    It is ours when this checkout started it, or when the user has `given` its state directory.
    """
    active = active_state()
    if active is None:
        return
    way = f"to act on it, give --state-dir {active.root}"
    if active.root != state.root:
        raise LabError(f"the lab that is up is in {active.root}; {way}")
    if given:
        return
    try:
        checkout = active.read().checkout
    except LabError:
        checkout = ""
    if checkout != str(CHECKOUT):
        raise LabError(
            f"the lab in {active.root} was started from another checkout"
            f" ({checkout or 'unknown'}); {way}"
        )


@contextlib.contextmanager
def lab_lock(path: Path = LOCK, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
    """Hold the machine's lab lock. Raises `LabError` when another command keeps it too long."""
    descriptor = _locked(path, time.monotonic() + patience_s)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, deadline: float) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                busy = "another lab command is running (up, down, demo or bench)"
                raise LabError(busy) from None
            time.sleep(POLL_S)
            continue
        # Its last holder may have removed the file between our open and our lock.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)
