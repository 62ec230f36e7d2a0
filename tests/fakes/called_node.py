"""A node as a container runtime sees it: the installed executable, an agent, sandboxes.

Beside what `NodeProcess` does it has an API server in this process, whose faults a test can turn
on, and knows everything that an attachment may leave behind.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cni_plugin.durable import replace_file
from cni_plugin.program import executable
from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from lab.apiserver.server import ApiServer
from libtortie.kube.objects import (
    KubeObject,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from libtortie.model.ipam import Block
from libtortie.model.keys import Blocks, Handles, Kind, Resources
from libtortie.model.names import host_ifname, vm_handle
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import NODE, resource_record
from tests.fakes.cni_world import NETWORK, CniWorld
from tests.fakes.node_process import API_PORT, NodeProcess, ip, until

REPO = Path(__file__).resolve().parents[2]
HANDLE = vm_handle(NETWORK, "default", "db")
PATIENCE = 240.0
"""Seconds that a runtime gives a call: kubelet's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the runtime gets."""

    status: int
    body: Any

    @property
    def address(self) -> str:
        """The first address, without its prefix length."""
        assert self.status == 0, self.body
        return str(self.body["ips"][0]["address"]).partition("/")[0]

    @property
    def code(self) -> int:
        """The CNI error code; 0 for success."""
        return int(self.body["code"]) if self.status else 0


