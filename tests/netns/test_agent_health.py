"""Eight faults of a real agent: each fails the right probe, its end mends it, and liveness fails
for nothing that a restart would not cure."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.metric_reference import COMPONENTS
from tests.fakes.node_process import DEADLINE, until

pytestmark = pytest.mark.root
PORT = 9091


class Patient(CalledNode):
    """A node whose agent can be struck. Programs it runs fail while a file of their name is there;
    its state directory is a small file system."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.faults = root / "faults"
        for directory in ("faults", "state", "bin", "db"):
            (root / directory).mkdir(parents=True)
        state = str(root / "state")
        tmpfs = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", state]
        subprocess.run(tmpfs, check=True, timeout=120)
        umount = ["umount", "--lazy", state]
        stack.callback(subprocess.run, umount, check=False, timeout=120)
        bird = self._program(root, "bird")
        super().__init__(
            root,
            fresh_name("ah"),
            metrics_port=PORT,
            bird={"mode": "supervised", "binary": bird},
            sqlite_path=str(root / "db" / "tortie.db"),
        )
        stack.enter_context(closing(self))
        self.module = "tests.fakes.stricken_agent"
        self._program(root, "nft")

    def _program(self, root: Path, name: str) -> str:
        path = root / "bin" / name
        fault = self.faults / name
        path.write_text(f'#!/bin/sh\n[ ! -e {fault} ] || exit 9\nexec /usr/sbin/{name} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def strike(self, name: str) -> None:
        (self.faults / name).touch()

    def heal(self, name: str) -> None:
        (self.faults / name).unlink()

    def ready(self) -> bool:
        return self.probe("/readyz") == {}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("ah") / "node"
        made = Patient(root, stack)
        patch.setenv("PATH", f"{root}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        patch.setenv("STRICKEN", str(made.faults))
        made.start()
        until("it is ready", made.ready)
        yield made


def struck(
    node: Patient, check: str, begin: Callable[[], object], end: Callable[[], object]
) -> str:
    """A fault, until the probe tells of it and tells no more; what it told."""
    dead = {check} & {"reconciler", "cni-socket"}
    until("it is ready before", node.ready)
    begin()
    try:
        said = until(f"{check} is told", lambda: node.probe("/readyz").get(check, ""))
        until("it is as alive as it should be", lambda: node.probe("/livez").keys() == dead)
    finally:
        end()
    until(f"{check} is over", node.ready)
    until("it is alive", lambda: node.probe("/livez") == {})
    return said


def test_it_serves_every_metric_that_it_is_said_to(node: Patient) -> None:
    page = node.page("/metrics")
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    said = {one.name: one.kind for one in COMPONENTS["tortie-node"]}
    with_more = "tortie_conntrack_", "tortie_peer_", "tortie_cni_kubeconfig_"
    assert types == {name: kind for name, kind in said.items() if not name.startswith(with_more)}
    for series in (
        'forged_frames_total{reason="arp"} ',
        'reconciler_queue_seconds_sum{queue="events"} ',
    ):
        assert f"\ntortie_{series}" in page
    assert "\ntortie_bird_up 1\n" in page


def test_the_datastore_goes_away_and_comes_back(node: Patient) -> None:
    place, away = node.root / "db", node.root / "away"
    assert "tortie.db" in struck(
        node, "datastore", lambda: place.rename(away), lambda: away.rename(place)
    )


def test_the_api_goes_away_and_comes_back(node: Patient) -> None:
    struck(node, "api", node.server.stop, lambda: node.inside(node.server.start))


def test_a_watch_breaks_while_the_api_answers(node: Patient) -> None:
    def begin() -> None:
        node.strike("watch")
        node.server.cut_watches()

    said = struck(node, "watches", begin, lambda: node.heal("watch"))
    assert "watches are broken here" in said


def test_bird_dies_and_cannot_be_started(node: Patient) -> None:
    def begin() -> None:
        node.strike("bird")
        pid = (node.root / "run" / "bird.pid").read_text().strip()
        subprocess.run(["kill", "-9", pid], check=True)

    assert "BIRD" in struck(node, "bird", begin, lambda: node.heal("bird"))


def test_nft_fails_while_the_rules_are_gone(node: Patient) -> None:
    def begin() -> None:
        node.strike("nft")
        nft = ["nsenter", f"--net=/run/netns/{node.name}", "/usr/sbin/nft", "flush", "ruleset"]
        subprocess.run(nft, check=True)

    assert "KernelError" in struck(node, "policy", begin, lambda: node.heal("nft"))


def test_the_reconciler_stalls(node: Patient) -> None:
    said = struck(node, "reconciler", lambda: node.strike("stall"), lambda: node.heal("stall"))
    assert said.startswith("at one thing for ")


def test_the_cni_socket_is_taken_away(node: Patient) -> None:
    path, away = node.root / "run" / "cni.sock", node.root / "run" / "away.sock"
    said = struck(node, "cni-socket", lambda: path.rename(away), lambda: away.rename(path))
    assert said == f"{path} was removed or replaced"


def test_the_disk_of_the_state_directory_fills(node: Patient) -> None:
    filler = node.root / "state" / "filler"

    def begin() -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1024)):
                    pass
            except OSError:
                return

    assert "No space left" in struck(node, "state-dir", begin, filler.unlink)


def test_an_agent_that_drains_is_alive_and_not_ready(node: Patient) -> None:
    assert node.agent is not None
    node.strike("stall")
    try:
        node.agent.terminate()
        until("it says that it stops", lambda: "stop" in node.probe("/readyz"))
        assert node.probe("/livez").keys() <= {"reconciler"}  # which we hold up
    finally:
        node.heal("stall")
    assert node.agent.wait(DEADLINE) == 0
    node.start()
    until("it is ready again", node.ready)


def test_before_the_datastore_is_there_an_agent_lives_and_is_not_ready(node: Patient) -> None:
    node.stop()
    node.config |= {"datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:1"}
    node.start(wait=False)
    wrong = until("the datastore is missed", lambda: _missed(node.probe("/readyz")))
    assert wrong["start"] == "it has not begun to serve CNI requests"
    assert node.probe("/livez") == {}
    assert node.stop() == 0


def _missed(wrong: dict[str, str]) -> dict[str, str]:
    return wrong if "datastore" in wrong else {}
