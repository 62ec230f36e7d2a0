"""A node (or several, on one store and one API) for the CNI plugin, wholly in memory.

`Faults` counts every step the plugin takes outside of itself (datastore, kernel, API, policy) and
can make any of them fail, or kill the plugin there: then nothing it does afterwards happens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from cni_plugin.calls import Call, recorded
from cni_plugin.delegate import Delegate, Run
from cni_plugin.identity import Identifier
from cni_plugin.locks import FileLocks
from cni_plugin.plugin import Plugin, Ports
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf, Result, parse_conf
from cni_plugin.wiring import SharedParts
from ipam.client import Allocation, IPAMClient, Retry
from ipam.persistence import persistence
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import KernelError, NotFound
from libtortie.kube.objects import (
    Namespace,
    Pod,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from libtortie.model.ipam import IPAMConfig
from libtortie.model.keys import Blocks, IPAMConfigKey, Kind, ResourceKey, Resources
from libtortie.model.resources import IPPool, IPPoolSpec, WorkloadEndpoint
from tests.fakes.cni_steps import CountedKube, CountedStore, Faults, Killed
from tests.fakes.ipam_program import FakeProgram
from tests.fakes.kernel import FakeKernel, FakeNamespaces
from tests.fakes.kube import FakeKube

START = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)
NETWORK = "k8s-pod-network"


class Clock:
    """Wall clock and monotonic clock; sleeping moves both."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += max(seconds, 0.001)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed)


class FakeGate:
    """A policy gate that is ready, and satisfied at once unless told otherwise."""

    def __init__(self, world: CniWorld) -> None:
        self._world = world
        self.is_ready = True
        self.satisfied = True
        self.unpoliced: frozenset[str] = frozenset()
        self.asked: list[tuple[str, str, float]] = []
        self.during: Callable[[], None] = lambda: None

    def ready(self) -> bool:
        return self.is_ready

    def wait(self, status_file: str, container_id: str, timeout: float) -> bool:
        self._world.step("policy wait")
        self.asked.append((status_file, container_id, timeout))
        self.during()
        if not self.satisfied:
            self._world.clock.sleep(timeout)
        return self.satisfied

    def policed(self) -> frozenset[str]:
        machines = self._world.nodes.values()
        return frozenset(name for one in machines for name in one.veths()) - self.unpoliced


