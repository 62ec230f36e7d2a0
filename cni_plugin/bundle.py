"""The plugin's own interpreter and dependencies on a node, whatever the node has.

A bundle (`scripts/bundle.py` makes it) is a directory that runs from anywhere on its architecture.
On the node each version is a directory of its own below `versions/`, whole before it has its name;
`bin`, a link that is replaced by rename, leads to the programs of the one in use. Who started from
another keeps it: it holds a lock on its directory, and what is locked is never removed. No
installed version is ever written to again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cni_plugin.durable import UNFINISHED, flush_directory, flush_filesystem, read_file
from libtortie.deadline import Deadline, run
from libtortie.errors import InvalidInput
from libtortie.files import open_regular

MANIFEST = "bundle.json"
FALLBACK = "bin/tortie-cni"
VERSIONS = "versions"
_NAME = re.compile(r"[0-9A-Za-z][-.+0-9A-Za-z]*-[0-9a-f]{12}(\.\d+)?")
_LINK = re.compile(rf"{VERSIONS}/([^/]+)/bin")
_CHUNK = 1 << 20
_PROBE_SECONDS = 60.0


class File(BaseModel):
    """What the manifest says of a file, or of a link (then nothing but where it leads)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    link: str = ""
    mode: int = Field(default=0, ge=0, le=0o777)
    size: int = Field(default=0, ge=0)
    sha256: str = ""


