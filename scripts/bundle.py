"""Make a directory that holds all that Tortie needs on a node but the kernel: see docs/hosts.md.

    python scripts/bundle.py DIRECTORY LAUNCHER PROGRAM…

The interpreter that runs this, its standard library, the distribution `tortie` with what it
requires, the system programs named and every shared library of theirs, with the loader. What comes
out runs from any place on any Linux of this architecture, by `scripts/launch.c`. Nothing is
fetched. `bundle.json`, written last, names every file with its digest.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTION = "tortie"
MANIFEST = "bundle.json"
UNUSED = re.compile(
    r"(test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|pydoc_data|__phello__"
    r"|site-packages|dist-packages|__pycache__|config-[^/]*)"
)
"""Directories of the standard library that no daemon imports."""
NOT_IMPORTED = re.compile(r"(_test|_ctypes_test|_tkinter|xxlimited|xxsubtype|_xx)")
PACKAGES = (
    "cni_plugin", "conf", "controllers", "felix_shim", "ipam", "libtortie", "migration_proxy",
    "tortiectl",
)  # fmt: skip


def main() -> None:
    """Build, and say how large it became; a bundle that was there is replaced at the end."""
    wanted, launcher, *programs = map(Path, sys.argv[1:])
    if wanted.exists() and not (wanted / MANIFEST).is_file():
        raise SystemExit(f"{wanted} is there and is no bundle: remove it, or name another place")
    target = wanted.with_name(f".{wanted.name}.new")
    shutil.rmtree(target, ignore_errors=True)
    library = target / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (target / "libexec").mkdir(parents=True)
    copy_standard_library(library)
    for package in distributions():
        copy_distribution(package, library)
    copy_own_packages(library)
    copy_file(Path(sys.executable).resolve(), target / "libexec" / "python3")
    for program in programs:
        copy_file(program.resolve(strict=True), target / "libexec" / program.name)
    names = [program.name for program in programs] + write_scripts(target / "libexec")
    copy_libraries(target)
    make_bin(target / "bin", launcher, ["python3", *names])
    compile_all(library)
    size = write_manifest(target)
    if wanted.exists():
        shutil.rmtree(wanted)
    target.rename(wanted)
    sys.stdout.write(f"{wanted}: {size}\n")


def copy_standard_library(library: Path) -> None:
    """What a daemon may import, without caches."""
    source = Path(sysconfig.get_path("stdlib"))
    for directory, inner, files in os.walk(source):
        inner[:] = sorted(one for one in inner if not UNUSED.fullmatch(one))
        for name in sorted(files):
            if not NOT_IMPORTED.match(name) and not name.endswith((".a", ".pyc")):
                path = Path(directory, name)
                copy_file(path, library / path.relative_to(source))
    (library / "sitecustomize.py").unlink(missing_ok=True)  # a distribution's own
    extensions = Path(sysconfig.get_config_var("DESTSHARED") or "")
    for path in extensions.glob("*.so"):
        if not NOT_IMPORTED.match(path.name):
            copy_file(path, library / "lib-dynload" / path.name)


def distributions() -> list[metadata.Distribution]:
    """All that ours requires, extras apart, in the order of their names."""
    found: dict[str, metadata.Distribution] = {}
    todo = [DISTRIBUTION]
    while todo:
        name = todo.pop()
        for line in metadata.distribution(name).requires or []:
            wanted = re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0].lower().replace("_", "-")
            if "extra ==" in line or wanted in found:
                continue
            try:
                found[wanted] = metadata.distribution(wanted)
            except metadata.PackageNotFoundError:
                if ";" not in line:  # of other systems, by a marker
                    raise
                continue
            todo.append(wanted)
    return [found[name] for name in sorted(found)]


def copy_distribution(distribution: metadata.Distribution, library: Path) -> None:
    """The modules of an installed distribution, and its metadata."""
    for file in distribution.files or []:
        path = Path(str(file.locate()))
        inside = PurePosixPath(file)
        if ".." in inside.parts or "__pycache__" in inside.parts or not path.is_file():
            continue
        copy_file(path, library / inside)


def copy_own_packages(library: Path) -> None:
    """Ours, as this working tree has them; with the native shim, which must have been built."""
    if not (ROOT / "cni_plugin" / "shim.bin").is_file():
        raise SystemExit("cni_plugin/shim.bin is missing: run `make shim`")
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                copy_file(path, library / path.relative_to(ROOT))


def write_scripts(libexec: Path) -> list[str]:
    """One Python script for each command of the distribution; their names."""
    names = []
    for point in metadata.distribution(DISTRIBUTION).entry_points:
        if point.group != "console_scripts" or point.module.split(".")[0] not in PACKAGES:
            continue
        (libexec / f"{point.name}.py").write_text(
            f"import sys\n\nfrom {point.module} import {point.attr}\n\n"
            f"sys.argv[0] = {point.name!r}\n{point.attr}()\n"
        )
        names.append(point.name)
    return sorted(names)


def copy_libraries(target: Path) -> None:
    """Every shared library that something in the bundle is linked with, and the loader."""
    own = {path.name for path in target.rglob("*.so*")}
    seen: set[str] = set()
    todo = [path for path in target.rglob("*") if is_elf(path)]
    while todo:
        for name, path in linked_with(todo.pop()):
            if name in seen or path.is_relative_to(target.resolve()):
                continue
            seen.add(name)
            if name not in own or not (target / "lib" / name).exists():
                copied = target / "lib" / ("ld.so" if name.startswith("ld-") else name)
                copy_file(path.resolve(), copied)
                todo.append(copied)
    loader = target / "lib" / "ld.so"
    if not loader.exists():
        raise SystemExit(f"{sys.executable} is linked statically, or against no loader known here")
    own_name = re.search(rb"ld-[a-z0-9_-]+\.so\.\d", loader.read_bytes())
    if own_name:  # libraries name it as one of theirs
        (target / "lib" / own_name[0].decode()).symlink_to("ld.so")


def linked_with(path: Path) -> Iterator[tuple[str, Path]]:
    """The libraries of an ELF file by name, as this machine finds them."""
    places = {sysconfig.get_config_var("LIBDIR") or "", os.environ.get("LD_LIBRARY_PATH", "")}
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, sorted(places)))}
    command = ["ldd", str(path.resolve())]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in text.stdout.splitlines():
        if "not found" in line:
            raise SystemExit(f"{path}: {line.strip()}")
        if match := re.match(r"\s+(?:(\S+) => )?(/\S+) \(0x", line):
            yield Path(match[1] or match[2]).name, Path(match[2])


def make_bin(directory: Path, launcher: Path, names: list[str]) -> None:
    """Each name is the launcher."""
    copy_file(launcher, directory / "launch")
    for name in names:
        (directory / name).symlink_to("launch")


def compile_all(library: Path) -> None:
    """Bytecode that needs no look at its source: nothing writes into an installed bundle."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    good = compileall.compile_dir(
        library, quiet=1, ddir="", invalidation_mode=mode, force=True, workers=1
    )
    if not good:
        raise SystemExit("a module cannot be compiled")


def write_manifest(target: Path) -> str:
    """`bundle.json`: version, machine, and every file; how many and how large they are."""
    version: dict[str, str] = {}
    exec((ROOT / "libtortie" / "__init__.py").read_text(), version)
    files: dict[str, dict[str, object]] = {}
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        if path.is_symlink():
            files[name] = {"link": str(path.readlink())}
        elif path.is_file():
            executable = is_elf(path) and path.parent.name in ("bin", "libexec", "lib")
            path.chmod(0o755 if executable else 0o644)
            content = path.read_bytes()
            files[name] = {
                "mode": path.stat().st_mode & 0o777,
                "size": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
    body = {"version": version["__version__"], "machine": os.uname().machine, "files": files}
    (target / MANIFEST).write_text(json.dumps(body, indent=1) + "\n")
    size = sum(int(str(one.get("size", 0))) for one in files.values())
    return f"{len(files)} files, {size / 2**20:.0f} MiB"


def is_elf(path: Path) -> bool:
    """Whether a file is a program or a library."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def copy_file(source: Path, target: Path) -> None:
    """Content and nothing else; a link's is what it leads to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


if __name__ == "__main__":
    main()