class CniWorld:
    """Several nodes' worth of plugin on one store and one API."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock()
        self.faults = Faults()
        self.memory = MemoryDatastore(now=self.clock.now)
        self.store = CountedStore(self.memory, self.step)
        self.kube = FakeKube()
        self.nodes: dict[str, CniNode] = {}
        self.programs: list[FakeProgram] = []
        self.pool("pool-4", "10.65.0.0/24")

    def step(self, name: str) -> None:
        """One is taken."""
        self.faults.step(name)

    def pool(self, name: str, cidr: str, **spec: Any) -> None:
        pool = IPPool(metadata={"name": name}, spec=IPPoolSpec(cidr=cidr, **spec))  # type: ignore[arg-type]  # pydantic reads the dict
        self.memory.create(pool.key, pool)

    def config(self, **fields: Any) -> None:
        try:
            record = self.memory.get(IPAMConfigKey())
        except NotFound:
            self.memory.create(IPAMConfigKey(), IPAMConfig(**fields))
        else:
            self.memory.update(IPAMConfigKey(), IPAMConfig(**fields), record.revision)

    def node(self, name: str = "node1") -> CniNode:
        if name not in self.nodes:
            self.nodes[name] = CniNode(self, name)
        return self.nodes[name]

    def put_pod(self, name: str, namespace: str = "default", **fields: Any) -> Pod:
        """Create or replace a pod; keyword arguments are metadata, `spec` and `status` aside."""
        body = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": fields.pop("uid", f"uid-of-{name}"),
                **{key: value for key, value in fields.items() if key not in ("spec", "status")},
            },
            "spec": fields.get("spec", {}),
            "status": fields.get("status", {"phase": "Pending"}),
        }
        self.kube.put(body, Pod)
        return self.kube.get(Pod, name, namespace)

    def put_vm(self, name: str = "db", namespace: str = "default", *, generation: int = 1) -> None:
        """A VM and its VMI; a new generation is a VM that was restarted (a new VMI)."""
        vm_uid, vmi_uid = f"vm-{name}", f"vmi-{name}-{generation}"
        self.kube.put(
            {"metadata": {"name": name, "namespace": namespace, "uid": vm_uid}}, VirtualMachine
        )
        reference = owner_reference("VirtualMachine", name, vm_uid)
        self.kube.put(
            {
                "metadata": {
                    "name": name,
                    "namespace": namespace,
                    "uid": vmi_uid,
                    "ownerReferences": [reference],
                },
                "spec": {"networks": [{"name": "default", "pod": {}}]},
            },
            VirtualMachineInstance,
        )

    def put_launcher(
        self,
        pod: str,
        vm: str = "db",
        namespace: str = "default",
        *,
        generation: int = 1,
        migration: str = "",
        **fields: Any,
    ) -> Pod:
        """A virt-launcher pod as KubeVirt makes it; `migration` names a live VMIM it is for."""
        labels = {"kubevirt.io": "virt-launcher", **fields.pop("labels", {})}
        annotations = dict(fields.pop("annotations", {}))
        if migration:
            labels["kubevirt.io/migrationJobUID"] = f"vmim-{migration}"
            annotations["kubevirt.io/migrationJobName"] = migration
        references = fields.pop(
            "ownerReferences",
            [owner_reference("VirtualMachineInstance", vm, f"vmi-{vm}-{generation}")],
        )
        return self.put_pod(
            pod,
            namespace,
            labels=labels,
            annotations=annotations,
            ownerReferences=references,
            **fields,
        )

    def put_migration(
        self, name: str, vm: str = "db", namespace: str = "default", phase: str = "Scheduling"
    ) -> None:
        self.kube.put(
            {
                "metadata": {"name": name, "namespace": namespace, "uid": f"vmim-{name}"},
                "spec": {"vmiName": vm},
                "status": {"phase": phase},
            },
            VirtualMachineInstanceMigration,
        )

    def put_namespace(self, name: str, **metadata: Any) -> None:
        self.kube.put({"metadata": {"name": name, **metadata}}, Namespace)

    def endpoints(self) -> list[WorkloadEndpoint]:
        records = self.memory.list(Resources(Kind.WORKLOAD_ENDPOINT)).records
        return [r.value for r in records if isinstance(r.value, WorkloadEndpoint)]

    def edit_endpoint(self, container: str, **spec: Any) -> None:
        """Change a container's stored endpoint."""
        (stored,) = (e for e in self.endpoints() if e.spec.container_id == container)
        changed = stored.model_copy(update={"spec": stored.spec.model_copy(update=spec)})
        record = self.memory.get(stored.key)
        self.memory.update(record.key, changed, record.revision)

    def allocated(self) -> dict[str, str]:
        """Address → handle, from the blocks."""
        out: dict[str, str] = {}
        for version in (4, 6):
            for record in self.memory.list(Blocks(version)).records:
                block: Any = record.value
                for ordinal, index in enumerate(block.allocations):
                    if index is not None:
                        out[str(block.address(ordinal))] = block.attributes[index].handle_id
        return out

    def left(self) -> dict[str, object]:
        """Everything attachments leave behind; all empty when there is none."""
        out: dict[str, object] = {
            "endpoints": [e.metadata.name for e in self.endpoints()],
            "addresses": self.allocated(),
            "delegated": [held for one in self.programs for held in one.held],
            "locks": sorted(p.name for p in self.directory.rglob("*.lock")),
        }
        for node in self.nodes.values():
            out[f"{node.name} links"] = [n for n in node.host.links if n.startswith("cali")]
            out[f"{node.name} routes"] = [
                str(r.dst) for r in node.host.routes.values() if r.ifname.startswith("cali")
            ]
        return out

    def nothing_left(self) -> bool:
        return not any(self.left().values())


