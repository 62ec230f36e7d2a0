"""YAML is read as Go reads it: what looks like an address or a range is not a number to base 60."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from felix_shim import config as node_config
from libtortie import go_yaml
from libtortie.access import parse_documents
from libtortie.errors import InvalidInput
from libtortie.kube.config import load_kubeconfig
from migration_proxy import config as proxy_config
from tortiectl.adopt.plan import parse_wishes

TEXTS = (
    "10:20",
    "63400:30",
    "1:2:3:4:5:6:7:8",
    "52:54:00:12:34:56",
    "1:30.5",
    "-1:30",
    "2020-01-01",
    "2020-01-01T10:20:30Z",
    "=",
)


@pytest.mark.parametrize("text", TEXTS)
def test_what_go_reads_as_text_is_text(text: str) -> None:
    assert go_yaml.load(f"a: [{text}]") == {"a": [text]}
    assert parse_documents(f"a: {text}", "here") == [{"a": text}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("010", 8),
        ("0x10", 16),
        ("1_000", 1000),
        ("1.5", 1.5),
        ("-3", -3),
        ("yes", True),
        ("~", None),
        (".inf", float("inf")),
        ("'10:20'", "10:20"),
        ("!!int 7", 7),
    ],
)
def test_everything_else_is_what_it_was(text: str, value: Any) -> None:
    assert go_yaml.load(text) == value == yaml.safe_load(text)


def _vm(mac: str) -> str:
    return f"""
kind: VirtualMachine
metadata: {{name: vm1}}
spec:
  template:
    metadata: {{annotations: {{cni.projectcalico.org/ipAddrs: '["10.0.0.1"]'}}}}
    spec: {{domain: {{devices: {{interfaces: [{{name: default, macAddress: {mac}}}]}}}}}}
"""


def _kubeconfig(root: Path) -> str:
    path = root / "kubeconfig"
    path.write_text(
        "clusters: [{name: c, cluster: {server: 'https://192.0.2.1'}}]\n"
        "users: [{name: u, user: {token: 10:20}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
    )
    return load_kubeconfig(path).token


READERS: dict[str, Callable[[Path], object]] = {
    "kubeconfig": _kubeconfig,
    "agent": lambda _: (
        node_config.parse_config("nodename: n1\nlog_file: 10:20", "node.yaml").log_file
    ),
    "proxy": lambda _: (
        proxy_config.parse_config(
            "disable_tls: true\nallowed_peers: [10.0.0.0/8]\nlog_file: 10:20", "proxy.yaml", {}
        ).log_file
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_reads_so(reader: str, tmp_path: Path) -> None:
    assert READERS[reader](tmp_path) == "10:20"


def test_the_mac_of_a_vm_to_come() -> None:
    (wish,) = parse_wishes(_vm("52:54:00:12:34:56"), "vm.yaml")
    assert wish.mac == "52:54:00:12:34:56"


@pytest.mark.parametrize("text", ["kind: List\nitems: 7\n", "kind: List\nitems:\n", "7"])
def test_a_list_of_vms_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="want CSV with columns name and ip, or VirtualMachines"):
        parse_wishes(text, "vm.yaml")


def _bomb() -> str:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(["a0: &a0 [x]", *levels])


@pytest.mark.parametrize(
    "text", [_bomb(), "&a {b: *a}", "a: &a [*a]", "kind: &k {? *k : 1}"], ids=str.split
)
def test_aliases_that_stand_for_too_much_are_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="excessive aliases"):
        go_yaml.load(text)
    with pytest.raises(InvalidInput, match="line 1: excessive aliases"):
        parse_documents(text, "here")


def test_aliases_are_read() -> None:
    text = "a: &a {b: [1, 2]}\nc: [*a, *a]\nd: {<<: *a, e: 3}\n"
    want = {"a": {"b": [1, 2]}, "c": [{"b": [1, 2]}] * 2, "d": {"b": [1, 2], "e": 3}}
    assert go_yaml.load(text) == want == yaml.safe_load(text)
