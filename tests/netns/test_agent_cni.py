"""The agent's CNI socket: who may ask, nonsense, many requests at once, ADD and DEL for real."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from cni_plugin.caller import require_caller
from cni_plugin.frame import Request, Response, encode_request, read_response
from felix_shim import cni_server
from felix_shim.cni_server import LIMIT, CNIServer, take_lock
from libtortie.errors import InvalidInput, Unavailable
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NODE, RecordingLog, resource_record
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, NodeProcess, ip, until

pytestmark = pytest.mark.root


def ask(path: Path, env: dict[str, str], stdin: bytes = b"{}") -> Response:
    request = encode_request(env, stdin)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(150)
        client.connect(str(path))
        client.sendall(request)
        return read_response(client)


Body = Callable[[], None]


class Served:
    """A server in this process, which gives callers all the time they need."""

    def __init__(self, path: Path, serve: Callable[[Request], Response]) -> None:
        self.path = path
        self.failed: list[BaseException] = []
        self.log = RecordingLog()
        self.server = CNIServer(path, serve, self._spawn, self.log)
        self.server.open()
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def _spawn(self, name: str, body: Body) -> threading.Thread:
        def guarded() -> None:
            try:
                body()
            except BaseException as error:
                self.failed.append(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def close(self) -> bool:
        done = self.server.stop(DEADLINE)
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()
        assert self.failed == []
        return done


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cni_server, "REQUEST_SECONDS", DEADLINE)
    monkeypatch.setattr(cni_server, "ANSWER_SECONDS", DEADLINE)


def echo(request: Request) -> Response:
    return Response(0, request.stdin + request.env["CNI_COMMAND"].encode())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "run" / "cni.sock", echo)
    yield made
    made.close()


def test_one_request_one_answer(served: Served) -> None:
    assert ask(served.path, {"CNI_COMMAND": "ADD"}, b"x").stdout == b"xADD"


def test_only_root_may_even_connect(served: Served) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(served.path.parent.stat().st_mode) == 0o755


def test_another_uid_gets_no_answer(served: Served) -> None:
    served.path.chmod(0o666)  # as if somebody had opened it up: the kernel's word still counts
    for directory in served.path.parents[:4]:
        if directory != Path("/tmp"):
            directory.chmod(0o755)
    code = (
        "import os,socket,sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(bytes.fromhex(sys.argv[2])); print(len(s.recv(100)))\n"
    )
    frame = encode_request({"CNI_COMMAND": "ADD"}, b"").hex()
    done = subprocess.run(
        [sys.executable, "-c", code, str(served.path), frame],
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stdout.strip() in ("0", ""), done.stderr
    refused = until("it is refused", lambda: served.log.of("cni_refused"))
    assert refused == [{"uid": 65534}]


@pytest.mark.parametrize("raw", [b"", b"GET / HTTP/1.0\r\n\r\n", b"TTR1\xff\xff\xff\xff", b"TTR1"])
def test_nonsense_gets_no_answer_and_harms_nobody(served: Served, raw: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(150)
        client.connect(str(served.path))
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        with pytest.raises((Unavailable, ConnectionError)):
            read_response(client)
    assert ask(served.path, {"CNI_COMMAND": "DEL"}).code == 0


def test_a_caller_that_goes_away_harms_nobody(served: Served) -> None:
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(served.path))
            client.sendall(encode_request({"CNI_COMMAND": "ADD"}, b"x" * 100_000))
    assert ask(served.path, {"CNI_COMMAND": "DEL"}).code == 0


def test_at_most_so_many_at_once_and_nobody_is_lost(tmp_path: Path) -> None:
    running, most, lock, all_in = 0, 0, threading.Lock(), threading.Event()

    def slow(request: Request) -> Response:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == LIMIT:
                all_in.set()
        all_in.wait(DEADLINE)
        time.sleep(0.02)  # one too many would come in now
        with lock:
            running -= 1
        return Response(0, b"")

    made = Served(tmp_path / "cni.sock", slow)
    try:
        with ThreadPoolExecutor(150) as pool:
            answers = list(pool.map(lambda _: ask(made.path, {"CNI_COMMAND": "ADD"}), range(150)))
    finally:
        made.close()
    assert [answer.code for answer in answers] == [0] * 150
    assert most == LIMIT


class Slow:
    """Serves a request when it is told to go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Response:
        self.begun.set()
        self.go_on.wait(DEADLINE)
        return Response(0, b"done")


def test_a_stop_waits_for_running_requests(tmp_path: Path) -> None:
    slow = Slow()
    made = Served(tmp_path / "cni.sock", slow)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(ask, made.path, {"CNI_COMMAND": "ADD"})
        assert slow.begun.wait(DEADLINE)
        closed = pool.submit(made.close)
        until("no more are taken", lambda: not made.path.exists())
        slow.go_on.set()
        assert closed.result(DEADLINE)
        assert answer.result(DEADLINE).stdout == b"done"


class SlowToBegin(Served):
    """Its accepting thread stands still after it had a request's thread begin."""

    def __init__(self, path: Path, serve: Callable[[Request], Response]) -> None:
        self.go_on = threading.Event()
        super().__init__(path, serve)

    def _spawn(self, name: str, body: Body) -> threading.Thread:
        thread = super()._spawn(name, body)
        self.go_on.wait(DEADLINE)
        return thread


def test_a_request_that_was_just_accepted_is_a_running_one(tmp_path: Path) -> None:
    slow = Slow()
    made = SlowToBegin(tmp_path / "cni.sock", slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, made.path, {"CNI_COMMAND": "ADD"})
        assert slow.begun.wait(DEADLINE)
        assert not made.server.stop(0.01), "it is running"
        made.go_on.set()
        slow.go_on.set()
        assert made.close()
        assert answer.result(DEADLINE).stdout == b"done"


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cni.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    made = Served(path, echo)
    assert ask(path, {"CNI_COMMAND": "ADD"}).code == 0
    made.close()


