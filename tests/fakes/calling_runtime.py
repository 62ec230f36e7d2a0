"""A node with the reference plugins beside ours, and what a runtime needs to call them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.libcni import JSON, Attachment, Runtime
from tests.fakes.node_process import until

REFERENCE = Path("/usr/lib/cni")
NETWORK = "k8s-pod-network"


class CallingNode(CalledNode):
    """`bin_dir` has all plugins, `conf_dir` a conflist once `configure` wrote one."""

    def __init__(self, root: Path, name: str, **config: Any) -> None:
        root.mkdir(exist_ok=True)
        super().__init__(root, name, **config)
        self.bin_dir = root / "bin"
        self.bin_dir.mkdir()
        for plugin in REFERENCE.iterdir():
            (self.bin_dir / plugin.name).symlink_to(plugin)
        (self.bin_dir / "tortie").symlink_to(root / "tortie")
        self.conf_dir = root / "net.d"
        self.conf_dir.mkdir()
        self.space = f"/run/netns/{name}"
        self.runtime = Runtime(self.bin_dir, root / "cache", self.space)

    def start_and_settle(self) -> None:
        """Serve, and have served a pod: the first one leaves the node its route to the gateway."""
        self.start()
        network, one = self.network(), self.attachment()
        self.runtime.add(network, one)
        self.runtime.delete(network, one)
        until("its policy is gone", lambda: not self.left()["status"] and not self.left()["rules"])

    def attachment(self, capabilities: Mapping[str, Any] | None = None) -> Attachment:
        """The interface of a fresh container."""
        container = fresh_name("c")
        return Attachment(container, self.sandbox(container), capabilities=capabilities or {})

    def network(
        self, *behind: JSON, before: tuple[JSON, ...] = (), version: str = "1.0.0", **ours: Any
    ) -> JSON:
        """A list with our plugin in it."""
        plugins = [*before, self.plugin(**ours), *behind]
        return {"name": NETWORK, "cniVersion": version, "plugins": plugins}

    def configure(self, network: JSON) -> None:
        """Make a list the runtime's."""
        (self.conf_dir / "10-tortie.conflist").write_text(json.dumps(network))

    def inside_command(self, *words: str) -> list[str]:
        """A command in the node's network namespace."""
        return ["nsenter", f"--net={self.space}", *words]


def ping(space: str, address: str, *options: str) -> None:
    """Until an answer comes: a bridge's own address may not be settled at once."""
    command = ["nsenter", f"--net={space}", "ping", "-c1", "-W2", *options, address]

    def answers() -> bool:
        done = subprocess.run(command, check=False, capture_output=True, timeout=120)
        return done.returncode == 0

    until(f"{address} answers", answers)
