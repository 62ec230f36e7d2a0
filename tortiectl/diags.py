"""What somebody far away needs to understand a node or a cluster, in one archive.

A command that fails or hangs is noted in the archive and stops nothing. Secrets are left out:
configuration is written without passwords, tokens and keys, and no kubeconfig is taken.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from libtortie.errors import InvalidInput, TortieError

SECONDS = 15.0
"""For each command."""
MOST_BYTES = 64 << 20
"""Of one file; of a larger one the end is taken."""
_SECRET = re.compile(
    r"(?im)^([ \t]*)(.{0,4000}?(?:password|token|secret|key|bearer)[\w-]{0,64}"
    r"[\"']?\s*[:=]\s*)\S.*$"
    r"(?:\n\1[ \t]+.*$|\n[ \t]*$)*"
)
"""The rest of the line, and of the lines below all that are indented further: a text of several."""
_IN_URL = re.compile(r"(://)[^/@\s]*@")
NODE_COMMANDS: Mapping[str, Sequence[str]] = {
    "date": ("date",),
    "hostname": ("hostname",),
    "uname": ("uname", "-a"),
    "links": ("ip", "-details", "link"),
    "addresses": ("ip", "address"),
    "routes4": ("ip", "-4", "route", "show", "table", "all"),
    "routes6": ("ip", "-6", "route", "show", "table", "all"),
    "rules": ("ip", "rule"),
    "neighbours": ("ip", "neighbour"),
    "nftables": ("nft", "list", "ruleset"),
    "conntrack": ("conntrack", "-S"),
    "sockets": ("ss", "-tunap"),
    "sysctl": ("sysctl", "-a"),
    "disks": ("df", "-h"),
    "memory": ("free", "-m"),
    "journal": ("journalctl", "-u", "tortie-node", "-n", "5000", "--no-pager"),
}
Said = tuple[str, bytes]
"""Name in the archive, and content."""


def run(name: str, command: Sequence[str], seconds: float = SECONDS) -> Said:
    """A command's output, or why there is none."""
    head = f"$ {' '.join(command)}\n".encode()
    if shutil.which(command[0]) is None:
        return f"{name}.txt", head + b"there is no such program here\n"
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{name}.txt", head + f"not done after {seconds:g} s\n".encode()
    except OSError as error:
        return f"{name}.txt", head + f"{error.strerror}\n".encode()
    return f"{name}.txt", head + done.stdout[-MOST_BYTES:] + done.stderr[-MOST_BYTES:]


def files(root: Path, below: str) -> Iterator[Said]:
    """The files of a directory; what cannot be read says why."""
    if not root.is_dir():
        yield f"{below}/MISSING", f"{root} is no directory\n".encode()
        return
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield f"{below}/{path.relative_to(root)}", _content(path)


def without_secrets(text: str) -> str:
    """A configuration's text in which what is secret is replaced."""
    return _IN_URL.sub(r"\1(left out)@", _SECRET.sub(r"\1\2(left out)", text))


def told(name: str, say: Callable[[], str]) -> Said:
    """What a function says, or why it cannot."""
    try:
        return name, (say() + "\n").encode()
    except TortieError as error:
        return name, f"{error}\n".encode()


def archive(said: Iterable[Said], now: datetime, where: str = "") -> Path:
    """Write `diags-<time>.tar.gz`, readable by its owner only. Raises `InvalidInput`."""
    stamp = f"diags-{now:%Y%m%d_%H%M%S}"
    try:
        directory = Path(where) if where else Path(tempfile.mkdtemp(prefix="tortie-"))
        path = directory / f"{stamp}.tar.gz"
        with path.open("xb") as file:
            path.chmod(0o600)
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                for name, content in said:
                    _add(tar, f"{stamp}/{name}", content, now)
    except OSError as error:
        raise InvalidInput(f"{error.filename or where}: {error.strerror}") from error
    return path


def _add(tar: tarfile.TarFile, name: str, content: bytes, now: datetime) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), int(now.timestamp()), 0o600
    tar.addfile(entry, io.BytesIO(content))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - MOST_BYTES))
            return file.read(MOST_BYTES)
    except OSError as error:
        return f"{error.strerror}\n".encode()
