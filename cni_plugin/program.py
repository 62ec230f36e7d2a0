"""The CNI executables of a node: `shim.py`, or what `shim.c` became, with this node's paths.

Both say the same to the agent (one test suite holds them to it); the native one needs no Python
and starts in a tenth of the time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from cni_plugin import shim
from cni_plugin.rooted import below
from libtortie.errors import InvalidInput, NotFound

NATIVE = Path(shim.__file__).with_name("shim.bin")
"""Where `make shim` leaves the executable that `shim.c` becomes."""

_SIGNS = (b"TTR1", b"TTA1")
_MACHINE = slice(18, 20)
"""`e_machine` in the header of an ELF file."""


class Front(StrEnum):
    """Which of the two executables a node gets; `auto`: the native one if there is one for it."""

    AUTO = "auto"
    NATIVE = "native"
    PYTHON = "python"


def program(
    front: Front = Front.AUTO,
    *,
    socket: str = shim.SOCKET,
    fallback: str = shim.FALLBACK,
    python: str = "/usr/bin/python3",
    root: Path = Path("/"),
    interpreter: Path | None = None,
) -> bytes:
    """The executable for a node whose file system is at `root`; `interpreter` is where its Python
    can be found now, if that is yet to be brought there.

    Raises `InvalidInput` for unusable constants, `NotFound` for what it could not run with.
    """
    if front is Front.NATIVE or (front is Front.AUTO and _fits(NATIVE)):
        return native_executable(socket, fallback)
    if not os.access(interpreter or below(root, python), os.X_OK):
        raise NotFound(f"{python} is not an executable Python: name one with --python")
    return executable(socket, fallback, python)


def executable(socket: str, fallback: str, python: str) -> bytes:
    """The text of `shim.py` with its three constants set. Raises `InvalidInput`."""
    _require_paths(socket=socket, fallback=fallback, python=python)
    if " " in python:
        raise InvalidInput(f"python: {python!r} cannot stand in a #! line")
    lines = Path(shim.__file__).read_text().splitlines(keepends=True)
    lines[0] = f"#!{python} -IS\n"
    changed = {"SOCKET = ": f'SOCKET = "{socket}"\n', "FALLBACK = ": f'FALLBACK = "{fallback}"\n'}
    for number, line in enumerate(lines):
        for start, new in changed.items():
            if line.startswith(start):
                lines[number] = new
    return "".join(lines).encode()


def native_executable(socket: str, fallback: str) -> bytes:
    """What `shim.c` became, with its two constants set. Raises `InvalidInput`, `NotFound`.

    The one in Python hangs on it as a zip archive: where it replaces that one, an interpreter
    that the kernel has just started for the old file opens the new one, and runs what it finds.
    """
    _require_paths(socket=socket, fallback=fallback)
    if not _fits(NATIVE):
        raise NotFound(f"{NATIVE} is no executable for this machine: build it with `make shim`")
    made = FALLBACK.filled(SOCKET.filled(NATIVE.read_bytes(), socket), fallback)
    archive = BytesIO()
    with ZipFile(archive, "w") as file:
        file.writestr(ZipInfo("__main__.py"), executable(socket, fallback, "/usr/bin/python3"))
    return made + archive.getvalue()


@dataclass(frozen=True, slots=True)
class Slot:
    """A constant in the native executable: where behind the mark, and its room with the zero."""

    offset: int
    size: int

    def filled(self, binary: bytes, value: str) -> bytes:
        """The executable with another value. ValueError where there is no mark, or no room."""
        content = value.encode("ascii").ljust(self.size, b"\0")
        if len(content) > self.size or not content.endswith(b"\0"):
            raise ValueError(f"{value!r} is longer than {self.size - 1} characters")
        start = binary.index(_MARK) + self.offset
        return binary[:start] + content + binary[start + self.size :]


_MARK = b"TORTIE-SHIM-1\0\0\0"
SOCKET, FALLBACK, DEADLINE = Slot(16, 108), Slot(124, 256), Slot(380, 16)
_LONGEST = {"socket": SOCKET.size - 1, "fallback": FALLBACK.size - 1, "python": 100}


def _require_paths(**paths: str) -> None:
    for what, value in paths.items():
        plain = value.isascii() and value.isprintable() and '"' not in value and "\\" not in value
        if not value.startswith("/") or not plain:
            raise InvalidInput(f"{what}: {value!r} is not an absolute path in ASCII")
        if len(value) > _LONGEST[what]:
            raise InvalidInput(f"{what}: {value!r} is longer than {_LONGEST[what]} characters")


def is_program(content: bytes) -> bool:
    """Whether a file is one of these executables, of whatever version."""
    return all(sign in content for sign in _SIGNS)


def _fits(binary: Path) -> bool:
    """Whether a file is an executable for the machine that runs us."""
    try:
        with binary.open("rb") as theirs, Path("/proc/self/exe").open("rb") as ours:
            head, own = theirs.read(20), ours.read(20)
    except OSError:
        return False
    return head[:5] == own[:5] and head[_MACHINE] == own[_MACHINE]
