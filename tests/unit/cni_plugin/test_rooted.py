"""A node's paths where its file system is mounted somewhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_plugin.rooted import below
from libtortie.errors import InvalidInput


def link(root: Path, path: str, target: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def test_a_link_means_a_place_on_the_node(tmp_path: Path) -> None:
    root = tmp_path / "host"
    link(root, "/opt/cni/bin", "/home/kubernetes/bin")
    link(root, "/home/kubernetes", "../var/lib/kubernetes")
    link(root, "/etc/cni", "/../../../etc/kubernetes/cni")
    link(root, "/etc/cni2", "../../../..")
    assert below(root, "/opt/cni/bin/x") == root / "var/lib/kubernetes/bin/x"
    assert below(root, "/etc/cni/net.d") == root / "etc/kubernetes/cni/net.d"
    assert below(root, "/etc/cni2/net.d") == root / "net.d"
    assert below(root, "/not/there/yet/") == root / "not/there/yet"
    assert below(root, "/not/../../there") == root / "there"
    assert below(root, "/") == root
    assert below(root, "/opt/cni/bin", follow=False) == root / "opt/cni/bin"
    assert below(root, "/home/kubernetes/y", follow=False) == root / "var/lib/kubernetes/y"


def test_what_has_no_end_or_no_beginning(tmp_path: Path) -> None:
    link(tmp_path, "/a", "/b")
    link(tmp_path, "/b", "a")
    with pytest.raises(InvalidInput, match="/a/x: too many symbolic links"):
        below(tmp_path, "/a/x")
    with pytest.raises(InvalidInput, match="is not an absolute path"):
        below(tmp_path, "a")


def test_our_own_root_is_as_the_kernel_has_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link(tmp_path, "/link", str(tmp_path / "real"))
    assert below(Path("/"), str(tmp_path / "link" / "x")) == tmp_path / "real" / "x"
