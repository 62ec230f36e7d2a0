"""systemd's units for a node without Kubernetes: written by mark, removed by mark, never enabled.

A unit file of ours begins with a line that says so; one without it is somebody else's. Changes
belong into drop-ins, which nobody here touches. Enabling and starting are the administrator's.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cni_plugin.durable import make_directory, only_writer, read_file, remove_file, replace_file
from libtortie.errors import InvalidInput

UNITS = (
    "tortie-node.service",
    "tortie-bird.service",
    "tortie-controllers.service",
    "tortie-migration-proxy.service",
)
UNIT_DIR = "/etc/systemd/system"
_MARK = (
    "# Written by `tortiectl node install --systemd`, which replaces and `uninstall` removes it."
)
_ADVICE = "# Changes: `systemctl edit`, which keeps them in a file of their own."


@dataclass(frozen=True, slots=True)
class Units:
    """Where unit files are, and the directory on the node that has their programs."""

    directory: Path
    programs: str = ""

    def check(self) -> None:
        """Raises `InvalidInput` for a directory or a file that is not ours to write."""
        if not all(part.isalnum() or part in "/._+-" for part in self.programs):
            raise InvalidInput(f"{self.programs!r} cannot stand in a unit: install elsewhere")
        for name in UNITS:
            path = self.directory / name
            content = read_file(path)
            if content is not None and not _is_ours(content):
                raise InvalidInput(f"{path} is not ours: move it away")

    def write(self) -> None:
        """Write all of them; may be repeated. Raises `InvalidInput`, OSError."""
        self.check()
        make_directory(self.directory, "--unit-dir")
        with only_writer([self.directory]):
            for name in UNITS:
                replace_file(self.directory / name, unit(name, self.programs), 0o644)

    def remove(self) -> list[str]:
        """Remove them and the links by which they are enabled; what stays, and why."""
        left: list[str] = []
        if not self.directory.is_dir():
            return left
        with only_writer([self.directory]):
            for name in UNITS:
                content = read_file(self.directory / name)
                if content is not None and not _is_ours(content):
                    left.append(f"{self.directory / name} is not ours and stays")
                elif content is not None:
                    self._disable(name)
                    remove_file(self.directory / name)
        return left

    def _disable(self, name: str) -> None:
        """Remove the links that enable a unit, wherever they seem to lead from here."""
        for directory in list(self.directory.glob("*.wants")):
            if (directory / name).is_symlink():
                remove_file(directory / name)
                with suppress(OSError):  # others are wanted there, too
                    directory.rmdir()


def unit(name: str, programs: str) -> bytes:
    """A unit's text, for programs in this directory of the node."""
    text = resources.files("conf").joinpath("systemd", name).read_text()
    return f"{_MARK}\n{_ADVICE}\n{text.replace('{bin}', programs)}".encode()


def _is_ours(content: bytes) -> bool:
    return content.startswith(_MARK.encode())
