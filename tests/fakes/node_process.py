"""A real agent process in a network namespace of its own, with pods behind real veths.

Everything it makes lives below one temporary directory and in namespaces named after it; `close`
takes all of it away, whatever state it is in and whatever of that fails. Whoever waits here waits
for long: this machine may stand still for seconds, and then everybody's clock has gone on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import NotFound, Unavailable
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.linux.netns import Netns
from libtortie.model.keys import ResourceKey
from libtortie.model.names import host_ifname
from tests.fakes.agent_world import MAC, NAMESPACE, NODE, endpoint_record

T = TypeVar("T")
API_PORT = 18080
DEADLINE = 90.0
"""Seconds; many times what anything takes on a quiet machine of two cores."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.05


def until(what: str, condition: Callable[[], T], *, seconds: float = DEADLINE) -> T:
    """The first true value of a condition; fails naming what was awaited.

    Who is asked and unavailable has not said yes yet. The last look is after the deadline.
    """
    end = time.monotonic() + seconds
    pause, silence = FIRST_PAUSE, ""
    while True:
        late = time.monotonic() >= end
        try:
            if value := condition():
                return value
            silence = ""
        except Unavailable as error:
            silence = f" ({error})"
        assert not late, f"not within {seconds:g} s: {what}{silence}"
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, 1.2 * pause)


