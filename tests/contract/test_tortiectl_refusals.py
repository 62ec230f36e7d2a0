"""`tortiectl` and what cannot be used: every failure is one message and exit status 1."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey, Key, Kind, ResourceKey, path_of
from libtortie.model.resources import parse_resource
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.patience import PATIENCE

PROGRAM = str(Path(sys.executable).with_name("tortiectl"))
FIELD = "kubeVirtVMAddressPersistence"
CONFIGURATION = ResourceKey(Kind.IPAM_CONFIGURATION, "default")
HEAD = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\n"


class Machine:
    """A datastore, a file that names it and the installed program."""

    def __init__(self, root: Path) -> None:
        self.path = root / "t.db"
        self.file = root / "ctl.cfg"
        self.store = SqliteDatastore(self.path)
        self.name(str(self.path))

    def name(self, path: str) -> None:
        spec = {"datastoreType": "sqlite", "sqlitePath": path}
        self.file.write_text(HEAD + yaml.safe_dump({"spec": spec}))

    def run(self, *args: str | bytes, **how: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *args],
            env={"CALICO_NOTHING": "", "HOME": "/nonexistent"},
            stderr=subprocess.PIPE,
            stdout=how.pop("stdout", subprocess.PIPE),
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def ctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run(*args, "-c", str(self.file))

    def spoil(self, key: Key, data: dict[str, Any] | str) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        connection = sqlite3.connect(self.path)
        connection.execute("UPDATE kv SET data = ? WHERE path = ?", (text.encode(), path_of(key)))
        connection.commit()
        connection.close()

    def pools(self, *names: str) -> None:
        for name in names:
            body = {"kind": "IPPool", "metadata": {"name": name}, "spec": {"cidr": "10.1.0.0/24"}}
            self.store.create(ResourceKey(Kind.IP_POOL, name), parse_resource(Kind.IP_POOL, body))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.store.close()


def refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "metadata: !!timestamp 2001-99-99\n", "line 3: not a valid timestamp"),
        (HEAD + "metadata: !!bool x\n", "line 3: not a valid bool"),
        (HEAD + 'metadata: {a: "\\ud800"}\n', "line 3: not a valid str"),
        ("[" * 3000, "nested too deeply"),
        (HEAD + 'spec: {sqlitePath: "a\\0b"}\n', "cannot be a file's name"),
        (HEAD + "spec: {sqlitePath: " + "x" * 5000 + "}\n", os.strerror(errno.ENAMETOOLONG)),
    ],
)
def test_files_that_are_no_configuration(machine: Machine, text: str, words: str) -> None:
    machine.file.write_text(text)
    refused(machine.ctl("get", "ippools"), words)


def test_what_is_no_regular_file_is_not_waited_for(machine: Machine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        refused(machine.run("get", "ippools", "-c", str(path)), f"{path}: not a regular file")


def test_arguments_that_are_not_utf8(machine: Machine) -> None:
    refused(machine.run(b"get", b"ippools", b"\xff"), "is not UTF-8")


@pytest.mark.parametrize("args", [("get", "ippools"), ("--help",)])
def test_a_full_device(machine: Machine, args: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = machine.run(*args, *(["-c", str(machine.file)][: 2 * (len(args) - 1)]), stdout=full)
    refused(done, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "args",
    [
        ("ipam", "configure", "--strictaffinity="),
        ("ipam", "configure", "--max-blocks-per-host="),
        ("ipam", "configure", "--kubevirt-ip-persistence="),
        ("ipam", "configure", "--ip-cooldown-seconds="),
        ("ipam", "show", "--ip", ""),
        ("get", "np", "-n", ""),
        ("get", "np", ""),
        ("get", "np", "-o", ""),
        ("get", "np", "-c", ""),
        ("-l", "", "get", "np"),
        ("--context", "", "get", "np"),
    ],
)
def test_empty_values(machine: Machine, args: tuple[str, ...]) -> None:
    refused(machine.run(*args) if "-c" in args else machine.ctl(*args), "Invalid value for")
    assert machine.store.list(IPAMConfigKey()).records == ()


@pytest.mark.parametrize("name", ["../a", "*", "A", "-a", "a" * 64, "a\n"])
def test_namespaces_are_dns_labels(machine: Machine, name: str) -> None:
    refused(machine.ctl("get", "wep", f"--namespace={name}"), "is no DNS label")


def test_one_that_cannot_be_read_does_not_hide_the_others(machine: Machine) -> None:
    machine.pools("p1", "p2")
    machine.spoil(ResourceKey(Kind.IP_POOL, "p1"), "x")
    done = machine.ctl("get", "ippools", "p1", "p2", "-o", "name")
    assert done.stdout == "ippool.projectcalico.org/p2\n"
    refused(done, "ippools/p1")


def broken_settings(machine: Machine, place: Key) -> None:
    """Settings in both places, of which one names an unknown persistence."""
    done = machine.ctl(
        "ipam", "configure", "--strictaffinity=true", "--max-blocks-per-host=3",
        "--kubevirt-ip-persistence=Enabled",
    )  # fmt: skip
    assert done.returncode == 0
    if place == CONFIGURATION:
        spec = {"strictAffinity": True, "maxBlocksPerHost": 3, FIELD: "On"}
        body = {"kind": "IPAMConfiguration", "apiVersion": "projectcalico.org/v3", "spec": spec}
        machine.spoil(place, {**body, "metadata": {"name": "default", "uid": "u1"}})
    else:
        machine.spoil(place, {"strict_affinity": True, "maxBlocksPerHost": 3, FIELD: "On"})


@pytest.mark.parametrize("place", [IPAMConfigKey(), CONFIGURATION])
@pytest.mark.parametrize("value", list(Persistence))
def test_the_obvious_repair_of_a_setting(machine: Machine, place: Key, value: Persistence) -> None:
    broken_settings(machine, place)
    remedy = "`tortiectl ipam configure --kubevirt-ip-persistence="
    refused(machine.ctl("ipam", "show", "--show-configuration"), remedy)
    refused(machine.ctl("ipam", "configure", "--ip-cooldown-seconds=5"), remedy)
    done = machine.ctl("ipam", "configure", f"--kubevirt-ip-persistence={value}")
    assert (done.returncode, done.stderr) == (0, "")
    config = machine.store.get(IPAMConfigKey()).value
    assert isinstance(config, IPAMConfig)
    assert (config.strict_affinity, config.max_blocks_per_host) == (True, 3)
    assert config.kubevirt_persistence is value
    resource = machine.store.get(CONFIGURATION).value
    assert getattr(resource, "spec").kubevirt_persistence == value  # noqa: B009
    shown = machine.ctl("ipam", "show", "--show-configuration")
    assert f"{FIELD[0].upper()}{FIELD[1:]} is {value}" in shown.stdout


def test_the_repair_in_etcd(machine: Machine, member: EtcdMember) -> None:
    spec = {"datastoreType": "etcdv3", "etcdEndpoints": member.url}
    machine.file.write_text(HEAD + yaml.safe_dump({"spec": spec}))
    broken = {"strict_affinity": True, "maxBlocksPerHost": 3, FIELD: "On"}
    member.put(path_of(IPAMConfigKey()), json.dumps(broken).encode())
    refused(machine.ctl("ipam", "show"), "`tortiectl ipam configure --kubevirt-ip-persistence=")
    done = machine.ctl("ipam", "configure", "--kubevirt-ip-persistence=Disabled")
    assert (done.returncode, done.stderr) == (0, "")
    with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
        config = store.get(IPAMConfigKey()).value
    assert isinstance(config, IPAMConfig)
    assert (config.strict_affinity, config.max_blocks_per_host) == (True, 3)
    assert config.kubevirt_persistence is Persistence.DISABLED
