"""What the model of IPAM is played with: its cluster, its steps, the trouble that befalls one.

A random driver and Hypothesis draw the same ones, and any run can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from libtortie.errors import Conflict, NotFound, Unavailable
from libtortie.kube.objects import Meta, Pod, PodIP, PodSpec, PodStatus, VirtualMachine
from libtortie.model.ipam import IPAddress, Owner
from tests.fakes.kube import FakeKube
from tests.fakes.mortal_store import Countdown, Outage, Tell

NODES = ("n1", "n2", "n3")
PODS = tuple(f"p{number}" for number in range(7))
VMS = ("vm1", "vm2", "vm3")
POOLS = {
    "a": {"cidr": "10.0.0.0/29", "blockSize": 30},
    "c": {"cidr": "10.0.1.0/30", "blockSize": 30},
    "b": {"cidr": "fd00::/125", "blockSize": 126},
}
RESERVATIONS = ("10.0.0.2/32", "10.0.0.4/30", "fd00::1/128", "")
CONFIGS: tuple[Mapping[str, object], ...] = (
    {},
    {"strict_affinity": True},
    {"strict_affinity": True, "max_blocks_per_host": 1},
    {"cooldown_seconds": 60},
    {"cooldown_seconds": 60, "strict_affinity": True},
    {"auto_allocate_blocks": False, "strict_affinity": True},
)
VERBS = (
    *("assign", "assign", "assign", "release", "release", "explicit"),
    *("start", "start", "migrate", "promote", "leave", "stop", "delete", "desert"),
    *("collect", "configure", "toggle", "reserve", "wait", "jump"),
)
TROUBLES = (
    *("", "", "", "", "kill", "kill", "lost", "silent", "down", "conflict"),
    *("interlope", "interlope"),
)
OF_PODS = ("assign", "release", "explicit")
OF_VMS = ("start", "migrate", "promote", "leave", "stop", "delete", "desert")
OF_OPERATORS = ("configure", "toggle", "reserve")


@dataclass(frozen=True)
class Step:
    """One thing that happens: numbers are taken modulo what there is."""

    verb: str
    node: int = 0
    subject: int = 0
    choice: int = 0
    trouble: str = ""
    nth: int = 1
    other: Step | None = None
    """What another node does between this one's reads and its commit."""


@dataclass
class Machine:
    """A VM as the API has it, and the pods it runs in."""

    name: str
    uid: str = ""
    active: Owner = field(default_factory=dict)
    target: Owner = field(default_factory=dict)
    source: Owner = field(default_factory=dict)

    @property
    def handle(self) -> str:
        return f"k8s-pod-network.vmi.shop.{self.name}"


class Api(FakeKube):
    """The API, with the pods and VMs of one namespace."""

    def put_pod(self, owner: Owner) -> None:
        meta = Meta(namespace="shop", name=owner["pod"], uid=owner["pod-uid"])
        self.put(Pod(metadata=meta))

    def show(self, name: str, node: str, addresses: Iterable[IPAddress]) -> None:
        """An ordinary pod that runs and has these addresses."""
        ips = tuple(PodIP(ip=str(address)) for address in addresses)
        meta = Meta(namespace="shop", name=name, uid=f"u-{name}")
        status = PodStatus(phase="Running", podIPs=ips)
        self.put(Pod(metadata=meta, spec=PodSpec(node_name=node), status=status))

    def has_pod(self, name: str) -> bool:
        try:
            self.get(Pod, name, "shop")
        except NotFound:
            return False
        return True

    def remove_pod(self, owner: Owner) -> None:
        if self.has_pod(owner["pod"]):
            self.remove(Pod, owner["pod"], "shop")

    def forget_pods(self, vm: Machine) -> None:
        for owner in (vm.active, vm.target, vm.source):
            if owner:
                self.remove_pod(owner)
        vm.active, vm.target, vm.source = {}, {}, {}

    def forget_vm(self, vm: Machine) -> None:
        if vm.uid:
            self.remove(VirtualMachine, vm.name, "shop")
            vm.uid = ""


def _nothing(what: str) -> None:
    """Nothing befalls this step."""


class Trouble:
    """What befalls one operation, by the calls it makes of its store."""

    def __init__(self, step: Step, interlope: Callable[[], None]) -> None:
        self.struck = False
        self._kind = step.trouble
        self._interlope = interlope
        self._left = step.nth
        tells: dict[str, Tell] = {
            "kill": Countdown(step.nth),
            "lost": Outage(step.nth),
            "silent": Outage(step.nth, lasting=True),
        }
        self._tell = tells.get(step.trouble, _nothing)

    def __call__(self, what: str) -> None:
        try:
            self._tell(what)
        except BaseException:
            self.struck = True
            raise
        if self._kind == "down" and what.startswith("before"):
            self._left -= 1
            if self._left <= 0:
                self.struck = True
                raise Unavailable("injected: nobody answers")
        if what not in ("before commit", "before create", "before update", "before delete"):
            return
        if self._kind == "conflict" and self._left > 0:
            self._left -= 1
            self.struck = True
            raise Conflict("injected")
        if self._kind == "interlope" and not self.struck:
            self.struck = True
            self._interlope()
