"""Installing: first by name, repeatable, and kind to other networks' files."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from cni_plugin.conflist import CONFLIST, conflist, networks_ahead, settings_of
from cni_plugin.durable import UNFINISHED
from cni_plugin.errors import Refusal
from cni_plugin.install import EXECUTABLES, SET_ASIDE, Kubeconfig, install, uninstall
from cni_plugin.program import Front, executable, native_executable, program
from libtortie.access import Access
from libtortie.errors import InvalidInput, NotFound

OTHER = json.dumps({"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "flannel"}]})
PROGRAM = executable("/run/x/cni.sock", "/opt/t/bin/tortie-cni", "/usr/bin/python3")
KUBECONFIG = b"# Written by tortie, which keeps the token fresh: changes are lost.\n{}\n"

Snapshot = dict[str, tuple[str, int]]


class Places:
    """A node's directories, and `install` into them."""

    def __init__(self, root: Path) -> None:
        self.bins = root / "bin"
        self.confs = root / "net.d"
        self.kubeconfig = root / "etc" / "kubeconfig"

    def install(self, program: bytes = PROGRAM, *, take_over: bool = False, **more: Any) -> None:
        settings = more.pop("settings", {})
        install(
            self.bins,
            self.confs,
            program=program,
            conflist=conflist(settings),
            take_over=take_over,
            **more,
        )

    def uninstall(self) -> list[str]:
        return uninstall(self.bins, self.confs, self.kubeconfig)

    def put(self, name: str, text: str = OTHER) -> None:
        self.confs.mkdir(exist_ok=True)
        (self.confs / name).write_text(text)

    def ours(self) -> Any:
        (plugin,) = json.loads((self.confs / CONFLIST).read_text())["plugins"]
        return plugin

    def readable(self) -> list[str]:
        """What a runtime would load, first to last."""
        return [name for name in snapshot(self.confs) if name.endswith((".conf", "list", ".json"))]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def snapshot(directory: Path) -> Snapshot:
    return {
        path.name: (path.read_text(), path.stat().st_mode & 0o777)
        for path in sorted(directory.iterdir())
    }


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_install_writes_everything_and_uninstall_removes_it(places: Places) -> None:
    places.install(kubeconfig=Kubeconfig(places.kubeconfig, KUBECONFIG))
    assert snapshot(places.bins) == {name: (PROGRAM.decode(), 0o755) for name in EXECUTABLES}
    assert snapshot(places.kubeconfig.parent) == {"kubeconfig": (KUBECONFIG.decode(), 0o600)}
    assert snapshot(places.confs)[CONFLIST][1] == 0o600
    before = snapshot(places.bins), snapshot(places.confs)
    places.install(kubeconfig=Kubeconfig(places.kubeconfig, KUBECONFIG))
    assert (snapshot(places.bins), snapshot(places.confs)) == before
    for _ in range(2):
        assert places.uninstall() == []
        for directory in (places.bins, places.confs, places.kubeconfig.parent):
            assert snapshot(directory) == {}


def test_uninstall_where_nothing_was_installed(places: Places) -> None:
    assert places.uninstall() == []
    assert not places.bins.exists()
    assert not places.confs.exists()


def test_uninstall_touches_nothing_that_came_while_it_had_nothing_to_lock(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's first installation begins just after it has looked for directories."""
    real, looked = Path.is_dir, []

    def is_dir(path: Path) -> bool:
        looked.append(path)
        found = real(path)
        if len(looked) == 3:
            places.install()
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert places.uninstall() == []
    assert names_in(places.bins) == sorted(EXECUTABLES)
    assert names_in(places.confs) == [CONFLIST]


def test_settings_go_into_our_plugins_object(places: Places) -> None:
    places.install(settings={"mtu": 1400, "kubernetes": None, "policy": None})
    assert places.ours()["mtu"] == 1400
    assert "kubernetes" not in places.ours()
    with pytest.raises(Refusal, match="policy_setup_timeout_seconds"):
        places.install(settings={"policy_setup_timeout_seconds": -1})
    assert places.ours()["mtu"] == 1400


# --- other networks --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "10-calico.conflist",
        "10-flannel.conf",
        "00-x.conf",
        "00-x.json",
        "10-tortie.conf",
        "05-\N{LATIN SMALL LETTER U WITH DIAERESIS}.conflist",
        ".conf",
        ".hidden.conflist",
        "1.json",
        "10-Tortie.conflist",
        "10-tortie.conflist",
    ],
)
def test_another_network_that_would_win(places: Places, name: str) -> None:
    """Refused by name with nothing written, or set aside and put back."""
    places.put(name)
    with pytest.raises(InvalidInput, match=name.replace(".", r"\.")):
        places.install()
    assert not places.bins.exists()
    before = snapshot(places.confs)
    assert list(before) == [name]
    for _ in range(2):
        places.install(take_over=True)
        assert places.readable() == [CONFLIST]
        assert places.ours()["type"] == "tortie"
    for _ in range(2):
        assert places.uninstall() == []
        assert snapshot(places.confs) == before
    assert snapshot(places.bins) == {}


