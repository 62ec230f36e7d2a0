"""Configuration file, FelixConfiguration and Go durations."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from felix_shim.accepted_config import accept
from felix_shim.config import NodeConfig, load_config, parse_config
from felix_shim.crew import Crew
from felix_shim.monitor import Monitor
from felix_shim.routes import Priorities
from felix_shim.settings import Settings, effective
from libtortie.errors import InvalidInput
from libtortie.jsonlog import JsonLog
from libtortie.model.resources import FelixConfigurationSpec
from libtortie.model.times import parse_duration
from tests.fakes.agent_world import RecordingLog


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("1m30s", 90), ("500ms", 0.5), ("1.5h", 5400), ("0", 0), ("2us", 2e-6)],
)
def test_go_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-1s", "30 s", "1d", "1s!", "\u0661s", "2562048h", "9" * 400 + "h"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def spec(**fields: Any) -> FelixConfigurationSpec:
    return FelixConfigurationSpec.model_validate(fields)


def test_the_node_overrides_the_default_field_by_field() -> None:
    found = effective(
        [
            (
                "default",
                spec(liveMigrationRouteConvergenceTime="10s", ipv4NormalRoutePriority=2000),
            ),
            ("node.n1", spec(liveMigrationRouteConvergenceTime="20s")),
        ]
    )
    assert found.convergence_seconds == 20
    assert found.ipv4 == Priorities(2000, 512)
    assert found.ipv6 == Priorities()
    assert effective([]) == Settings()


def test_bad_values_are_named_and_the_weaker_ones_hold() -> None:
    found = effective(
        [
            ("default", spec(liveMigrationRouteConvergenceTime="10s")),
            (
                "node.n1",
                spec(liveMigrationRouteConvergenceTime="soon", ipv4NormalRoutePriority=512),
            ),
        ]
    )
    assert found.convergence_seconds == 10
    assert found.ipv4 == Priorities()
    assert len(found.problems) == 2
    assert all("node.n1" in problem for problem in found.problems)


@pytest.mark.parametrize("prefix", ["t", "tap", "cal", "calix", "califelix123", "cali+", "*", " "])
def test_another_prefix_of_interfaces_is_said_to_be_ignored(prefix: str) -> None:
    """A veth's name is always ours, with eleven digits: no longer prefix could shorten them."""
    (problem,) = effective([("default", spec(interfacePrefix=prefix))]).problems
    assert "default: interfacePrefix" in problem
    assert repr(prefix) in problem
    for allowed in ("cali", "tap,cali", "cali, eni"):
        assert effective([("default", spec(interfacePrefix=allowed))]) == Settings()


def test_defaults_and_every_key() -> None:
    config = parse_config("", "node.yaml")
    assert config.bird.mode == "supervised"
    assert str(config.cni_socket) == "/run/tortie/cni.sock"
    text = "nodename: n1\nbird: {mode: off}\nuplinks: [eth0]\nip: 10.0.0.1/24\n"
    assert parse_config(text, "x").bird.mode == "off"
    assert parse_config(text, "x").node == "n1"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nodenam: n1", "nodenam"),
        ("bird: {mode: sometimes}", "bird.mode"),
        ("bird: {moed: off}", "bird.moed"),
        ("bird: {bfd_multiplier: 3}", "need bfd: true"),
        ("bird: {bfd: true, bfd_interval_ms: 5}", "bird.bfd_interval_ms"),
        ("bird: {secret_namespace: 'a/b'}", "bird.secret_namespace"),
        ("ip6: 192.0.2.1/24", "ip6: 192.0.2.1/24 is not IPv6"),
        ("ip: 10.0.0.1", "prefix length"),
        ("ip: nonsense/24", "ip|nonsense"),
        ("log_level: loud", "log_level"),
        ("- a list", "mapping"),
        ("a: [", "node.yaml"),
        ("kubeconfig: a\nk8s_api_root: http://b", "not both"),
        ("datastore_type: kubernetes", "needs kubeconfig or k8s_api_root"),
        ("datastore_type: kubernetes\nkubeconfig: a\nk8s_node: b", "nodename has to be that"),
        ("calico_api_group: v3", "calico_api_group"),
    ],
)
def test_what_is_refused_is_named(text: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        parse_config(text, "node.yaml")


def test_a_missing_file_is_the_defaults_unless_it_was_asked_for(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.yaml")
    assert load_config(missing, required=False).ip == "autodetect"
    with pytest.raises(InvalidInput, match="no such file"):
        load_config(missing, required=True)


def peers(**more: str) -> str:
    files = {f"peer_{name}_file": f"/{name}.pem" for name in ("ca", "cert", "key")}
    keys = {"nodename": "n1", **files, **more}
    return "\n".join(f"{key}: {value}" for key, value in keys.items())


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("nodename: n1", []),
        (peers(), [(9199, 9199)]),
        (peers(peer_port="9300"), [(9300, 9300)]),
        ("nodename: n1\nopen_migration_ports: true", [(49152, 49153)]),
        (
            peers(open_migration_ports="true", migration_proxy_ports="49200-49299"),
            [(9199, 9199), (49152, 49153), (49200, 49299)],
        ),
        (
            "nodename: n1\nopen_migration_ports: true\nmigration_proxy_ports: 49153-49200",
            [(49152, 49200)],
        ),
    ],
)
def test_ports_that_are_open_between_nodes(text: str, ports: list[tuple[int, int]]) -> None:
    found = parse_config(text, "f").ports_between_nodes
    assert [(one.first, one.last) for one in found] == ports


