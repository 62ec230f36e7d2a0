"""When BIRD is given a configuration, and when it is left alone."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, ip_address, ip_interface
from pathlib import Path

import pytest

from felix_shim import bird_daemon
from felix_shim.bgp_model import BirdInput, Peer
from felix_shim.config import NodeConfig
from felix_shim.drivers.bird_protocol import Session
from libtortie.errors import KernelError, Unavailable
from tests.fakes.agent_world import RecordingLog
from tests.fakes.kernel import FakeKernel

INPUT = BirdInput("n1", IPv4Address("172.31.1.2"), IPv4Interface("172.31.1.2/24"))


class FakeBird:
    """What `Bird` does, without one."""

    def __init__(self, *, alive: bool) -> None:
        self.running = alive
        self.texts: list[str] = []

    def alive(self) -> bool:
        return self.running

    def ensure(self, text: str) -> bool:
        self.texts.append(text)
        self.running = True
        return True


@pytest.mark.parametrize(("alive", "complete", "told"), [
    (True, True, 1), (True, False, 0), (False, True, 1), (False, False, 1),
])  # fmt: skip
def test_what_is_not_all_known_changes_no_bird_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, alive: bool, complete: bool, told: int
) -> None:
    bird = FakeBird(alive=alive)
    monkeypatch.setattr(bird_daemon, "bird_of", lambda _, **__: bird)
    run = bird_daemon.bird_runner(
        NodeConfig(nodename="n1", run_dir=str(tmp_path)), FakeKernel(), RecordingLog()
    )
    assert run is not None
    run(replace(INPUT, complete=complete))
    assert len(bird.texts) == told


def test_a_workloads_link_that_refuses_keeps_bird_from_no_other_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bird, kernel = FakeBird(alive=True), FakeKernel()
    monkeypatch.setattr(bird_daemon, "bird_of", lambda _, **__: bird)
    for name in ("cali1", "cali2"):
        kernel.add_link(name)

    def refuse(operation: str, subject: str) -> None:
        if operation == "ensure_address" and subject.startswith("cali1 "):
            raise KernelError(f"{subject}: Permission denied")

    kernel.namespaces.before = refuse
    ours = ip_address("169.254.0.179")
    peers = tuple(
        Peer(ip_address(f"10.65.0.{number}"), 65401, interface=f"cali{number}", source=ours)
        for number in (1, 2, 3)
    )
    run = bird_daemon.bird_runner(
        NodeConfig(nodename="n1", run_dir=str(tmp_path)), kernel, RecordingLog()
    )
    assert run is not None
    with pytest.raises(KernelError, match=r"cali1 .*Permission denied"):
        run(replace(INPUT, peers=peers))  # told, and tried again
    assert len(bird.texts) == 1
    assert kernel.addresses("cali2") == (ip_interface("169.254.0.179/32"),)


def test_the_systems_bird_is_written_for_and_never_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bird = FakeBird(alive=False)
    monkeypatch.setattr(bird_daemon, "bird_of", lambda _, **__: bird)
    config = NodeConfig.model_validate(
        {"nodename": "n1", "run_dir": str(tmp_path), "bird": {"mode": "external"}}
    )
    run = bird_daemon.bird_runner(config, FakeKernel(), RecordingLog())
    assert run is not None
    with pytest.raises(Unavailable, match="mode external"):
        run(INPUT)
    assert bird.texts == []
    file = tmp_path / "bird.conf"
    assert "router id 172.31.1.2" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640, "it may hold passwords"
    bird.running = True
    run(INPUT)
    assert len(bird.texts) == 1


def test_metrics_of_a_bird_that_is_there_and_of_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = NodeConfig(nodename="n1", run_dir=str(tmp_path))
    lines = "".join("".join(one.lines()) for one in bird_daemon.bird_metrics(config))
    assert "tortie_bird_up 0" in lines
    assert "tortie_bgp_sessions{" not in lines

    class Speaking(FakeBird):
        def sessions(self) -> tuple[Session, ...]:
            return (
                Session("a", "BGP", "up", "Established"),
                Session("b", "BGP", "start", "Active"),
                Session("c", "BGP", "start", "Active        Socket: Connection refused"),
                Session("d", "BGP", "down", ""),
                Session("e", "BGP", "start", "Whatever a BIRD may say"),
                Session("fib4", "Kernel", "up", ""),
            )

    monkeypatch.setattr(bird_daemon, "bird_of", lambda _, **__: Speaking(alive=True))
    lines = "\n".join("\n".join(one.lines()) for one in bird_daemon.bird_metrics(config))
    assert "tortie_bird_up 1" in lines
    for state, count in (("established", 1), ("active", 2), ("down", 2)):
        assert f'tortie_bgp_sessions{{state="{state}"}} {count}' in lines
