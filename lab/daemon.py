"""The cluster's control plane as one process: every node's kubelet, and KubeVirt.

Runs in the namespace `tlab-api`, from which the API server is on the local address. It enters the
nodes and pods by their namespace handles. SIGTERM ends it; the state it needs is in the API and in
the state directory, guests and pods keep running.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from lab import names
from lab.cni_runtime import Runtime, executor
from lab.controller import Controller
from lab.guest_store import KINDS, PACKET
from lab.hypervisor import Guests
from lab.kubelet import Kubelet
from lab.nodes import in_node
from lab.state import StateDir
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.signals import set_on


def make_kubelet(
    state: StateDir, node: names.LabNode, client: HttpKubeClient, log: Callable[[str], None]
) -> Kubelet:
    """The kubelet of a node, over the node's own directories."""

    def enter(argv: Sequence[str]) -> list[str]:
        return in_node(state, node.name, argv)

    runtime = Runtime(
        conf_dir=state.node(node.name, "net.d"),
        cache_dir=state.node(node.name, "cni") / "results",
        execute=executor(enter),
    )
    return Kubelet(node, client, runtime, state.pods / node.name, log)


def main() -> None:
    """`python -m lab.daemon --state-dir DIR --nodes N [--guest packet|qemu]`."""
    parser = argparse.ArgumentParser(description="kubelets and KubeVirt of a lab")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--guest", choices=KINDS, default=PACKET)
    args = parser.parse_args()
    state, nodes = StateDir(args.state_dir), names.lab_nodes(args.nodes)
    stop = threading.Event()
    threading.excepthook = give_up
    set_on(stop, signal.SIGTERM, signal.SIGINT)
    client = HttpKubeClient(direct(names.api_url()))
    controller: Controller | None = None

    def poke() -> None:
        if controller is not None:
            controller.poke()

    guests = Guests(state, log, poke, kind=args.guest)
    guests.recover()
    controller = Controller(client, guests, log)
    work = [make_kubelet(state, node, client, log).run for node in nodes] + [controller.run]
    threads = [threading.Thread(target=run, args=(stop,)) for run in work]
    for thread in threads:
        thread.start()
    log("control plane up")
    stop.wait()
    for thread in threads:
        thread.join(10)


def give_up(failure: threading.ExceptHookArgs) -> None:
    """An error nobody foresaw ends the process: half a control plane helps nobody."""
    name = failure.thread.name if failure.thread else "a thread"
    log(f"{name} ended unexpectedly, giving up")
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def log(text: str) -> None:
    """A line with the monotonic time in seconds, by which all of the lab's times compare."""
    print(f"{time.monotonic():.3f} {text}", flush=True, file=sys.stdout)


if __name__ == "__main__":
    main()
