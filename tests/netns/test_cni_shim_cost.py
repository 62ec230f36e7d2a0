"""What the executables are made of: the next to nothing that makes them quick to start."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cni_plugin import frame, shim
from cni_plugin.program import Front, executable, native_executable
from tests.fakes.shim_node import CONF, ENV, PYTHON, SECONDS, ShimNode, called_by, error_of, serving

ALLOWED_MODULES = frozenset(
    [
        "_abc",
        "_codecs",
        "_codecs_data",
        "_collections_abc",
        "_frozen_importlib",
        "_frozen_importlib_external",
        "_imp",
        "_io",
        "_signal",
        "_socket",
        "_stat",
        "_thread",
        "_warnings",
        "_weakref",
        "abc",
        "builtins",
        "codecs",
        "encodings",
        "encodings.aliases",
        "encodings.ascii",
        "encodings.latin_1",
        "encodings.utf_8",
        "errno",
        "genericpath",
        "io",
        "marshal",
        "os",
        "os.path",
        "posix",
        "posixpath",
        "stat",
        "sys",
        "time",
        "zipimport",
        "__main__",
    ]
)


def test_python_imports_next_to_nothing(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    source = executable("/run/x.sock", "/opt/x", PYTHON).decode()
    main = 'if __name__ == "__main__":\n    main()\n'
    assert main in source
    probe.write_text(source.replace(main, 'print(*sorted(sys.modules), sep="\\n")\n'))
    done = subprocess.run(
        [PYTHON, "-IS", str(probe)], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    assert set(done.stdout.split()) <= ALLOWED_MODULES
    assert source.startswith("#!/usr/bin/python3 -IS\n")


def test_they_stay_small() -> None:
    python = Path(shim.__file__).read_text()
    assert len(python.splitlines()) <= 150
    assert len(python) <= 5400
    native = Path(shim.__file__).with_name("shim.c").read_text()
    assert len(native.splitlines()) <= 150
    assert max(map(len, native.splitlines())) <= 100


@pytest.mark.root
def test_the_native_one_needs_nothing_of_the_host(tmp_path: Path) -> None:
    """No Python, libraries, /proc or /dev: a root directory with it and the agent's socket."""
    node = ShimNode(tmp_path, Front.NATIVE)
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b"{}"))
    bare = tmp_path / "bare"
    (bare / node.directory.relative_to("/")).mkdir(parents=True)
    shutil.copy(node.program, bare / "tortie")
    os.link(node.socket, bare / node.socket.relative_to("/"))

    def run() -> subprocess.CompletedProcess[bytes]:
        return called_by("/usr/sbin/chroot", str(bare), "/tortie")

    assert run().stdout == b"{}"
    assert seen == [frame.Request(ENV, CONF)]
    node.close()
    code, message, _ = error_of(run())
    assert code == 11
    assert f"no agent listens at {node.socket} and {node.fallback} cannot run" in message


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    """An installer refuses it; edited by hand, it is an error that names it, not a traceback."""
    node = ShimNode(tmp_path, Front.PYTHON)
    text = node.program.read_text()
    node.program.write_text(text.replace(str(node.socket), "/" + "x" * 120))
    code, message, version = error_of(node.run())
    assert (code, version) == (11, "0.4.0")
    assert "/xxx" in message
    assert "too long" in message


def test_the_native_constants_are_the_installers() -> None:
    made = native_executable("/run/a.sock", "/opt/b")
    assert b"/run/a.sock\0" in made
    assert b"/opt/b\0" in made
    assert shim.SOCKET.encode() not in made
    assert shim.FALLBACK.encode() not in made
    assert made == native_executable("/run/a.sock", "/opt/b")
    assert native_executable("/" + "s" * 106, "/" + "f" * 254).count(b"f" * 254) == 2


def test_an_interpreter_that_opens_the_native_one(tmp_path: Path) -> None:
    """As happens when it has just replaced the Python one: the request is served all the same."""
    node = ShimNode(tmp_path, Front.NATIVE)
    seen: list[frame.Request] = []
    node.agent(serving(seen, 0, b"{}"))
    done = called_by(PYTHON, "-IS", str(node.program))
    node.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}", b"")
    assert seen == [frame.Request(ENV, CONF)]