class CniNode:
    """One node: a machine with namespaces, a plugin, a policy gate."""

    def __init__(self, world: CniWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.machine = FakeNamespaces()
        self.machine.before = self._kernel_step
        self.kernel = FakeKernel(self.machine)
        self.kernel.add_link("uplink0", "")
        self.host = self.machine.space("")
        self.gate = FakeGate(world)
        self.log: list[tuple[str, dict[str, object]]] = []
        self.locks = FileLocks(
            world.directory / name, monotonic=world.clock.monotonic, sleep=world.clock.sleep
        )
        clock = world.clock
        self.ipam = IPAMClient(
            world.store,
            name,
            now=clock.now,
            retry=Retry(attempts=3, seconds=5.0, pause=0.0, longest_pause=0.0),
            monotonic=clock.monotonic,
            sleep=clock.sleep,
        )
        self.settings: dict[str, Any] = {}
        self.ifname = "eth0"
        self.program: Run | None = None
        self.plugin = Plugin(self.ports())

    def ports(self, **changes: Any) -> Ports:
        world, kube = self.world, CountedKube(self.world.kube, self.world.step)
        parts: dict[str, Any] = {
            "identify": Identifier(kube, lambda: persistence(world.store, kube).value),
            "ipam": self.ipam,
            "store": world.store,
            "kernel": self.kernel,
            "namespaces": self.machine,
            "policy": self.gate,
            "locks": self.locks,
            "node": self.name,
            "now": world.clock.now,
            "monotonic": world.clock.monotonic,
            "log": lambda event, **fields: self.log.append((event, fields)),
            "sleep": world.clock.sleep,
            "mtu_file": world.directory / "mtu",
        }
        return Ports(**{**parts, **changes})

    def shared(self, **changes: Any) -> SharedParts:
        """What an agent on this node has for every call."""
        parts: dict[str, Any] = {
            "store": self.world.store,
            "kube": self.world.kube,
            "kernel": self.kernel,
            "node": self.name,
            "table_ready": lambda: True,
            "log": self.ports().log,
            "namespaces": self.machine,
            "locks": self.locks,
            "mtu_file": self.world.directory / "mtu",
        }
        return SharedParts(**{**parts, **changes})

    def _kernel_step(self, operation: str, subject: str) -> None:
        self.world.faults.step(f"{operation} {subject}", KernelError)

    def use(self, program: Run | None = None, **settings: Any) -> None:
        """Calls have these settings from now on, and a delegated IPAM that `program` runs."""
        self.settings, self.program = settings, program
        self.plugin = self.plugin_for(conf(**settings))

    def plugin_for(self, parsed: NetConf) -> Plugin:
        """The plugin that serves one configuration."""
        if self.program is None:
            return Plugin(self.ports())
        cidrs = (ip_network("10.244.1.0/24"), ip_network("fd00:244:1::/64"))
        return Plugin(self.ports(delegate=Delegate(parsed, self.program, lambda: cidrs)))

    def netns(self, name: str) -> str:
        path = f"/run/netns/{name}"
        if self.machine.inode(path) is None:
            self.machine.create(path)
        return path

    def args(self, pod: str, container: str, namespace: str = "default", **extra: str) -> CmdArgs:
        uid = extra.pop("uid", "")
        netns = extra.pop("netns", self.netns(container))
        ifname = extra.pop("ifname", self.ifname)
        known = {"K8S_POD_NAME": pod, "K8S_POD_NAMESPACE": namespace} if pod else {}
        if uid:
            known["K8S_POD_UID"] = uid
        return CmdArgs(container, netns, ifname, {**known, **extra})

    def add(self, pod: str, container: str, namespace: str = "default", **extra: Any) -> Result:
        settings = {**self.settings, **extra.pop("conf", {})}
        args = self.args(pod, container, namespace, **extra)
        with recorded(Call("ADD", self.world.clock.monotonic)) as call:
            result = self.plugin.cmd_add(args, conf(**settings))
        self.log.append(("cni_add", dict(call.told())))
        return result

    def delete(self, pod: str, container: str, namespace: str = "default", **extra: Any) -> None:
        settings = conf(**self.settings)
        self.plugin.cmd_del(self.args(pod, container, namespace, **extra), settings)

    def gc(self, *valid: tuple[str, str], name: str = NETWORK) -> None:
        listed = [{"containerID": container, "ifname": ifname} for container, ifname in valid]
        lists = {"name": name, "cni.dev/valid-attachments": listed}
        parsed = conf(**{**self.settings, **lists})
        plugin = self.plugin if self.program is None else self.plugin_for(parsed)
        plugin.cmd_gc(parsed)

    def veths(self) -> dict[str, str]:
        """Aliases of the attachments' host ends, by name."""
        return {n: link.alias for n, link in self.host.links.items() if n.startswith("cali")}

    def cut_short(self, pod: str, container: str) -> None:
        """An ADD killed after its veth was made and before its endpoint was written."""
        faults = self.world.faults = Faults()

        def kill(operation: str, subject: str) -> None:
            if operation == "ensure_route" and subject.startswith("10.65."):
                faults.dead = True
            self._kernel_step(operation, subject)

        self.machine.before = kill
        with suppress(Killed):
            self.add(pod, container)
        assert faults.dead
        self.machine.before = self._kernel_step
        self.world.faults = Faults()

    def route(self, address: str) -> Any:
        return next((r for r in self.host.routes.values() if str(r.dst) == f"{address}/32"), None)


def owner_reference(kind: str, name: str, uid: str, **changes: Any) -> dict[str, Any]:
    """An ownerReference as KubeVirt's controller writes it."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
        **changes,
    }


def conf(**settings: Any) -> NetConf:
    """A network configuration, through the real parser."""
    base: dict[str, Any] = {
        "cniVersion": "1.1.0",
        "name": NETWORK,
        "type": "tortie",
        "policy_setup_timeout_seconds": 10,
    }
    path = settings.pop("CNI_PATH", "")
    return parse_conf(json.dumps({**base, **settings}).encode(), path)


def first_address(result: Result) -> str:
    return str(result.addresses[0].ip)


def owners(allocations: tuple[Allocation, ...]) -> tuple[str, str]:
    """Pod names of the active and alternate owner of a VM's first address."""
    return allocations[0].active.get("pod", ""), allocations[0].alternate.get("pod", "")


def started_vm(world: CniWorld) -> CniNode:
    """A VM's first launcher, attached on node1."""
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.node().add("virt-launcher-db-a", "c1")
    return world.node()


def endpoint_key(node: str, pod: str, namespace: str = "default") -> ResourceKey:
    from libtortie.model.names import wep_name

    return ResourceKey(Kind.WORKLOAD_ENDPOINT, wep_name(node, "k8s", pod, "eth0"), namespace)
