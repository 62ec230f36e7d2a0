"""The runtime's half of the CNI specification, against plugins that only record their calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.cni_runtime import (
    Attachment,
    CniError,
    Finished,
    Runtime,
    load_network,
    parse_network,
    parse_reply,
    plugin_conf,
    result_addresses,
)
from lab.tools import LabError

CONFLIST = {
    "cniVersion": "1.0.0",
    "cniVersions": ["1.0.0", "1.1.0"],
    "name": "net",
    "plugins": [
        {"type": "first", "key": 1},
        {"type": "second", "capabilities": {"portMappings": True, "mac": False}},
    ],
}
ATTACHMENT = Attachment(
    "c1",
    "/run/netns/x",
    args=(("IgnoreUnknown", "1"), ("K8S_POD_NAME", "p")),
    capabilities={"portMappings": [1], "mac": "x", "other": 1},
)


@dataclass
class Plugins:
    """Answers by plugin; records (path, command, stdin)."""

    answers: dict[str, Finished] = field(default_factory=dict)
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    env: list[Mapping[str, str]] = field(default_factory=list)

    def __call__(self, path: str, env: Mapping[str, str], stdin: bytes) -> Finished:
        self.calls.append((path, env["CNI_COMMAND"], json.loads(stdin)))
        self.env.append(env)
        name = path.rpartition("/")[2]
        if env["CNI_COMMAND"] == "DEL":
            return self.answers.get(f"{name} DEL", Finished(0, b"", b""))
        result = {"cniVersion": "1.1.0", "from": name, "ips": [{"address": "10.0.0.1/32"}]}
        return self.answers.get(name, Finished(0, json.dumps(result).encode(), b""))


@pytest.fixture
def plugins() -> Plugins:
    return Plugins()


@pytest.fixture
def runtime(tmp_path: Path, plugins: Plugins) -> Runtime:
    conf = tmp_path / "net.d"
    conf.mkdir()
    (conf / "10-net.conflist").write_text(json.dumps(CONFLIST))
    (conf / "20-other.conflist").write_text("{}")
    return Runtime(conf, tmp_path / "cache", plugins)


def test_add_runs_the_chain_each_with_the_result_before(runtime: Runtime, plugins: Plugins) -> None:
    assert runtime.add(ATTACHMENT)["from"] == "second"
    (first, _, conf1), (second, _, conf2) = plugins.calls
    assert (first, second) == ("/opt/cni/bin/first", "/opt/cni/bin/second")
    assert "prevResult" not in conf1
    assert conf2["prevResult"]["from"] == "first"
    assert conf1["cniVersion"] == conf2["cniVersion"] == "1.1.0"
    assert conf1["name"] == "net"
    assert conf2["runtimeConfig"] == {"portMappings": [1]}
    assert "capabilities" not in conf2
    assert plugins.env[0]["CNI_ARGS"] == "IgnoreUnknown=1;K8S_POD_NAME=p"
    assert plugins.env[0]["CNI_NETNS"] == "/run/netns/x"


def test_del_runs_in_reverse_with_the_result_of_add(runtime: Runtime, plugins: Plugins) -> None:
    runtime.add(ATTACHMENT)
    plugins.calls.clear()
    runtime.delete(Attachment("c1", ""))
    assert [call[0].rpartition("/")[2] for call in plugins.calls] == ["second", "first"]
    assert all(call[2]["prevResult"]["from"] == "second" for call in plugins.calls)
    assert "CNI_NETNS" not in plugins.env[-1]


def test_del_uses_the_configuration_of_add_after_it_changed(
    runtime: Runtime, plugins: Plugins, tmp_path: Path
) -> None:
    runtime.add(ATTACHMENT)
    changed = {**CONFLIST, "plugins": [{"type": "third"}]}
    (tmp_path / "net.d" / "10-net.conflist").write_text(json.dumps(changed))
    plugins.calls.clear()
    runtime.delete(ATTACHMENT)
    assert [call[0].rpartition("/")[2] for call in plugins.calls] == ["second", "first"]


def test_del_without_add_still_runs_and_a_failed_del_keeps_the_cache(
    runtime: Runtime, plugins: Plugins
) -> None:
    runtime.delete(ATTACHMENT)
    assert all("prevResult" not in call[2] for call in plugins.calls)
    runtime.add(ATTACHMENT)
    plugins.answers["second DEL"] = Finished(1, b'{"code": 11, "msg": "later"}', b"")
    with pytest.raises(CniError):
        runtime.delete(ATTACHMENT)
    plugins.answers.clear()
    plugins.calls.clear()
    runtime.delete(ATTACHMENT)
    assert plugins.calls[0][2]["prevResult"]["from"] == "second"


def test_a_refused_add_carries_the_plugins_words(runtime: Runtime, plugins: Plugins) -> None:
    error = {"code": 100, "msg": "not this pod", "details": "because"}
    plugins.answers["second"] = Finished(1, json.dumps(error).encode(), b"noise")
    with pytest.raises(CniError) as caught:
        runtime.add(ATTACHMENT)
    assert (caught.value.plugin, caught.value.code) == ("second", 100)
    assert str(caught.value) == "second: not this pod: because"


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (Finished(127, b"", b"nsenter: no such file"), "no such file"),
        (Finished(0, b"hello", b""), "printed no JSON"),
        (Finished(0, b"[1]", b""), "printed no JSON object"),
        (Finished(1, b"[1]", b""), "without error JSON"),
    ],
)
def test_nonsense_of_a_plugin_is_an_error(done: Finished, words: str) -> None:
    with pytest.raises(CniError, match=words):
        parse_reply("p", done)


def test_silence_is_no_result() -> None:
    assert parse_reply("p", Finished(0, b" \n", b"")) is None


def test_the_first_network_by_name_counts(tmp_path: Path) -> None:
    for name in ("20-b.conflist", "10-a.conflist"):
        body = {"name": name, "cniVersion": "0.4.0", "plugins": [{"type": "x"}]}
        (tmp_path / name).write_text(json.dumps(body))
    (tmp_path / "05-aside.conflist.tortie-set-aside").write_text("{}")
    assert load_network(tmp_path).name == "10-a.conflist"
    assert load_network(tmp_path).cni_version == "0.4.0"


def test_no_network_is_said_in_a_runtimes_words(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="cni config uninitialized"):
        load_network(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"name": 1, "plugins": [3]}'])
def test_a_broken_network_names_its_file(raw: bytes) -> None:
    with pytest.raises(LabError, match=r"net\.d/10-x"):
        parse_network(raw, "10-x")


def test_a_single_plugins_conf_is_a_chain_of_one() -> None:
    network = parse_network(b'{"name": "n", "type": "x", "cniVersion": "1.0.0"}', "x.conf")
    assert [plugin["type"] for plugin in network.plugins] == ["x"]


def test_no_declared_capability_no_runtime_config() -> None:
    network = parse_network(json.dumps(CONFLIST).encode(), "x")
    assert "runtimeConfig" not in plugin_conf(network, network.plugins[0], {"mac": "x"}, None)


def test_addresses_ipv4_first() -> None:
    result = {"ips": [{"address": "fd00::1/128"}, {"address": "10.0.0.1/32"}]}
    assert result_addresses(result) == ("10.0.0.1", "fd00::1")