@pytest.mark.parametrize(
    "name",
    [
        "87-podman.conflist",
        "10-tortie.conflist.bak",
        "10-tortif.conflist",
        "00-readme.txt",
        "00-x.CONF",
        "00-x.conf.swp",
        "conf",
        "10-tortie.json",
    ],
)
def test_one_that_would_not_win_stays(places: Places, name: str) -> None:
    places.put(name)
    before = snapshot(places.confs)
    places.install()
    assert set(snapshot(places.confs)) == {name, CONFLIST}
    places.uninstall()
    assert snapshot(places.confs) == before


def test_a_runtimes_order(tmp_path: Path) -> None:
    """libcni's: bytes compared, directories left out, links and broken files in."""
    (tmp_path / "00-directory.conf").mkdir()
    (tmp_path / "01-link.conf").symlink_to("/no/such/file")
    (tmp_path / "02-broken.json").write_text("{")
    odd = ["03-\U00010000.conf", os.fsdecode(b"03-\xff.conf")]  # as characters the other way
    for name in odd:
        (tmp_path / name).write_text(OTHER)
    (tmp_path / "10-a.conflist").write_text(OTHER)
    (tmp_path / "10-tortie.conf").write_text(OTHER)
    wins = ["01-link.conf", "02-broken.json", *odd, "10-a.conflist"]
    assert networks_ahead(tmp_path, CONFLIST) == [*wins, "10-tortie.conf"]
    assert networks_ahead(tmp_path, "10-aa.conflist") == wins
    assert networks_ahead(tmp_path / "missing", CONFLIST) == []


def test_many_are_set_aside_and_put_back(places: Places) -> None:
    for name in ("05-calico.conflist", "10-flannel.conf", "10-tortie.conflist"):
        places.put(name, OTHER + " " * len(name))
    (places.confs / "06-link.conf").symlink_to("/no/such/file")
    names = names_in(places.confs)
    places.install(take_over=True)
    assert names_in(places.confs) == sorted([CONFLIST, *(n + SET_ASIDE for n in names)])
    assert places.uninstall() == []
    assert names_in(places.confs) == names
    assert (places.confs / "10-flannel.conf").read_text() == OTHER + " " * 15


def test_a_network_that_came_back_by_itself_is_kept(places: Places) -> None:
    """Its installer wrote it anew: what was set aside is neither put over it nor thrown away."""
    places.put("05-calico.conflist", "old")
    places.install(take_over=True)
    places.put("05-calico.conflist", "new")
    (left,) = places.uninstall()
    assert "05-calico.conflist" in left
    kept = {"05-calico.conflist": "new", "05-calico.conflist" + SET_ASIDE: "old"}
    assert {name: text for name, (text, _) in snapshot(places.confs).items()} == kept


def test_a_link_to_nowhere_is_somebodys_file_too(places: Places) -> None:
    places.put("05-calico.conflist")
    places.install(take_over=True)
    link = places.confs / "05-calico.conflist"
    link.symlink_to("/no/such/file")
    assert len(places.uninstall()) == 1
    assert link.is_symlink()


def test_taken_over_twice_the_newer_comes_back(places: Places) -> None:
    for text in ("old", "new"):
        places.put("05-calico.conflist", text)
        places.install(take_over=True)
    assert places.uninstall() == []
    assert [text for text, _ in snapshot(places.confs).values()] == ["new"]


# --- whose file it is ------------------------------------------------------------------------