@pytest.mark.parametrize("ports", ["49299-49200", "0-1", "49200", "49200-65536", "a-b"])
def test_what_is_no_range_of_the_proxys_ports(ports: str) -> None:
    with pytest.raises(InvalidInput, match="migration_proxy_ports"):
        parse_config(f"open_migration_ports: true\nmigration_proxy_ports: '{ports}'", "f")


def test_the_proxys_ports_are_not_ignored_without_the_switch() -> None:
    with pytest.raises(InvalidInput, match="needs open_migration_ports"):
        parse_config("migration_proxy_ports: 49200-49299", "f")


def test_an_empty_list_of_failsafe_ports_is_stored_as_one() -> None:
    wire = {"bpfLogLevel": "", "failsafeInboundHostPorts": []}
    assert spec(**wire).to_wire() == wire
    ports = [{"protocol": "TCP", "port": 22, "net": "10.0.0.0/8"}]
    assert spec(failsafeOutboundHostPorts=ports).to_wire()["failsafeOutboundHostPorts"] == ports


# -- keys that a newer agent knows


NODE = "nodename: n1\nbird: {mode: external}\ndatastore_type: sqlite\n"


def loaded(directory: Path, text: str) -> NodeConfig:
    path = directory / "node.yaml"
    path.write_text(f"state_dir: {directory / 'state'}\n{text}")
    return load_config(str(path), required=True)


def started(directory: Path, text: str) -> NodeConfig:
    config = loaded(directory, text)
    log = RecordingLog()
    accept(config.state_dir, config.digest, config.unknown_keys, log)
    told = [line["keys"] for line in log.of("config_keys_unknown")]
    assert told == ([config.unknown_keys] if config.unknown_keys else [])
    return config


@pytest.mark.parametrize(
    ("newer", "named"),
    [
        ("shiny: 1\n", ("shiny",)),
        ("shiny: {deep: [1]}\nalso: x\n", ("shiny", "also")),
    ],
)
def test_a_newer_agents_keys_are_gone_without_on_a_node_that_had_the_rest(
    tmp_path: Path, newer: str, named: tuple[str, ...]
) -> None:
    before = started(tmp_path, NODE)
    after = started(tmp_path, NODE + newer)
    assert sorted(after.unknown_keys) == sorted(named)
    assert after.model_dump() == before.model_dump()
    assert started(tmp_path, NODE + newer).unknown_keys, "and once more"
    assert started(tmp_path, NODE).unknown_keys == ()


def test_a_key_of_a_section_too(tmp_path: Path) -> None:
    started(tmp_path, NODE)
    newer = NODE.replace("external", "external, shiny: 3")
    assert loaded(tmp_path, newer).unknown_keys == ("bird.shiny",)
    started(tmp_path, "nodename: n1\n")
    assert loaded(tmp_path, "nodename: n1\nbird: {shiny: 3}\n").unknown_keys == ("bird.shiny",)


@pytest.mark.parametrize(
    "wrong",
    [
        NODE.replace("datastore_type", "datastore_typ"),
        NODE.replace("mode", "mdoe"),
        NODE.replace("sqlite", "sqlite\nlog_level: debug") + "shiny: 1\n",
    ],
)
def test_a_wrong_name_in_the_place_of_a_right_one_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(InvalidInput, match="Extra inputs"):
        loaded(tmp_path, NODE + "shiny: 1\n")  # on a new node nothing tells them apart
    started(tmp_path, NODE)
    with pytest.raises(InvalidInput, match="Extra inputs"):
        loaded(tmp_path, wrong)
    with pytest.raises(InvalidInput, match="log_level"):
        loaded(tmp_path, NODE + "shiny: 1\nlog_level: loud\n")


def test_a_full_disk_remembers_nothing_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("felix_shim.accepted_config.replace_file", full)
    started(tmp_path, NODE)
    with pytest.raises(InvalidInput):
        loaded(tmp_path, NODE + "shiny: 1\n")


def test_such_an_agent_is_not_ready_and_says_why() -> None:
    config = parse_config("nodename: n1", "f")
    config._unknown = ("shiny",)
    log = JsonLog(io.StringIO())
    monitor = Monitor(config, log, Crew(log))
    said = monitor.ready()
    assert said["config"] == "node.yaml has keys that are not known: shiny"
    assert "config" not in monitor.live()
