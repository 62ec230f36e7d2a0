"""What `tortiectl node install` brings to a node besides the plugin: a bundle, systemd's units."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cni_plugin.units import UNITS
from tests.fakes.bundles import make_bundle, tree
from tests.fakes.shim_node import SECONDS
from tortiectl.cli import main

TORTIECTL = Path(sys.executable).with_name("tortiectl")
UNIT_DIR = "etc/systemd/system"


class Host:
    """A host's file system below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root / "host"
        self.root.mkdir()
        self.config = root / "node.yaml"
        self.config.write_text("{}")

    def words(self, verb: str, *options: str) -> list[str]:
        return ["node", verb, "--root", str(self.root), "-c", str(self.config), *options]

    def __call__(self, verb: str, *options: str) -> Result:
        done = CliRunner().invoke(main, self.words(verb, *options), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done

    def refuses(self, *options: str) -> str:
        """The message of an installation that must change nothing."""
        before = tree(self.root)
        done = CliRunner().invoke(main, self.words("install", *options), catch_exceptions=False)
        assert done.exit_code == 1
        assert tree(self.root) == before
        return done.stderr

    def plugin(self) -> dict[str, Any]:
        text = (self.root / "etc/cni/net.d/10-tortie.conflist").read_text()
        found: dict[str, Any] = json.loads(text)["plugins"][0]
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    return str(make_bundle(tmp_path / "bundle"))


def test_the_executables_point_into_the_bundle(host: Host, bundle: str) -> None:
    for front in ("native", "python"):
        host("install", "--bundle", bundle, "--shim", front)
        program = (host.root / "opt/cni/bin/tortie").read_bytes()
        assert b"/opt/tortie/bin/tortie-cni" in program
        assert front == "native" or program.startswith(b"#!/opt/tortie/bin/python3 -IS\n")
    host("install", "--bundle", bundle, "--prefix", "/var/lib/b", "--fallback", "/opt/own")
    assert b"/opt/own" in (host.root / "opt/cni/bin/tortie").read_bytes()
    host("install", "--bundle", bundle, "--prefix", "/var/lib/b", "--shim", "python")
    text = (host.root / "opt/cni/bin/tortie").read_text()
    assert text.startswith("#!/var/lib/b/bin/python3 -IS\n")
    assert '"/var/lib/b/bin/tortie-cni"' in text
    host("uninstall", "--prefix", "/var/lib/b")
    host("uninstall")
    assert not [path for path in host.root.rglob("*") if not path.is_dir()]


def test_a_link_on_the_node_is_followed_as_on_the_node(host: Host, bundle: str) -> None:
    """Its /opt may be elsewhere; `bin` leads on from wherever that is."""
    (host.root / "opt").symlink_to("/var/opt")
    host("install", "--bundle", bundle)
    assert (host.root / "var/opt/tortie/bin/tortie-cni").exists()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("#!/nowhere/sh\n", "No such file or directory"),
        ("#!/bin/sh\necho broken >&2; exit 3\n", "does not run here: broken"),
        ("#!/bin/sh\n", "does not run here: status 0"),
        ("not a program\n", "Exec format error"),
    ],
)
def test_a_bundle_that_does_not_run_changes_no_network(
    host: Host, bundle: str, tmp_path: Path, program: str, reason: str
) -> None:
    """Better the old version, or no network, than one whose fallback cannot run."""
    host("install", "--bundle", bundle)
    before = (host.root / "opt/tortie/bin").readlink()
    broken = make_bundle(tmp_path / "broken", "2.0", program=program)
    words = host.words("install", "--bundle", str(broken), "--set", "mtu=1400")
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 1
    assert reason in done.stderr
    assert (host.root / "opt/tortie/bin").readlink() == before
    assert "mtu" not in host.plugin()


def test_refusals_of_a_bundle(host: Host, bundle: str, tmp_path: Path) -> None:
    assert "is no bundle" in host.refuses("--bundle", str(tmp_path))
    (host.root / "opt/tortie/bin").mkdir(parents=True)
    assert "opt/tortie/bin is not ours" in host.refuses("--bundle", bundle)


def test_many_installations_at_once(host: Host, tmp_path: Path) -> None:
    """Of different versions: one of them is in use, whole, and no more stay than may."""
    bundles = [make_bundle(tmp_path / f"b{number}", f"{number}.0") for number in range(4)]

    def install(source: Path) -> None:
        command = [str(TORTIECTL), *host.words("install", "--bundle", str(source))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        assert (done.returncode, done.stderr) == (0, "")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(install, bundles * 2))
    home = host.root / "opt/tortie"
    name = (home / "bin").readlink().parts[1]
    assert tree(home / "versions" / name) == tree(tmp_path / f"b{name[0]}")
    assert len(list((home / "versions").iterdir())) == 2
    assert sorted(path.name for path in home.iterdir()) == ["bin", "versions"]


