"""Whatever stands at the path of a file that we read: an answer or a reason, and never a hang."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cni_plugin import mtu, wiring
from cni_plugin.bundle import MANIFEST, read_bundle
from cni_plugin.conflist import conflist
from cni_plugin.durable import read_file
from cni_plugin.ports import Ports
from cni_plugin.types import NetConf
from felix_shim import config as agent
from felix_shim.datastore_id import read_id
from felix_shim.drivers.status_files import StatusFiles
from felix_shim.settings import Settings
from felix_shim.state import StateFile
from ipam.annals import Annals
from libtortie import files
from libtortie.access import kubeconfig_in, read_access, text_of
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import InvalidInput, TortieError
from libtortie.history_spool import Spool
from libtortie.kube import credentials
from libtortie.kube.config import KubeConfig, in_cluster
from libtortie.model.history import Fact, What
from libtortie.serving_access import tokens_in
from migration_proxy import config as proxy

DEADLINE = 60.0
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
FACT = Fact(datetime(2026, 1, 1, tzinfo=UTC), What.GRANTED, "n0")


def named(path: Path) -> str:
    text = f"nodename_file: {path}\n"
    return agent.parse_config(text, "node.yaml", {}, hostname="the-host").nodename


def mtu_of(path: Path) -> int:
    conf = SimpleNamespace(mtu=0, require_mtu_file=True)
    return mtu.wanted(cast(NetConf, conf), cast(Ports, SimpleNamespace(mtu_file=path)))


def token(path: Path) -> str:
    return credentials.load(KubeConfig("http://10.0.0.1", token_file=path)).token


def namespace(path: Path) -> str:
    (path.parent / "token").write_text("t")
    return in_cluster(IN_CLUSTER, path.parent).namespace


def status(path: Path) -> None:
    there = StatusFiles(path.parent)
    there.body(path.name)
    there.apply({path.name: "body"}, in_sync=False)
    assert path.read_text() == "body"


def spool(path: Path) -> None:
    there = Spool(path)
    Annals("n0", lambda: FACT.at, there.append).write([FACT])
    there.drain(MemoryDatastore())


READERS: dict[str, Callable[[Path], object]] = {
    "token": lambda path: tokens_in(str(path)),
    "api-token": token,
    "namespace": namespace,
    "nodename": named,
    "nodename-of-plugin": lambda path: wiring.node_name(
        NetConf(name="net", nodename_file=str(path))
    ),
    "mtu": mtu_of,
    "node.yaml": lambda path: agent.load_config(str(path), required=True, environ={}),
    "node.yaml-of-others": read_access,
    "migration-proxy.yaml": lambda path: proxy.load_config(str(path), {}),
    "kubeconfig": kubeconfig_in,
    "conflist": lambda path: conflist({}, path),
    "bundle.json": lambda path: read_bundle(path.parent, "x86_64"),
    "datastore-id": read_id,
    "migration-state.json": lambda path: StateFile(path, "boot").load(0.0, Settings()),
    "network": read_file,
    "status": status,
    "history.spool": spool,
}
FILES = {"bundle.json": MANIFEST}


def directory(path: Path) -> None:
    path.mkdir()


def written(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


ODD: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "directory": directory,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "empty": written(b""),
    "blank": written(b"\r\n \n"),
    "nul": written(b"a\0b\n"),
    "not-utf-8": written(b"\xff\xfe\xed\xa0\x80\n"),
    "mark-alone": written(b"\xef\xbb\xbf"),
    "two-lines": written(b"one\r\ntwo\r\n"),
    "nested": written(b"[" * 100_000),
    "number": written(b"9" * 10_000),
}


def outcome(read: Callable[[Path], object], path: Path) -> object:
    """What reading gives or raises, in time."""
    found: list[object] = []

    def body() -> None:
        try:
            found.append(read(path))
        except Exception as error:  # judged by the test
            found.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert found, "it hangs"
    return found[0]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_none_of_its_kind_is_told_or_passed_over(
    reader: str, odd: str, tmp_path: Path
) -> None:
    path = tmp_path / FILES.get(reader, reader)
    ODD[odd](path)
    found = outcome(READERS[reader], path)
    assert not isinstance(found, Exception) or isinstance(found, TortieError | OSError), repr(found)


@pytest.mark.parametrize("content", [b"n7", b"n7\n", b"n7\r\n", b"\xef\xbb\xbfn7\r\n", b" n7 \n"])
@pytest.mark.parametrize(
    ("reader", "right"),
    [
        ("token", (b"n7",)),
        ("api-token", "n7"),
        ("namespace", "n7"),
        ("nodename", "n7"),
        ("nodename-of-plugin", "n7"),
    ],
)
def test_ends_of_lines_and_an_editors_mark_are_not_of_a_word(
    reader: str, right: object, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / reader
    path.write_bytes(content)
    assert READERS[reader](path) == right


@pytest.mark.parametrize("text", ["a\0b", "one\ntwo", "UPPER", "-a", "a" * 300, "Ä"])
def test_a_nodename_that_is_none_names_no_node(text: str, tmp_path: Path) -> None:
    path = tmp_path / "nodename"
    path.write_text(text)
    assert READERS["nodename-of-plugin"](path) == ""
    with pytest.raises(InvalidInput, match="nodename"):
        named(path)


def test_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert files.read_bytes(path, 3) == b"abc"
    path.write_bytes(b"abcd")
    with pytest.raises(OSError, match="File too large"):
        files.read_bytes(path, 3)


def test_no_descriptor_is_left_of_what_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the count alone
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none"):
        with pytest.raises(OSError):
            files.read_bytes(path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - the count alone


def test_a_stamp_changes_with_its_file(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    assert files.stamp(path) is None
    assert files.stamp("a\0b") is None
    path.write_bytes(b"one")
    other.write_bytes(b"two")
    before = files.stamp(path)
    assert before == files.stamp(path)
    other.replace(path)
    assert files.stamp(path) not in (before, None)


def test_a_file_that_somebody_named_may_be_of_any_size(tmp_path: Path) -> None:
    export = tmp_path / "export"
    with export.open("wb") as file:
        file.truncate(files.MOST_BYTES + 1)
    assert len(text_of(export)) == files.MOST_BYTES + 1
    with pytest.raises(InvalidInput, match="export: File too large"):
        text_of(export, files.MOST_BYTES)
