"""A node with the reference plugins beside ours, and what a runtime needs to call them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fakes.agent_world import NODE
from tests.fakes.called_node import CalledNode
from tests.fakes.libcni import JSON, Runtime

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

    def plugin(self, **settings: Any) -> JSON:
        """Our plugin's object in a list."""
        return {
            "type": "tortie",
            "nodename": NODE,
            "datastore_type": "sqlite",
            "sqlite_path": self.config["sqlite_path"],
            "sqlite_shared": True,
            "agent_socket": str(self.root / "run" / "cni.sock"),
            "endpoint_status_dir": str(self.root / "run" / "endpoint-status"),
            "policy_setup_timeout_seconds": 60,
            **settings,
        }

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