class CalledNode(NodeProcess):
    """One node with an agent to start, an API, and `call`."""

    def __init__(self, root: Path, name: str, **config: Any) -> None:
        self.world = CniWorld(root / "world")
        self.server = ApiServer(api=self.world.kube.api, port=API_PORT)
        self.address = ""
        super().__init__(root, name, api=True, **{"default_pools": "none", **config})
        self._make_pool()
        script = (
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPO)!r})\n"
            "from cni_plugin.wiring import main\nmain()\n"
        )
        replace_file(root / "tortie-cni", script.encode(), 0o755)
        text = executable(
            str(root / "run" / "cni.sock"), str(root / "tortie-cni"), "/usr/bin/python3"
        )
        replace_file(root / "tortie", text, 0o755)

    def _make_pool(self) -> None:
        pool = resource_record(Kind.IP_POOL, "pool", {"cidr": "10.65.0.0/24", "blockSize": 26})
        self.store.create(pool.key, pool.value)

    def _start_api(self, stack: ExitStack) -> None:
        stack.callback(self.server.close)
        self.inside(self.server.start)

    def close(self) -> None:
        """Take everything away."""
        super().close()
        assert self.server.crashes == []

    def expect_vm(self, pod: str) -> None:
        """A VM runs elsewhere and is to come here, to a pod that is not attached yet; its route is
        raised for a second."""
        spec = {"liveMigrationRouteConvergenceTime": "1s"}
        record = resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", spec)
        self.store.create(record.key, record.value)
        self.address = self.vm_elsewhere()
        self.world.put_migration("m1", phase="Running")
        self.world.put_launcher(pod, migration="m1")

    # -- doing -------------------------------------------------------------------------------

    def sandbox(self, container: str) -> str:
        """The path of a sandbox's namespace, which is made when first asked for."""
        space = f"{self.name}-{container}"
        if space not in self.namespaces:
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            self.namespaces.append(space)
        return f"/run/netns/{space}"

    def plugin(self, **settings: Any) -> dict[str, Any]:
        """Our plugin's object in a list, on this node."""
        return {
            "type": "tortie",
            "nodename": NODE,
            "datastore_type": "sqlite",
            "sqlite_path": self.config["sqlite_path"],
            "sqlite_shared": True,
            "agent_socket": str(self.root / "run" / "cni.sock"),
            "endpoint_status_dir": str(self.root / "run" / "endpoint-status"),
            "policy_setup_timeout_seconds": 90,
            **settings,
        }

    def remove_sandbox(self, container: str) -> None:
        """The namespace goes before its DEL comes."""
        ip("netns", "delete", f"{self.name}-{container}")
        self.namespaces.remove(f"{self.name}-{container}")

    def begin(
        self,
        verb: str,
        pod: str,
        container: str,
        *,
        netns: str = "",
        ifname: str = "eth0",
        program: str = "tortie",
        **settings: Any,
    ) -> subprocess.Popen[bytes]:
        """Run the installed executable as a runtime does; do not wait for it.

        `program` is `tortie` or, past a running agent, `tortie-cni`.
        """
        env = {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": netns or self.sandbox(container),
            "CNI_IFNAME": ifname,
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_UID=uid-of-{pod}",
        }
        conf = {
            "cniVersion": "1.1.0",
            "name": NETWORK,
            "kubernetes": {"k8s_api_root": self.config["k8s_api_root"]},
            **self.plugin(**settings),
        }
        with tempfile.TemporaryFile() as stdin:  # there at once: the agent does not wait for us
            stdin.write(json.dumps(conf).encode())
            stdin.seek(0)
            process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.name}", str(self.root / program)],
                env=env,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], *, seconds: float = PATIENCE) -> Answer:
        """Wait for a call's end."""
        stdout, stderr = process.communicate(timeout=seconds)
        self.processes.remove(process)
        assert stdout or process.returncode == 0, stderr
        return Answer(process.returncode, json.loads(stdout) if stdout else None)

    def call(self, verb: str, pod: str, container: str, **options: Any) -> Answer:
        """One call, whatever its outcome."""
        seconds = options.pop("seconds", PATIENCE)
        return self.finish(self.begin(verb, pod, container, **options), seconds=seconds)

    def done(self, verb: str, pod: str, container: str, **options: Any) -> Answer:
        """One call that must succeed."""
        answer = self.call(verb, pod, container, **options)
        assert answer.status == 0, answer.body
        return answer

    def vm_elsewhere(self) -> str:
        """The VM `db` runs in pod `virt-launcher-db-0` on node `n0`; its address."""
        self.world.put_vm()
        self.world.put_launcher("virt-launcher-db-0")
        address = self.claim_elsewhere(HANDLE, AddressRequest())
        self.say_vm_runs_on("n0")
        return address

    def claim_elsewhere(self, handle: str, wanted: AddressRequest, **marks: str) -> str:
        """Another address of that pod, of which its owner has these marks."""
        owner = pod_owner(
            namespace="default",
            pod="virt-launcher-db-0",
            node="n0",
            timestamp=datetime.now(UTC),
            container_id="ctr0",
            pod_uid="uid-of-virt-launcher-db-0",
            vmi_name="db",
            vmi_uid="vmi-db-1",
            vm_uid="vm-db",
        )
        client = IPAMClient(self.store, "n0", now=lambda: datetime.now(UTC))
        got = client.claim_vm(handle, {**owner, **marks}, wanted)
        return str(got[0].address)

    def say_vm_runs_on(self, node: str) -> None:
        """The VMI's status names a node."""
        self.patch_status(VirtualMachineInstance, "db", {"nodeName": node, "phase": "Running"})

    def say_migration(self, phase: str, name: str = "m1") -> None:
        """The migration's status names a phase."""
        self.patch_status(VirtualMachineInstanceMigration, name, {"phase": phase})

    def patch_status(self, kind: type[KubeObject], name: str, status: dict[str, object]) -> None:
        """Patch the status of an object of the namespace."""
        body = {"status": status}
        self.kube(lambda api: api.patch(kind, name, "default", body, subresource="status"))

    # -- looking -----------------------------------------------------------------------------

    def owners(self) -> dict[str, tuple[str, str, str]]:
        """Address → handle, pod of the active owner, pod of the alternate one."""
        found = {}
        blocks = [one for version in (4, 6) for one in self.store.list(Blocks(version)).records]
        for record in blocks:
            assert isinstance(record.value, Block)
            for ordinal, index in enumerate(record.value.allocations):
                if index is None:
                    continue
                held = record.value.attributes[index]
                pods = held.active.get("pod", ""), held.alternate.get("pod", "")
                found[str(record.value.address(ordinal))] = (held.handle_id or "", *pods)
        return found

    def endpoints(self) -> dict[str, str]:
        """Pod → container of each stored WorkloadEndpoint."""
        values = [one.value for one in self.store.list(Resources(Kind.WORKLOAD_ENDPOINT)).records]
        specs = [value.spec for value in values if isinstance(value, WorkloadEndpoint)]
        return {spec.pod: spec.container_id for spec in specs}

    def left(self) -> dict[str, object]:
        """Everything attachments have left on this node and in the datastore."""
        return {
            "links": [one["ifname"] for one in self.ip_json("link")],
            "routes": [f"{one['dst']} {one.get('metric')}" for one in self.ip_json("route")],
            "rules": sorted(set(re.findall(r"cali[0-9a-f]{11}", self.rules()))),
            "owners": self.owners(),
            "endpoints": self.endpoints(),
            "handles": [str(record.key) for record in self.store.list(Handles()).records],
            "locks": [path.name for path in self.root.glob("run/locks/*")],
            "status": [path.name for path in self.root.glob("run/endpoint-status/*")],
        }

    def emptied(self, pod: str) -> dict[str, object]:
        """What is left once the agent, too, has taken away what was a deleted pod's."""
        until("its rules go", lambda: self.host_name(pod) not in self.rules())
        until("its status file goes", lambda: self.status(pod) is None)
        return self.left()

    def rest(self, expected: dict[str, object], why: object = "") -> None:
        """Wait until exactly this is what is left."""
        seen: dict[str, object] = {}

        def same() -> bool:
            seen.update(self.left())
            return seen == expected

        try:
            until("everything is as expected", same)
        except AssertionError:
            assert seen == expected, why

    def ip_json(self, *words: str) -> Any:
        """What ip(8) says of the node, parsed."""
        command = ["ip", "-n", self.name, "-j", *words]
        done = subprocess.run(command, check=True, capture_output=True, timeout=120)
        return json.loads(done.stdout or b"[]")

    def host_name(self, pod: str) -> str:
        """The host's end of a pod's veth."""
        return host_ifname("default", pod)
