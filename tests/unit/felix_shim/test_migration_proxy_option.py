"""Whether the agent runs the migration proxy, and with which configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from felix_shim import agent
from felix_shim.config import NodeConfig, parse_config
from felix_shim.keeper import Past
from felix_shim.proxy_keeper import proxy_command
from libtortie.errors import InvalidInput
from libtortie.jsonlog import JsonLog


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[NodeConfig]:
    """Configurations the agent was run with; it ends at once."""
    found: list[NodeConfig] = []

    def run(config: NodeConfig, _log: JsonLog, _past: Past) -> int:
        found.append(config)
        return 0

    monkeypatch.setattr(agent, "run", run)
    return found


@pytest.mark.parametrize(
    ("text", "flags", "used"),
    [
        ("", [], ""),
        ("", ["--migration-proxy"], "/etc/tortie/migration-proxy.yaml"),
        ("migration_proxy: /etc/other.yaml", [], "/etc/other.yaml"),
        ("migration_proxy: /etc/other.yaml", ["--migration-proxy"], "/etc/other.yaml"),
    ],
)
def test_on_request_only(
    tmp_path: Path, ran: list[NodeConfig], text: str, flags: list[str], used: str
) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(f"nodename: node1\n{text}\n")
    said = CliRunner().invoke(agent.main, ["--no-keeper", "--config", str(path), *flags])
    assert said.exit_code == 0, said.output
    assert [config.migration_proxy for config in ran] == [used]


def test_a_path_that_depends_on_where_the_agent_stands() -> None:
    with pytest.raises(
        InvalidInput, match=r"migration_proxy 'proxy\.yaml' is not an absolute path"
    ):
        parse_config("nodename: node1\nmigration_proxy: proxy.yaml", "node.yaml")


def test_the_command_names_file_socket_and_node() -> None:
    command = proxy_command("/etc/p.yaml", Path("/run/tortie/migration-proxy.sock"), "node1")
    assert command[1:] == [
        "-m",
        "migration_proxy.daemon",
        "--config",
        "/etc/p.yaml",
        "--control-socket",
        "/run/tortie/migration-proxy.sock",
        "--node",
        "node1",
    ]
