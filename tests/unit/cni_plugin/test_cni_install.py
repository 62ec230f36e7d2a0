"""Installing: atomic, idempotent, first by name, and kind to other networks' files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from cni_plugin import install as module
from cni_plugin.errors import Refusal
from cni_plugin.install import CONFLIST, install, uninstall
from libtortie.errors import InvalidInput, NotFound

OTHER = json.dumps({"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "flannel"}]})


@pytest.fixture
def dirs(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "bin", tmp_path / "net.d"


def snapshot(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        path.name: (path.read_text(), path.stat().st_mode & 0o777)
        for path in sorted(directory.iterdir())
    }


def test_install_writes_both_files(dirs: tuple[Path, Path]) -> None:
    bins, confs = dirs
    install(bins, confs, socket="/run/x/cni.sock", fallback="/opt/t/bin/tortie-cni")
    (program,) = bins.iterdir()
    text, mode = snapshot(bins)["tortie"]
    assert (program.name, mode) == ("tortie", 0o755)
    assert text.startswith("#!/usr/bin/python3 -IS\n")
    assert '\nSOCKET = "/run/x/cni.sock"\n' in text
    assert '\nFALLBACK = "/opt/t/bin/tortie-cni"\n' in text
    compile(text, "tortie", "exec")
    assert snapshot(confs)[CONFLIST][1] == 0o600
    before = snapshot(bins), snapshot(confs)
    install(bins, confs, socket="/run/x/cni.sock", fallback="/opt/t/bin/tortie-cni")
    assert (snapshot(bins), snapshot(confs)) == before


def test_settings_go_into_our_plugins_object(dirs: tuple[Path, Path]) -> None:
    bins, confs = dirs
    install(bins, confs, settings={"mtu": 1400, "kubernetes": None, "policy": None})
    (ours,) = json.loads((confs / CONFLIST).read_text())["plugins"]
    assert ours["mtu"] == 1400
    assert "kubernetes" not in ours
    with pytest.raises(Refusal, match="policy_setup_timeout_seconds"):
        install(bins, confs, settings={"policy_setup_timeout_seconds": -1})
    assert json.loads((confs / CONFLIST).read_text())["plugins"][0]["mtu"] == 1400


def test_another_network_that_would_win_is_refused_and_nothing_written(
    dirs: tuple[Path, Path],
) -> None:
    bins, confs = dirs
    confs.mkdir()
    (confs / "10-flannel.conflist").write_text(OTHER)
    with pytest.raises(InvalidInput, match="10-flannel"):
        install(bins, confs)
    assert not bins.exists()
    assert list(snapshot(confs)) == ["10-flannel.conflist"]


def test_one_that_sorts_after_ours_stays(dirs: tuple[Path, Path]) -> None:
    bins, confs = dirs
    confs.mkdir()
    (confs / "87-podman.conflist").write_text(OTHER)
    (confs / "00-readme.txt").write_text("not read by runtimes")
    install(bins, confs)
    uninstall(bins, confs)
    assert sorted(snapshot(confs)) == ["00-readme.txt", "87-podman.conflist"]


def test_take_over_and_back(dirs: tuple[Path, Path]) -> None:
    bins, confs = dirs
    confs.mkdir()
    for name in ("05-calico.conflist", "10-flannel.conf"):
        (confs / name).write_text(OTHER)
    before = snapshot(confs)
    install(bins, confs, take_over=True)
    readable = [n for n in snapshot(confs) if n.endswith((".conf", ".conflist", ".json"))]
    assert readable == [CONFLIST]
    install(bins, confs, take_over=True)
    uninstall(bins, confs)
    assert snapshot(confs) == before
    assert list(bins.iterdir()) == []
    uninstall(bins, confs)


def test_a_conflist_of_ours_under_another_name_goes(dirs: tuple[Path, Path]) -> None:
    bins, confs = dirs
    install(bins, confs, conflist_name="05-tortie.conflist")
    install(bins, confs)
    assert list(snapshot(confs)) == [CONFLIST]


def test_a_crash_at_any_point_leaves_old_or_new(
    dirs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in place is never partial, and a left-over has a name that runtimes ignore."""
    bins, confs = dirs
    install(bins, confs, settings={"mtu": 1400})
    old = (confs / CONFLIST).read_text()
    for point in ("fsync", "fchmod"):
        with monkeypatch.context() as patch:

            def crash(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(os, point, crash)
            with pytest.raises(KeyboardInterrupt):
                install(bins, confs, settings={"mtu": 1300})
        assert (confs / CONFLIST).read_text() == old
        readable = [p.name for p in confs.iterdir() if p.suffix in (".conf", ".conflist", ".json")]
        assert readable == [CONFLIST]


def test_a_running_executable_is_replaced_by_rename(dirs: tuple[Path, Path]) -> None:
    bins, confs = dirs
    install(bins, confs)
    with (bins / "tortie").open() as running:
        inode = os.fstat(running.fileno()).st_ino
        install(bins, confs, socket="/run/new.sock")
        assert (bins / "tortie").stat().st_ino != inode
        assert "/run/new.sock" not in running.read()


@pytest.mark.parametrize(
    "wrong",
    [
        {"socket": "relative"},
        {"socket": "/" + "x" * 120},
        {"socket": '/run/"; import os #'},
        {"fallback": "/opt/\n/x"},
        {"fallback": "/opt/back\\slash"},
    ],
)
def test_constants_are_checked(dirs: tuple[Path, Path], wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        install(*dirs, **wrong)  # type: ignore[arg-type]  # parametrised keywords
    assert not dirs[0].exists() or list(dirs[0].iterdir()) == []


def test_no_interpreter(dirs: tuple[Path, Path]) -> None:
    with pytest.raises(NotFound, match="/usr/bin/python9"):
        install(*dirs, python="/usr/bin/python9")


def test_the_command(dirs: tuple[Path, Path]) -> None:
    bins, confs = dirs
    base = ["--bin-dir", str(bins), "--conf-dir", str(confs)]
    confs.mkdir()
    (confs / "00-x.conf").write_text(OTHER)
    done = CliRunner().invoke(module.main, base)
    assert done.exit_code == 1
    assert "--take-over" in done.output
    options = ["--take-over", "--set", "mtu=1400", "--set", "nodename=n1"]
    done = CliRunner().invoke(module.main, [*base, *options])
    assert done.exit_code == 0, done.output
    (ours,) = json.loads((confs / CONFLIST).read_text())["plugins"]
    assert (ours["mtu"], ours["nodename"]) == (1400, "n1")
    assert CliRunner().invoke(module.main, [*base, "--set", "mtu"]).exit_code == 1
    assert CliRunner().invoke(module.main, [*base, "--uninstall"]).exit_code == 0
    assert list(snapshot(confs)) == ["00-x.conf"]
