"""Versions of our programs side by side on the lab's nodes, as an installation brings them.

A version is a bundle of a checkout's packages; the interpreter is this process's. What installs it
on a node, switches to it and checks it is `cni_plugin.install`, as `tortiectl node install` does.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from cni_plugin.bundle import MANIFEST, Bundle, Home, read_bundle
from cni_plugin.conflist import conflist
from cni_plugin.install import Runtime, install
from lab import names, seed
from lab.state import CHECKOUT, StateDir
from lab.tools import LabError

PREFIX = "/opt/tortie"
"""Where a node has its versions, as the node sees it."""
PACKAGES = (
    *("cni_plugin", "conf", "controllers", "felix_shim", "ipam", "libtortie"),
    *("migration_proxy", "tortiectl"),
)
PROGRAMS = {
    "tortie-node": "felix_shim.agent",
    "tortie-cni": "cni_plugin.wiring",
    "tortie-controllers": "controllers.cli",
}


def pack(directory: Path, version: str, checkout: Path = CHECKOUT) -> Bundle:
    """A bundle of a checkout, made in `directory`. Raises `LabError` where there is none."""
    library = directory / "lib"
    for package in PACKAGES:
        if not (checkout / package).is_dir():
            raise LabError(f"{checkout} is no checkout of ours: it has no {package}/")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(checkout / package, library / package, ignore=ignored)
    mode = PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(library, quiet=1, ddir="", invalidation_mode=mode, workers=1)
    (directory / "bin").mkdir()
    for name, module in PROGRAMS.items():
        path = directory / "bin" / name
        path.write_text(launcher(module))
        path.chmod(0o755)
    manifest = {"version": version, "machine": os.uname().machine, "files": _files(directory)}
    (directory / MANIFEST).write_text(json.dumps(manifest))
    return read_bundle(directory, os.uname().machine)


def launcher(module: str) -> str:
    """A script that runs a module's `main` from the version it belongs to, wherever that is."""
    return (
        '#!/bin/sh\nhere=$(readlink -f "$0")\n'
        'PYTHONPATH="${here%/bin/*}/lib" PYTHONSAFEPATH=1 exec '
        f"{sys.executable} -c 'from {module} import main; main()' \"$@\"\n"
    )


def _files(directory: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            found[str(path.relative_to(directory))] = {
                "mode": path.stat().st_mode & 0o777,
                "size": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
    return found


def put_in_use(
    state: StateDir, node: names.LabNode, bundle: Bundle, datastore: Mapping[str, Any]
) -> None:
    """Bring a version to a node beside the one it has, and switch to it: with its own executable,
    which the node's agent of the other version serves until it is replaced.

    Raises `InvalidInput`, `LabError`.
    """
    install(
        state.node(node.name, "cni-bin"),
        state.node(node.name, "net.d"),
        program=executable_of(bundle),
        conflist=conflist(seed.conflist_settings(node, datastore)),
        runtime=Runtime(bundle, Home(state.node(node.name, "opt"))),
    )


def executable_of(bundle: Bundle) -> bytes:
    """The CNI executable as the version's own code makes it. Raises `LabError`."""
    done = subprocess.run(
        [sys.executable, "-c", _MAKE, "/run/tortie/cni.sock", f"{PREFIX}/bin/tortie-cni"],
        env={**os.environ, "PYTHONPATH": str(bundle.source / "lib"), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise LabError(f"{bundle.name} makes no executable: {done.stderr.decode(errors='replace')}")
    return done.stdout


_MAKE = """
import sys
from cni_plugin.program import program
sys.stdout.buffer.write(program(socket=sys.argv[1], fallback=sys.argv[2]))
"""


def version_of(pid: int) -> str:
    """Name of the version that a process runs from, empty without one; as it was started."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    for one in environ:
        name, _, value = one.decode(errors="replace").partition("=")
        if name == "PYTHONPATH" and value.endswith("/lib"):
            return Path(value).parent.name
    return ""
