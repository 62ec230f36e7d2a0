"""The image's installer and what it leaves on a node that has no Python, nor anything else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.bare_host import BareHost
from tests.fakes.bundles import tree

pytestmark = pytest.mark.root


@pytest.fixture
def host(memory: Path) -> Iterator[BareHost]:
    """A host; its copies of the bundle go with the test."""
    made = BareHost(memory / "host")
    yield made
    shutil.rmtree(made.root)


@pytest.fixture(scope="module")
def installed(memory: Path, image_root: Path) -> Iterator[BareHost]:
    """A host with the image's version, which no test changes."""
    made = BareHost(memory / "installed")
    done_well(made.install_from(image_root))
    yield made
    shutil.rmtree(made.root)


@pytest.fixture
def newer(image_root: Path, memory: Path) -> Iterator[Path]:
    """The image of another version, with the same files."""
    other = memory / "newer"
    shutil.copytree(image_root, other, symlinks=True, copy_function=os.link)
    manifest = other / "opt/tortie/bundle/bundle.json"
    text = manifest.read_text()
    manifest.unlink()  # it is a link to the first image's
    manifest.write_text(json.dumps({**json.loads(text), "version": "9.9"}))
    yield other
    shutil.rmtree(other)


def done_well(done: object) -> None:
    status, stderr = getattr(done, "returncode", None), getattr(done, "stderr", "")
    assert (status, stderr) == (0, ""), stderr


def version_in_use(host: BareHost) -> str:
    return (host.root / "opt/tortie/bin").readlink().parts[1]


def test_the_plugin_runs_where_there_is_nothing(host: BareHost, image_root: Path) -> None:
    """Without an agent the fallback answers, by either executable and both names."""
    for front in ("native", "python"):
        done_well(host.install_from(image_root, "--shim", front))
        status, answer = host.cni("VERSION")
        assert status == 0
        assert "1.1.0" in answer["supportedVersions"]
        status, answer = host.cni("ADD", "tortie-ipam")
        assert status == 1
        assert (answer["code"], answer["msg"][:30]) == (11, "/var/lib/tortie/tortie.db does")


def test_all_programs_run(installed: BareHost) -> None:
    programs = installed.root / "opt/tortie/versions" / version_in_use(installed) / "bin"
    names = sorted(path.name for path in programs.iterdir() if path.name != "launch")
    assert names == [
        "bird", "birdc", "nft", "python3", "tortie-bird", "tortie-cni", "tortie-controllers",
        "tortie-ipam", "tortie-migration-proxy", "tortie-node", "tortiectl",
    ]  # fmt: skip
    for name in names:
        if name not in ("birdc", "tortie-cni", "tortie-ipam"):
            option = "--help" if name.startswith("tortie") else "--version"
            done = installed.run(f"/opt/tortie/bin/{name}", option)
            assert done.returncode == 0, (name, done.stderr)
            assert not name.startswith("tortie") or f"sage: {name} " in done.stdout


MODULES = "ssl, sqlite3, ctypes, hashlib, lzma, bz2, zlib, uuid, requests, yaml, pydantic, pyroute2"


def test_every_library_is_the_bundles(installed: BareHost) -> None:
    """Nothing of the host's is even looked for: its loader's cache and variables count nothing."""
    script = (
        f"import sys, {MODULES}, libtortie.datastore.etcd_rpc\n"
        "print({line.split()[-1] for line in open('/proc/self/maps') if '.so' in line})\n"
        "print(sys.executable, ssl.get_default_verify_paths().cafile)\n"
    )
    hostile = ["/bin/busybox", "env", "LD_PRELOAD=/x.so", "LD_LIBRARY_PATH=/lib", "PYTHONHOME=/x"]
    done = installed.run(*hostile, "/opt/tortie/bin/python3", "-I", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    prefix = f"/opt/tortie/versions/{version_in_use(installed)}"
    maps = first.strip("{}").replace("'", "").split(", ")
    assert len(maps) > 30
    assert all(path.startswith(prefix) for path in maps)
    assert second.split()[0] == f"{prefix}/bin/python3"


def test_nothing_is_written_into_an_installed_version(installed: BareHost) -> None:
    before = tree(installed.root / "opt/tortie")
    installed.cni("ADD")
    installed.run("/opt/tortie/bin/tortiectl", "version", "--client")
    assert tree(installed.root / "opt/tortie") == before


def test_a_program_keeps_the_version_that_it_runs_from(
    host: BareHost, image_root: Path, newer: Path
) -> None:
    """It may import what it has not imported yet, long after the upgrade."""
    done_well(host.install_from(image_root))
    old = version_in_use(host)
    script = "input(); import migration_proxy.daemon; print(migration_proxy.daemon.__file__)"
    with host.begin("/opt/tortie/bin/python3", "-c", f"print('up', flush=True); {script}") as one:
        assert one.stdout and one.stdin
        assert one.stdout.readline() == "up\n"
        done_well(host.install_from(newer, "--keep", "1"))
        assert version_in_use(host).startswith("9.9-")
        assert (host.root / "opt/tortie/versions" / old).is_dir()
        assert host.cni("VERSION")[0] == 0
        one.stdin.write("\n")
        one.stdin.close()
        assert old in one.stdout.read()
        assert one.wait() == 0
    done_well(host.install_from(newer, "--keep", "1"))
    assert not (host.root / "opt/tortie/versions" / old).exists()
    done_well(host.install_from(image_root))
    assert version_in_use(host) == old, "back to the older version"
    assert len(list((host.root / "opt/tortie/versions").iterdir())) == 2
    assert host.cni("VERSION")[0] == 0
    done_well(host.run_in(image_root, "uninstall"))
    assert not (host.root / "opt/tortie").exists()


def test_uninstall_by_the_nodes_own_program(host: BareHost, image_root: Path) -> None:
    """It removes what it runs from."""
    directories = ("opt/cni/bin", "etc/cni/net.d")
    for name in directories:
        (host.root / name).mkdir(parents=True)
    before = tree(host.root)
    done_well(host.install_from(image_root))
    done_well(host.run("/opt/tortie/bin/tortiectl", "node", "uninstall"))
    assert tree(host.root) == before


def test_elsewhere(host: BareHost, image_root: Path) -> None:
    """A node whose /opt cannot be written to, or not be executed from."""
    done_well(host.install_from(image_root, "--prefix", "/var/lib/tortie-bin"))
    assert host.cni("VERSION")[0] == 0
    assert not (host.root / "opt/tortie").exists()


def test_without_proc_the_launcher_says_so(installed: BareHost) -> None:
    hidden = f"mount() {{ command mount -t tmpfs none {installed.root}/proc; }}"
    done = installed.run("/opt/tortie/bin/tortiectl", "version", "--client", before=hidden)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == "/opt/tortie/bin/tortiectl: /proc is not mounted\n"


def test_closed_standard_files(installed: BareHost) -> None:
    """The hold on the version must not become a program's standard input."""
    script = "import os; os.write(2, os.readlink('/proc/self/fd/0').encode())"
    command = f'exec /opt/tortie/bin/python3 -c "{script}" <&- || true'
    done = installed.run("/bin/busybox", "sh", "-c", command)
    assert "/opt/tortie" not in done.stderr