def ip(*words: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


class NodeProcess:
    """One node. `api`: run the lab's API server in the namespace and follow it."""

    def __init__(self, root: Path, name: str, *, api: bool = False, **config: Any) -> None:
        self.root = root
        self.name = name
        self.namespaces = [name]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: dict[str, socket.socket] = {}
        self.agent: subprocess.Popen[bytes] | None = None
        self.vmi_uid = ""
        self.module = "felix_shim.agent"
        self.kept = False
        """Whether the agent has its keeper, which then is `agent` here; else none follows it."""
        database = config.setdefault("sqlite_path", str(root / "tortie.db"))
        self.config = {
            "nodename": NODE,
            "nodename_file": str(root / "nodename"),
            "ip": "172.31.1.2/24",
            "sqlite_shared": True,
            "run_dir": str(root / "run"),
            "state_dir": str(root / "state"),
            "log_file": str(root / "log" / "node.log"),
            "log_level": "debug",
            "bird": {"mode": "off"},
            **config,
        }
        if api:
            self.config["k8s_api_root"] = f"http://127.0.0.1:{API_PORT}"
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            stack.callback(self._delete_namespaces)
            self._make_namespace()
            self.store = SqliteDatastore(Path(database), node=NODE, shared=True, timeout=DEADLINE)
            stack.callback(self.store.close)
            stack.callback(self._end_processes)
            if api:
                self._start_api(stack)
            self._undo = stack.pop_all()

    # -- life --------------------------------------------------------------------------------

    def _make_namespace(self) -> None:
        ip("netns", "add", self.name)
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", "up0", "type", "veth", "peer", "name", "up1")
        self.ip("address", "add", "172.31.1.2/24", "dev", "up0")
        self.ip("link", "set", "up0", "up")
        self.ip("link", "set", "up1", "up")

    def _start_api(self, stack: ExitStack) -> None:
        """Have an API server run; `stack` ends what `_end_processes` does not."""
        command = [sys.executable, "-m", "lab.apiserver", "--listen", f"127.0.0.1:{API_PORT}"]
        self.processes.append(self.spawn(command, "api.log"))
        until("the API server answers", self._api_answers)

    def _api_answers(self) -> bool:
        def probe() -> bool:
            with socket.socket() as sock:
                return sock.connect_ex(("127.0.0.1", API_PORT)) == 0

        return self.inside(probe)

    def spawn(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        """Start a process in the node's namespace."""
        with (self.root / log).open("ab") as file:
            return subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.name}", *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def start(self, *, wait: bool = True) -> None:
        """Start the agent; wait until it serves CNI."""
        path = self.root / "node.yaml"
        path.write_text(yaml.safe_dump(self.config))
        served = len(self.lines("cni_serving"))
        command = [sys.executable, "-m", self.module, "--config", str(path)]
        if self.module.endswith("agent") and not self.kept:
            command.append("--no-keeper")
        agent = self.agent = self.spawn(command, "stderr.log")

        def serves() -> bool:
            over = agent.poll()
            found = len(self.lines("cni_serving")) > served
            assert found or over is None, f"the agent ended with {over}: {self.lines()[-3:]}"
            return found

        if wait:
            until("the agent serves CNI", serves)

    def page(self, path: str) -> str:
        """What is answered where metrics are served, whatever the status. Raises `Unavailable`."""

        def ask() -> str:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            url = f"http://127.0.0.1:{self.config['metrics_port']}{path}"
            try:
                with opener.open(url, timeout=60) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as error:
                with error:
                    return error.read().decode()
            except OSError as error:
                raise Unavailable(str(error)) from error

        return self.inside(ask)

    def probe(self, path: str) -> dict[str, str]:
        """By check what is wrong, of those that are."""
        first, *checks = self.page(path).splitlines()
        wrong = dict(line[3:].split(": ", 1) for line in checks if line.startswith("[-]"))
        assert (first == "ok") == (not wrong)
        return wrong

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the agent by a signal; its exit status."""
        assert self.agent is not None
        self.agent.send_signal(number)
        status = self.agent.wait(DEADLINE)
        self.agent = None
        return status

    def close(self) -> None:
        """Take everything away; the first error is raised when all was tried."""
        self._undo.close()

    def _end_processes(self) -> None:
        """Ours, and then whoever they left behind in the node's namespace: BIRD, for one."""
        for process in [*self.processes, *([self.agent] if self.agent else [])]:
            process.kill()
            process.wait()
        for opened in self.sockets.values():
            opened.close()
        command = ["ip", "netns", "pids", self.name]
        left = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        for pid in {int(one) for one in left.split()} - {os.getpid()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _delete_namespaces(self) -> None:
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    # -- doing -------------------------------------------------------------------------------

    def ip(self, *words: str) -> None:
        """Run ip(8) in the node's namespace."""
        ip("-n", self.name, *words)

    def inside(self, work: Callable[[], T]) -> T:
        """Do something in the node's namespace."""
        return Netns(deadline=2 * DEADLINE).call(f"/run/netns/{self.name}", work)

    def add_pod(self, pod: str, mac: str = MAC) -> None:
        """A pod's namespace and veth, as the CNI plugin makes them."""
        space, host = f"{self.name}-{pod}", host_ifname(NAMESPACE, pod)
        ip("netns", "add", space)
        self.namespaces.append(space)
        ip("-n", space, "link", "set", "lo", "up")
        self.ip("link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", space, "link", "set", "eth0", "address", mac)
        self.ip("link", "set", host, "address", "ee:ee:ee:ee:ee:ee", "up")
        ip("-n", space, "link", "set", "eth0", "up")

    def store_endpoint(self, pod: str, **options: Any) -> ResourceKey:
        """A WorkloadEndpoint in the datastore."""
        record = endpoint_record(pod, **options)
        self.store.create(record.key, record.value)
        assert isinstance(record.key, ResourceKey)
        return record.key

    def attach(self, pod: str, **options: Any) -> ResourceKey:
        """Veth and endpoint; waits until its policy is in force."""
        self.add_pod(pod)
        key = self.store_endpoint(pod, **options)
        until(f"{pod} has its status file", lambda: self.status(pod))
        return key

    def send(self, pod: str, frame: bytes) -> None:
        """Put a frame on the wire inside a pod, towards the host."""
        if pod not in self.sockets:
            space = f"/run/netns/{self.name}-{pod}"
            namespaces = Netns(deadline=DEADLINE)
            self.sockets[pod] = namespaces.call(space, lambda: _packet_socket("eth0"))
        self.sockets[pod].send(frame)

    def send_from_host(self, pod: str, frame: bytes) -> None:
        """Put a frame on the host's end of a pod's veth, towards the pod."""
        with self.inside(lambda: _packet_socket(host_ifname(NAMESPACE, pod))) as opened:
            opened.send(frame)

    def kube(self, work: Callable[[HttpKubeClient], T]) -> T:
        """Do something with the API server."""

        def call() -> T:
            client = HttpKubeClient(direct(self.config["k8s_api_root"]), timeout=DEADLINE)
            try:
                return work(client)
            finally:
                client.close()

        return self.inside(call)

    # -- looking -----------------------------------------------------------------------------

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """The agent's log lines, or those of one event."""
        try:
            text = (self.root / "log" / "node.log").read_text(errors="replace")
        except FileNotFoundError:
            return []
        said = f'"event": "{event}"' if event else ""
        whole = text[: text.rfind("\n") + 1]  # a line may be seen while it is being written
        parsed = [
            json.loads(line)
            for line in whole.split("\n")
            if said in line and line.endswith("}")  # an agent may be killed in the middle of one
        ]
        return [line for line in parsed if event in ("", line["event"])]

    def status(self, pod: str) -> Mapping[str, Any] | None:
        """A pod's status file."""
        path = self.root / "run" / "endpoint-status" / f"k8s {NAMESPACE}%2F{pod} eth0"
        try:
            body: Mapping[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        return body

    def metrics(self, pod: str) -> list[int]:
        """Metrics of the routes on a pod's veth."""
        done = subprocess.run(
            ["ip", "-n", self.name, "-j", "route", "show", "dev", host_ifname(NAMESPACE, pod)],
            check=False,
            capture_output=True,
            text=True,
        )
        routes = json.loads(done.stdout or "[]")
        return sorted(route.get("metric", 0) for route in routes)

    def rules(self) -> str:
        """The kernel's rules."""
        command = ["nsenter", f"--net=/run/netns/{self.name}", "nft", "list", "ruleset"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def stored(self, key: ResourceKey) -> Any:
        """A stored value, None when there is none."""
        try:
            return self.store.get(key).value
        except NotFound:
            return None


def _packet_socket(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.bind((interface, 0))
    return opened