def test_ours_under_another_name_goes(places: Places) -> None:
    places.install(conflist_name="05-tortie.conflist")
    places.install()
    assert list(snapshot(places.confs)) == [CONFLIST]
    places.install(conflist_name="05-tortie.conflist")
    assert places.uninstall() == []
    assert snapshot(places.confs) == {}


def test_a_persons_own_list_with_our_plugin_is_theirs(places: Places) -> None:
    """Only the mark makes a list ours."""
    text = json.dumps({"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "tortie"}]})
    places.put("20-lan.conflist", text)
    places.install()
    places.uninstall()
    assert list(snapshot(places.confs)) == ["20-lan.conflist"]


@pytest.mark.parametrize("name", EXECUTABLES)
def test_somebody_elses_executable(places: Places, name: str) -> None:
    places.bins.mkdir()
    (places.bins / name).write_text("#!/bin/sh\n")
    with pytest.raises(InvalidInput, match=f"{name} is not ours"):
        places.install()
    assert not places.confs.exists()
    assert places.uninstall() == [f"{places.bins / name} is not ours and stays"]
    assert list(snapshot(places.bins)) == [name]


def test_somebody_elses_kubeconfig(places: Places) -> None:
    places.kubeconfig.parent.mkdir()
    places.kubeconfig.write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(InvalidInput, match="kubeconfig is not ours"):
        places.install(kubeconfig=Kubeconfig(places.kubeconfig, KUBECONFIG))
    assert not places.bins.exists()
    assert places.uninstall() == [f"{places.kubeconfig} is not ours and stays"]
    assert places.kubeconfig.exists()


# --- writing ---------------------------------------------------------------------------------


def odd_file(path: Path, kind: str) -> None:
    """What is no file, and would keep its reader waiting or fail it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize("kind", ["pipe", "directory", "socket"])
@pytest.mark.parametrize("place", ["bins/tortie", "bins/tortie-ipam", "kubeconfig", "confs"])
def test_what_is_no_file_is_in_the_way_before_anything_is_written(
    places: Places, place: str, kind: str
) -> None:
    path = {
        "bins/tortie": places.bins / "tortie",
        "bins/tortie-ipam": places.bins / "tortie-ipam",
        "kubeconfig": places.kubeconfig,
        "confs": places.confs / CONFLIST,
    }[place]
    odd_file(path, kind)
    with pytest.raises(InvalidInput, match=re.escape(str(path))):
        places.install(kubeconfig=Kubeconfig(places.kubeconfig, KUBECONFIG))
    assert [one for one in path.parents[1].rglob("*") if not one.is_dir() and one != path] == []
    left = places.uninstall()
    assert left == ([] if place == "confs" else [f"{path} is not ours and stays"])
    assert os.path.lexists(path)


@pytest.mark.parametrize("kind", ["pipe", "directory", "socket"])
def test_what_is_no_file_among_networks_keeps_nobody_waiting(places: Places, kind: str) -> None:
    odd_file(places.confs / "05-odd.conf", kind)
    odd_file(places.confs / "50-odd.conf", kind)
    places.install(take_over=True)
    aside = "05-odd.conf" + ("" if kind == "directory" else SET_ASIDE)
    assert names_in(places.confs) == [aside, CONFLIST, "50-odd.conf"]
    assert places.uninstall() == []
    assert names_in(places.confs) == ["05-odd.conf", "50-odd.conf"]


def test_a_running_executable_is_replaced_by_rename(places: Places) -> None:
    places.install()
    with (places.bins / "tortie").open() as running:
        inode = os.fstat(running.fileno()).st_ino
        places.install(executable("/run/new.sock", "/opt/x", "/usr/bin/python3"))
        assert (places.bins / "tortie").stat().st_ino != inode
        assert "/run/new.sock" not in running.read()


def test_the_callers_umask_does_not_matter(places: Places) -> None:
    before = os.umask(0o077)
    try:
        places.install()
    finally:
        os.umask(before)
    assert {mode for _, mode in snapshot(places.bins).values()} == {0o755}


def test_a_file_left_half_written_is_no_obstacle_and_goes(places: Places) -> None:
    places.install()
    leftovers = [places.bins / f".tortie{UNFINISHED}", places.confs / f".{CONFLIST}{UNFINISHED}"]
    for path in leftovers:
        path.write_text("half" * 100_000)  # of a longer one
        path.chmod(0o000)
    places.install()
    assert snapshot(places.bins) == {name: (PROGRAM.decode(), 0o755) for name in EXECUTABLES}
    assert not any(path.exists() for path in leftovers)
    for path in leftovers:
        path.write_text("half")
    places.uninstall()
    assert snapshot(places.bins) | snapshot(places.confs) == {}


@pytest.mark.parametrize("name", ["x.conf", ".conflist", "a/b.conflist", ".x.conflist", "../x", ""])
def test_a_conflists_name(places: Places, name: str) -> None:
    with pytest.raises(InvalidInput, match="not the name of a conflist"):
        places.install(conflist_name=name)


# --- the executable --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ("socket", "relative"),
        ("socket", ""),
        ("socket", "/" + "x" * 107),
        ("socket", '/run/"; import os #'),
        ("socket", "/run/\N{LATIN SMALL LETTER U WITH DIAERESIS}"),
        ("fallback", "/opt/\n/x"),
        ("fallback", "/opt/\0x"),
        ("fallback", "/opt/back\\slash"),
        ("fallback", "/" + "x" * 255),
        ("python", "/usr/bin/env python3"),
        ("python", "python3"),
        ("python", "/" + "x" * 100),
    ],
)
def test_constants_are_checked(wrong: str, value: str) -> None:
    good = {"socket": "/run/s", "fallback": "/opt/f", "python": "/usr/bin/python3"}
    with pytest.raises(InvalidInput, match=wrong):
        executable(**{**good, wrong: value})
    if wrong != "python":
        with pytest.raises(InvalidInput, match=wrong):
            native_executable(
                **{key: {**good, wrong: value}[key] for key in ("socket", "fallback")}
            )


def test_the_text_of_the_python_executable() -> None:
    text = PROGRAM.decode()
    assert text.startswith("#!/usr/bin/python3 -IS\n")
    assert '\nSOCKET = "/run/x/cni.sock"\n' in text
    assert '\nFALLBACK = "/opt/t/bin/tortie-cni"\n' in text
    compile(text, "tortie", "exec")


def test_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="/usr/bin/python9"):
        program(Front.PYTHON, python="/usr/bin/python9")
    with pytest.raises(NotFound, match="/usr/bin/python3"):
        program(Front.PYTHON, root=tmp_path)


def test_which_executable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The native one where it was built for this machine."""
    native = program(Front.NATIVE)
    assert native.startswith(b"\x7fELF")
    assert program() == native
    assert program(root=tmp_path) == native, "it needs no Python"
    foreign = tmp_path / "shim.bin"
    foreign.write_bytes(native[:18] + b"\xff\xff" + native[20:])
    for path in (foreign, tmp_path / "missing"):
        monkeypatch.setattr("cni_plugin.program.NATIVE", path)
        assert program().startswith(b"#!")
        with pytest.raises(NotFound, match="make shim"):
            program(Front.NATIVE)


# --- what the agent's configuration says -----------------------------------------------------


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ({}, {"kubernetes": None, "policy": None}),
        ({"kubeconfig": "/a"}, {"kubernetes": {"kubeconfig": "/a"}}),
        ({"k8s_api_root": "http://a"}, {"kubernetes": {"k8s_api_root": "http://a"}}),
        (
            {"k8s_api_root": "https://a", "k8s_token_file": "/t", "cni_kubeconfig": "/c"},
            {"kubernetes": {"kubeconfig": "/c"}},
        ),
        (
            {"kubeconfig": "/a", "cni_kubeconfig": "/c", "datastore_type": "kubernetes"},
            {"kubernetes": {"kubeconfig": "/c"}, "datastore_type": "kubernetes"},
        ),
        (
            {"datastore_type": "etcdv3", "etcd_endpoints": "http://e:1", "kubeconfig": "/a"},
            {
                "datastore_type": "etcdv3",
                "etcd_endpoints": "http://e:1",
                "kubernetes": {"kubeconfig": "/a"},
            },
        ),
    ],
)
def test_the_plugin_is_told_what_the_agent_is(
    said: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert settings_of(Access.model_validate(said)) == settings
    conflist(settings)


def test_a_token_file_of_the_agents_is_not_the_plugins() -> None:
    access = Access(k8s_api_root="https://a", k8s_token_file="/var/run/secrets/token")
    with pytest.raises(InvalidInput, match="cni_kubeconfig"):
        settings_of(access)