class _Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    version: str = Field(pattern=r"^[0-9A-Za-z][-.+0-9A-Za-z]{0,63}$")
    machine: str
    files: dict[str, File]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as it can be copied from; its name is version and digest."""

    source: Path
    name: str
    files: Mapping[str, File]
    manifest: bytes

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files.values())


def read_bundle(source: Path, machine: str) -> Bundle:
    """A bundle that can run on this kind of machine. Raises `InvalidInput`, OSError."""
    content = read_file(source / MANIFEST)
    if content is None:
        raise InvalidInput(
            f"{source} is no bundle: it has no {MANIFEST} (`make image-root` makes one)"
        )
    try:
        said = _Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{source / MANIFEST}: {key}: {first['msg']}") from error
    if said.machine != machine:
        raise InvalidInput(f"{source} is for {said.machine}, and this machine is {machine}")
    for name, file in said.files.items():
        _require_inside(source, name)
        if file.link:
            _require_inside(source, str(PurePosixPath(name).parent / file.link))
    digest = hashlib.sha256(content).hexdigest()[:12]
    return Bundle(source, f"{said.version}-{digest}", said.files, content)


def _require_inside(source: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts or name == MANIFEST or "\0" in name:
        raise InvalidInput(f"{source / MANIFEST}: files: {name!r} is not a name within the bundle")


def runs(directory: Path) -> None:
    """Ask a version's fallback for the CNI versions. Raises `InvalidInput` where it cannot run."""
    program = directory / FALLBACK
    try:
        done = run(
            [program],
            Deadline(_PROBE_SECONDS),
            '{"cniVersion": "1.0.0"}',
            env={"CNI_COMMAND": "VERSION"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidInput(f"{program} does not run here: {error}") from error
    if done.returncode or "supportedVersions" not in done.stdout:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise InvalidInput(f"{program} does not run here: {said[:300]}")


@dataclass(frozen=True, slots=True)
class Home:
    """Where a node has its versions. Whoever writes is alone (`durable.only_writer`).

    `probe` raises for a version that does not run: it is then not put in use.
    """

    directory: Path
    probe: Callable[[Path], None] = runs

    def require_ours(self) -> None:
        """Raises `InvalidInput` where something of others is in our place."""
        link = self.directory / "bin"
        if os.path.lexists(link) and not self.current():
            raise InvalidInput(f"{link} is not ours: move it away, or name another --prefix")

    def current(self) -> str:
        """The version in use; empty without one."""
        try:
            found = _LINK.fullmatch(str((self.directory / "bin").readlink()))
        except OSError:
            return ""
        return found[1] if found else ""

    def put_in_use(self, bundle: Bundle) -> None:
        """Bring a version to the node, unless it is there, and let `bin` lead to it.

        Raises OSError, and `InvalidInput` for too little room, a damaged bundle or one that does
        not run; the version that was in use stays in use then.
        """
        self._remove_unfinished()
        name = self._intact(bundle) or self._copy(bundle)
        directory = self.directory / VERSIONS / name
        self.probe(directory)
        os.utime(directory)  # its turn to be removed is by when it came into use
        if self.current() != name:
            temporary = self.directory / f".bin{UNFINISHED}"
            temporary.symlink_to(f"{VERSIONS}/{name}/bin")
            temporary.rename(self.directory / "bin")
            flush_directory(self.directory)

    def prune(self, keep: int) -> list[str]:
        """Remove all versions but the `keep` that came into use last; those that stay locked."""
        current = self.current()
        old = sorted(
            (one for one in self._versions() if one.name != current),
            key=lambda one: one.stat().st_mtime_ns,
            reverse=True,
        )
        return [one.name for one in old[max(keep - 1, 0) :] if not self._remove(one)]

    def remove_all(self) -> list[str]:
        """Remove everything; what stays, and why. Raises OSError."""
        left = []
        if self.current():
            (self.directory / "bin").unlink()
            flush_directory(self.directory)
        for one in self._versions():
            _let_go(one)
            if not self._remove(one):
                left.append(f"{one} stays: a process runs from it")
        self._remove_unfinished()
        for directory in (self.directory / VERSIONS, self.directory):
            with suppress(OSError):  # something is left in it, or it is a mount
                directory.rmdir()
        return left

    def _versions(self) -> list[Path]:
        with suppress(FileNotFoundError):
            found = sorted((self.directory / VERSIONS).iterdir())
            return [one for one in found if _NAME.fullmatch(one.name)]
        return []

    def _remove_unfinished(self) -> None:
        """What a killed writer left, ours or half removed."""
        for directory in (self.directory, self.directory / VERSIONS):
            with suppress(FileNotFoundError):
                for path in list(directory.iterdir()):
                    if path.name.endswith(UNFINISHED) and path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    elif path.name.endswith(UNFINISHED):
                        path.unlink()

    def _intact(self, bundle: Bundle) -> str:
        """The name of a version that is this bundle, byte for byte; empty without one."""
        names = [one.name for one in self._versions() if one.name.startswith(bundle.name)]
        good = (one for one in names if _matches(self.directory / VERSIONS / one, bundle))
        return next(good, "")

    def _copy(self, bundle: Bundle) -> str:
        """Copy a bundle; the name it has got: a damaged one of that name may be in use."""
        versions = self.directory / VERSIONS
        versions.mkdir(exist_ok=True)
        _require_room(versions, bundle)
        temporary = versions / f".{bundle.name}{UNFINISHED}"
        try:
            _make_directories(temporary, bundle)
            for name, file in bundle.files.items():
                if file.link:
                    (temporary / name).symlink_to(file.link)
                else:
                    _write(temporary / name, _checked(bundle.source / name, file), file.mode)
            _write(temporary / MANIFEST, iter([bundle.manifest]), 0o644)
            flush_filesystem(temporary)
            name = next(one for one in _names(bundle.name) if not (versions / one).exists())
            temporary.rename(versions / name)
        except (OSError, InvalidInput):
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        flush_directory(versions)
        return name

    def _remove(self, version: Path) -> bool:
        """Remove a version unless a process holds it. Raises OSError."""
        descriptor = os.open(version, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = version.with_name(f".{version.name}{UNFINISHED}")
            version.rename(gone)
            shutil.rmtree(gone)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True


def _let_go(version: Path) -> None:
    """Give up this process's own hold on a version, which is the launcher's open directory."""
    for path in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(path.name)
        with suppress(OSError):
            if descriptor > 2 and os.path.samestat(os.fstat(descriptor), version.stat()):
                os.close(descriptor)


def _names(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}.{number}"
        number += 1


def _require_room(directory: Path, bundle: Bundle) -> None:
    """A node whose disk fills up loses its pods: better no upgrade. Raises `InvalidInput`."""
    disk = os.statvfs(directory)
    blocks = sum(-(-file.size // disk.f_frsize) for file in bundle.files.values())
    if blocks > disk.f_bavail:
        need = -(-blocks * disk.f_frsize >> 20)
        free = disk.f_bavail * disk.f_frsize >> 20
        raise InvalidInput(
            f"{directory} has {free} MiB free and {bundle.name} needs {need} MiB: make room, "
            "or name another --prefix"
        )


def _make_directories(target: Path, bundle: Bundle) -> None:
    """Those of all files, whatever the umask."""
    found = {parent for name in bundle.files for parent in PurePosixPath(name).parents}
    for directory in sorted(found):
        (target / directory).mkdir()
        (target / directory).chmod(0o755)


def _checked(path: Path, file: File) -> Iterator[bytes]:
    """A file's content, no more of it than the manifest says; raises `InvalidInput` at its end if
    it is another. Raises OSError."""
    digest, left = hashlib.sha256(), file.size
    with open_regular(path) as source:
        while chunk := source.read(min(_CHUNK, left)):
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        longer = bool(source.read(1))
    if longer or digest.hexdigest() != file.sha256:
        raise InvalidInput(f"{path} is not what the bundle's {MANIFEST} says: build it anew")


def _write(path: Path, content: Iterator[bytes], mode: int) -> None:
    """A new file. Raises OSError that names it, or what it could not be made from."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as target:
            for chunk in content:
                target.write(chunk)
            target.flush()
            os.fchmod(target.fileno(), mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from error


def _matches(directory: Path, bundle: Bundle) -> bool:
    """Whether a version has the bundle's files with their content and modes."""
    try:
        for name, file in bundle.files.items():
            path = directory / name
            if file.link:
                if str(path.readlink()) != file.link:
                    return False
            elif path.is_symlink() or path.stat().st_mode & 0o777 != file.mode:
                return False
            else:
                for _ in _checked(path, file):
                    pass
        return read_file(directory / MANIFEST) == bundle.manifest
    except (OSError, InvalidInput):
        return False
