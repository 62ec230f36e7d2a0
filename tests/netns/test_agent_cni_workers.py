"""Worker processes of a real agent: what they serve, and what is left when one is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from cni_plugin.frame import Response
from cni_plugin.locks import FileLocks
from libtortie.errors import Unavailable
from libtortie.model.keys import Kind
from libtortie.model.names import host_ifname
from tests.fakes.agent_world import NAMESPACE, NODE, resource_record
from tests.fakes.fresh_names import fresh_name
from tests.fakes.kept_program import alive
from tests.fakes.node_process import DEADLINE, NodeProcess, ip, until
from tests.netns.test_agent_cni import ask

pytestmark = pytest.mark.root
Crowds = TypeVar("Crowds", bound="Crowd")
PODS = ("one", "other", "third")


class Crowd:
    """A node with pods that call at once. Whoever is `held` does not get its attachment's lock."""

    def __init__(self, node: NodeProcess, pool: ThreadPoolExecutor) -> None:
        self.node = node
        self._pool = pool
        self._locks = FileLocks(node.root / "run" / "locks")
        for pod in PODS:
            ip("netns", "add", f"{node.name}-{pod}")
            node.namespaces.append(f"{node.name}-{pod}")

    def call(self, verb: str, pod: str) -> Future[Response]:
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": f"ctr-{pod}",
            "CNI_NETNS": f"/run/netns/{self.node.name}-{pod}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": f"K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={pod}",
        }
        conf = {
            "cniVersion": "1.0.0",
            "name": "k8s-pod-network",
            "type": "tortie",
            "nodename": NODE,
            "policy_setup_timeout_seconds": 90,
            "endpoint_status_dir": str(self.node.root / "run" / "endpoint-status"),
        }
        path = self.node.root / "run" / "cni.sock"
        return self._pool.submit(ask, path, env, json.dumps(conf).encode())

    def hold(self, stack: ExitStack, pod: str) -> None:
        stack.enter_context(self._locks.hold(host_ifname(NAMESPACE, pod), DEADLINE))

    def passed_on(self) -> int:
        return self.number("tortie_cni_passed_on_total")

    def number(self, series: str) -> int:
        found = re.search(rf"^{re.escape(series)} (\d+)$", self.node.page("/metrics"), re.MULTILINE)
        return int(found[1]) if found else 0

    def worker(self) -> int:
        """The process that serves now."""
        lines = until("a worker serves", lambda: self.node.lines("cni_worker_serves"))
        return int(lines[-1]["pid"])

    def two(self, stack: ExitStack) -> tuple[Future[Response], Future[Response]]:
        """Two ADDs that wait for their locks: the agent has the first, a worker the other."""
        self.worker()
        for pod in PODS[:2]:
            self.hold(stack, pod)
        calls = self.call("ADD", PODS[0]), self.call("ADD", PODS[1])
        until("a worker has one", self.passed_on)
        return calls


@contextmanager
def crowd_on(
    kind: type[Crowds], root: Path, name: str, port: int, *, kept: bool = False
) -> Iterator[Crowds]:
    """A node with one worker that serves metrics on a port; at the end nothing of it is left."""
    node = NodeProcess(root, fresh_name(name), cni_workers=1, metrics_port=port)
    node.kept = kept
    with ThreadPoolExecutor(len(PODS)) as pool:
        try:
            record = resource_record(Kind.IP_POOL, "pool", {"cidr": "10.65.0.0/24"})
            node.store.create(record.key, record.value)
            node.start()
            yield kind(node, pool)
        finally:
            node.close()


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    with crowd_on(Crowd, tmp_path, "cw", 19091) as made:
        yield made