def test_a_conflist_of_ones_own(host: Host, tmp_path: Path) -> None:
    """The rest of it stays as it is; it bears the mark and goes with `uninstall`."""
    template = tmp_path / "own.conflist"
    plugins = [{"type": "loopback"}, {"type": "tortie", "mtu": 1400}, {"type": "portmap"}]
    template.write_text(json.dumps({"name": "own", "cniVersion": "1.0.0", "plugins": plugins}))
    host("install", "--conflist", str(template), "--set", "policy_setup_timeout_seconds=7")
    body = json.loads((host.root / "etc/cni/net.d/10-tortie.conflist").read_text())
    assert body["name"] == "own"
    assert [one["type"] for one in body["plugins"]] == ["loopback", "tortie", "portmap"]
    assert body["plugins"][1]["mtu"] == 1400
    assert body["plugins"][1]["policy_setup_timeout_seconds"] == 7
    host("uninstall")
    assert list((host.root / "etc/cni/net.d").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is no conflist: want `name` and a list `plugins`"),
        ('{"plugins": []}', "is no conflist"),
        ('{"name": "n", "plugins": {}}', "is no conflist"),
        ('{"name": "n", "plugins": [1]}', "is no conflist"),
        ('{"name": "n", "plugins": [{"type": "calico"}]}', "no plugin of type tortie among"),
        ('{"name": "n", "plugins": [{"type": "tortie", "mtu": "x"}]}', "mtu"),
        ('{"name": "n", "plugins": [{"type": "tortie", "mtuu": 1}]}', "did you mean mtu"),
    ],
)
def test_a_conflist_that_is_refused(host: Host, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.conflist"
    path.write_text(text)
    assert message in host.refuses("--conflist", str(path))
    path.unlink()
    assert "own.conflist: No such file" in host.refuses("--conflist", str(path))


def test_units_come_and_go(host: Host, bundle: str) -> None:
    """Drop-ins and other units stay, and so do links that enable those."""
    units = host.root / UNIT_DIR
    (units / "tortie-node.service.d").mkdir(parents=True)
    (units / "tortie-node.service.d/own.conf").write_text("[Service]\n")
    (units / "multi-user.target.wants").mkdir()
    (units / "multi-user.target.wants/ssh.service").symlink_to("/lib/ssh.service")
    before = tree(units)
    for _ in range(2):
        host("install", "--bundle", bundle, "--systemd")
    texts = {name: (units / name).read_text() for name in UNITS}
    for name, text in texts.items():
        (line,) = [one for one in text.splitlines() if one.startswith("ExecStart=")]
        program = line.removeprefix("ExecStart=").split()[0]
        assert program == f"/opt/tortie/bin/{name.removesuffix('.service')}"
        (units / "multi-user.target.wants" / name).symlink_to(f"/{UNIT_DIR}/{name}")
    host("uninstall")
    assert tree(units) == before
    host("uninstall")


def test_units_of_others(host: Host, bundle: str) -> None:
    path = host.root / UNIT_DIR / "tortie-bird.service"
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\n")
    message = host.refuses("--bundle", bundle, "--systemd")
    assert "tortie-bird.service is not ours: move it away" in message
    host("install", "--bundle", bundle)
    assert "tortie-bird.service is not ours and stays" in host("uninstall").stderr
    assert path.read_text() == "[Service]\n"


def test_without_a_bundle_units_run_this_installation(host: Host) -> None:
    host("install", "--systemd", "--unit-dir", "/usr/local/lib/systemd/system")
    text = (host.root / "usr/local/lib/systemd/system/tortie-node.service").read_text()
    assert f"ExecStart={TORTIECTL.parent}/tortie-node\n" in text


@pytest.fixture
def verified(tmp_path: Path) -> Path:
    """Units whose programs are there."""
    host = Host(tmp_path)
    host("install", "--systemd")
    return host.root / UNIT_DIR


def test_systemd_understands_the_units(verified: Path) -> None:
    """Nothing unknown, nothing ignored. (Nothing is started: it reads the files.)"""
    done = systemd_analyze("verify", "--man=no", "--recursive-errors=no", *units_in(verified))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    broken = verified / "tortie-node.service"
    broken.write_text(broken.read_text().replace("KillMode=process", "KillMode=sometimes"))
    done = systemd_analyze("verify", "--man=no", "--recursive-errors=no", str(broken))
    assert "Failed to parse kill mode" in done.stderr


@pytest.mark.parametrize(
    ("unit", "most"),
    [
        ("tortie-node.service", 45),
        ("tortie-bird.service", 30),
        ("tortie-controllers.service", 25),
        ("tortie-migration-proxy.service", 37),
    ],
)
def test_the_units_are_hardened(verified: Path, unit: str, most: int) -> None:
    """systemd's own judgement, 0 to 100: without any of it a unit has 96."""
    words = ("security", "--offline=yes", "--no-pager", f"--threshold={most}")
    done = systemd_analyze(*words, str(verified / unit))
    assert done.returncode == 0, done.stdout[-300:]
    done = systemd_analyze(*words[:-1], "--threshold=10", str(verified / unit))
    assert done.returncode != 0


def units_in(directory: Path) -> list[str]:
    return [str(directory / name) for name in UNITS]


def systemd_analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "SYSTEMD_COLORS": "0"},
    )