def test_the_lock_is_held_once_and_let_go_of(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.lock"
    held = take_lock(path)
    with pytest.raises(InvalidInput, match=f"pid {os.getpid()}"):
        take_lock(path)
    held.close()
    take_lock(path).close()


def test_the_lock_of_a_dead_agent_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that it forked has its files open, the lock's too, until it begins its program."""
    path = tmp_path / "run" / "agent.lock"
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    child, attempts, really = take_lock(path), [], cni_server._try_lock
    path.write_text(f"{dead.pid}\n")
    with pytest.raises(InvalidInput, match=f"pid {dead.pid}"):
        take_lock(path, patience=0)

    def try_lock(file: IO[str]) -> bool:
        attempts.append(really(file))
        if len(attempts) == 3:
            child.close()
        return attempts[-1]

    monkeypatch.setattr(cni_server, "_try_lock", try_lock)
    take_lock(path, patience=DEADLINE).close()
    assert attempts == [False, False, False, True]


def test_many_pods_added_and_deleted_at_once(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, fresh_name("ac"))
    pods = [f"p{number}" for number in range(16)]
    try:
        pool = resource_record(Kind.IP_POOL, "pool", {"cidr": "10.65.0.0/24", "blockSize": 26})
        node.store.create(pool.key, pool.value)
        node.start()
        for pod in pods:
            ip("netns", "add", f"{node.name}-{pod}")
            node.namespaces.append(f"{node.name}-{pod}")

        def call(verb: str, pod: str) -> Response:
            env = {
                "CNI_COMMAND": verb,
                "CNI_CONTAINERID": f"ctr-{pod}",
                "CNI_NETNS": f"/run/netns/{node.name}-{pod}",
                "CNI_IFNAME": "eth0",
                "CNI_PATH": "/opt/cni/bin",
                "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod}",
            }
            conf = {
                "cniVersion": "1.0.0",
                "name": "k8s-pod-network",
                "type": "tortie",
                "nodename": NODE,
                "datastore_type": "sqlite",
                "sqlite_path": str(node.root / "tortie.db"),
                "sqlite_shared": True,
                "policy_setup_timeout_seconds": 90,
                "endpoint_status_dir": str(node.root / "run" / "endpoint-status"),
            }
            return ask(node.root / "run" / "cni.sock", env, json.dumps(conf).encode())

        began = time.monotonic()
        with ThreadPoolExecutor(len(pods)) as workers:
            answers = list(workers.map(lambda pod: call("ADD", pod), pods))
        took = time.monotonic() - began
        print(f"{len(pods)} ADDs at once: {took * 1000:.0f} ms")
        assert [answer.code for answer in answers] == [0] * len(pods), answers[0].stdout
        addresses = {json.loads(answer.stdout)["ips"][0]["address"] for answer in answers}
        assert len(addresses) == len(pods)
        assert all(node.status(pod) for pod in pods)
        assert all(node.metrics(pod) == [1024] for pod in pods)
        assert len(node.lines("cni_add")) == len(pods)
        with ThreadPoolExecutor(len(pods)) as workers:
            answers = list(workers.map(lambda pod: call("DEL", pod), pods))
        assert [answer.code for answer in answers] == [0] * len(pods)
        until("status files go", lambda: not any(node.status(pod) for pod in pods))
    finally:
        node.close()


def test_a_configuration_for_another_datastore_or_api_is_not_served(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, fresh_name("ao"))
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"}
    env |= {"CNI_NETNS": f"/run/netns/{node.name}", "CNI_ARGS": ""}
    wrong: dict[str, list[Any]] = {
        "datastore_type": ["oracle", "etcd", "etcdv3"],
        "etcd_endpoints": ["http://127.0.0.1:1"],
        "sqlite_path": [str(tmp_path / "other.db")],
        "kubernetes": [{"k8s_api_root": "http://127.0.0.1:1"}, {}],
    }
    try:
        node.start()
        until("the agent serves", (node.root / "run" / "cni.sock").exists)
        for key, values in wrong.items():
            for value in values:
                conf = {"cniVersion": "1.0.0", "name": "n", "type": "tortie", key: value}
                answer = ask(node.root / "run" / "cni.sock", env, json.dumps(conf).encode())
                body = json.loads(answer.stdout)
                assert (answer.code, body["code"]) == (1, 7), (conf, body)
                assert key in body["msg"]
    finally:
        node.close()


@pytest.mark.parametrize("how", ["closes", "is only done sending"])
def test_a_call_knows_whether_its_caller_still_waits(tmp_path: Path, how: str) -> None:
    begun, went, over = threading.Event(), threading.Event(), threading.Event()
    found: list[bool] = []

    def slow(request: Request) -> Response:
        found.append(waits())
        begun.set()
        assert went.wait(DEADLINE)
        found.append(waits())
        over.set()
        return Response(0, b"")

    made = Served(tmp_path / "cni.sock", slow)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(made.path))
            client.sendall(encode_request({"CNI_COMMAND": "ADD"}, b"{}"))
            assert begun.wait(DEADLINE)
            if how == "closes":
                client.close()
            else:
                client.shutdown(socket.SHUT_WR)
            went.set()
            assert over.wait(DEADLINE)
    finally:
        assert made.close()
    assert found == [True, how != "closes"]


def waits() -> bool:
    """Whether ADD would go on."""
    try:
        require_caller()
    except Unavailable:
        return False
    return True