def test_what_comes_beside_another_is_served_by_a_worker_and_told_by_the_agent(
    crowd: Crowd,
) -> None:
    with ExitStack() as stack:
        calls = crowd.two(stack)
    answers = [call.result(DEADLINE) for call in calls]
    assert [answer.code for answer in answers] == [0, 0], answers
    assert len({json.loads(answer.stdout)["ips"][0]["address"] for answer in answers}) == 2
    assert crowd.passed_on() == 1
    assert {line["pod"] for line in crowd.node.lines("cni_add")} == {"one", "other"}
    count = 'tortie_cni_calls_total{command="ADD",code="0"}'
    until("both are counted", lambda: crowd.number(count) == 2)
    phases = 'tortie_cni_phase_seconds_count{command="ADD",phase="wiring"}'
    assert crowd.number(phases) == 2
    assert crowd.call("DEL", "other").result(DEADLINE).code == 0
    assert crowd.passed_on() == 1  # one alone is the agent's


def test_a_refusal_by_a_worker_is_told_and_counted_by_the_agent(crowd: Crowd) -> None:
    with ExitStack() as stack:
        calls = crowd.two(stack)
        ip("netns", "delete", f"{crowd.node.name}-third")
        assert crowd.call("ADD", "third").result(DEADLINE).code == 1
        assert crowd.passed_on() == 2
    assert [call.result(DEADLINE).code for call in calls] == [0, 0]
    (line,) = crowd.node.lines("cni_error")
    assert (line["command"], line["code"]) == ("ADD", 3)
    assert crowd.number('tortie_cni_refusals_total{reason="unknown_container"}') == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_ends_or_stands_still_costs_its_call_alone_and_leaves_nothing_held(
    crowd: Crowd, number: int
) -> None:
    with ExitStack() as stack:
        calls = crowd.two(stack)
        assert crowd.number("tortie_cni_workers") == 1
        os.kill(crowd.worker(), number)
        (lost,) = until("it is told", lambda: crowd.node.lines("cni_worker_lost"))
        assert lost["requests"] == 1
        assert crowd.number("tortie_cni_workers") == 0
        assert len(crowd.node.lines("cni_worker_hangs")) == (number == signal.SIGSTOP)
        (gone,) = until("its call ends", lambda: [call for call in calls if call.done()])
        with pytest.raises(Unavailable):  # the executable makes code 11 of it
            gone.result(DEADLINE)
    (kept,) = set(calls) - {gone}
    assert kept.result(DEADLINE).code == 0
    adds = [crowd.call("ADD", pod) for pod in PODS]
    assert [call.result(DEADLINE).code for call in adds] == [0, 0, 0]
    assert crowd.passed_on() == 1
    assert [crowd.call("DEL", pod).result(DEADLINE).code for pod in PODS] == [0, 0, 0]
    assert crowd.node.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ends_with_its_agent_and_the_next_one_has_its_own(
    crowd: Crowd, number: int
) -> None:
    worker = crowd.worker()
    with ExitStack() as stack:
        if number == signal.SIGKILL:
            calls = crowd.two(stack)
        crowd.node.stop(number)
        until("the worker has ended", lambda: not alive(worker))
        if number == signal.SIGKILL:
            for call in calls:
                with pytest.raises((Unavailable, OSError)):
                    call.result(DEADLINE)
    crowd.node.start()
    until("another serves", lambda: crowd.worker() != worker)
    assert crowd.call("ADD", "other").result(DEADLINE).code == 0
    assert len(crowd.node.lines("cni_worker_lost")) == 0


def test_an_orderly_stop_waits_for_what_a_worker_has(crowd: Crowd) -> None:
    stopped: list[int] = []
    with ExitStack() as stack:
        calls = crowd.two(stack)
        ending = threading.Thread(target=lambda: stopped.append(crowd.node.stop()))
        ending.start()
        until("no more is taken", lambda: not (crowd.node.root / "run" / "cni.sock").exists())
    assert [call.result(DEADLINE).code for call in calls] == [0, 0]
    ending.join(DEADLINE)
    assert stopped == [0]


def test_a_worker_that_stands_still_dies_with_its_agent(crowd: Crowd) -> None:
    worker = crowd.worker()
    os.kill(worker, signal.SIGSTOP)
    crowd.node.stop(signal.SIGKILL)
    until("the worker has ended", lambda: not alive(worker))
