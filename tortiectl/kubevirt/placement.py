"""Which nodes could take a VM's migration target, and why the others could not. Pure.

What a scheduler would ask of the target pod: the node's own state, taints, selectors and affinity,
what KubeVirt adds for machine and CPU, and anti-affinity against launchers that run. Free memory
and CPU are not asked: they change by the second, and the pod stays Pending until there is room.

Thousands of VMs ask for the same: answers are kept by what they depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tortiectl.kubevirt.cpu import MACHINE, Needs, Wish, needs
from tortiectl.kubevirt.objects import LABEL_SCHEDULABLE, VMI, Node, Pod
from tortiectl.kubevirt.spec import Affinity, Toleration

HOSTNAME = "kubernetes.io/hostname"
ARCHITECTURE = "kubernetes.io/arch"
_KEEPS_OUT = ("NoSchedule", "NoExecute")
_SHOWN = 4


_TAKEN = "anti-affinity: another VM of its kind is there"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Which nodes fit a VM that is on `source`.

    `answers` are the reasons of all nodes, `open` those without; `taken` anti-affinity keeps free.
    """

    open: tuple[str, ...]
    source: str
    answers: Mapping[str, str]
    taken: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Whether any fits."""
        return any(name != self.source and name not in self.taken for name in self.open)

    @property
    def fit(self) -> tuple[str, ...]:
        """Those that fit."""
        return tuple(name for name in self.open if name != self.source and name not in self.taken)

    def others(self) -> dict[str, str]:
        """The reason of each node that does not fit, the source's aside."""
        return {
            name: reason or _TAKEN
            for name, reason in self.answers.items()
            if name != self.source and (reason or name in self.taken)
        }

    def summary(self) -> str:
        """`n2, n3: cordoned; 4 nodes: lacks label ...`."""
        by_reason: dict[str, list[str]] = {}
        for node, reason in sorted(self.others().items()):
            by_reason.setdefault(reason, []).append(node)
        parts = [
            f"{', '.join(names) if len(names) <= _SHOWN else f'{len(names)} nodes'}: {reason}"
            for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1]))
        ]
        rest = f"; and {len(parts) - _SHOWN} other reasons" if len(parts) > _SHOWN else ""
        return "; ".join(parts[:_SHOWN]) + rest


@dataclass(frozen=True, slots=True)
class _Ask:
    """What the nodes are asked, hashable: the same ask has the same answer."""

    selector: tuple[tuple[str, str], ...]
    affinity: str
    tolerations: tuple[tuple[str, str, str, str], ...]
    needs: Needs


@dataclass
class Placement:
    """The nodes of a cluster and the launchers that run on them."""

    nodes: Mapping[str, Node]
    launchers: Sequence[Pod] = ()
    _known: dict[_Ask, tuple[dict[str, str], tuple[str, ...]]] = field(default_factory=dict)

    @cached_property
    def _machines_told(self) -> bool:
        """Whether this KubeVirt labels nodes with machine types."""
        return any(
            key.startswith(MACHINE) for node in self.nodes.values() for key in node.metadata.labels
        )

    @cached_property
    def _ready(self) -> dict[str, str]:
        """What keeps every target off a node; empty where nothing does."""
        return {name: _state(node) for name, node in self.nodes.items()}

    def candidates(
        self, vmi: VMI, launcher: Pod | None = None, *, with_cpu: bool = True
    ) -> Candidates:
        """The nodes for a VMI's next migration; `launcher` is the pod that runs it now."""
        at = vmi.status.node_name
        source = self.nodes.get(at)
        labels = source.metadata.labels if source is not None else {}
        ask = self._ask(vmi, labels, launcher.spec.node_selector if launcher else {}, with_cpu)
        known = self._known.get(ask)
        if known is None:
            answers = {
                name: self._ready[name] or _misfit(node, ask, vmi.spec.affinity)
                for name, node in self.nodes.items()
            }
            known = answers, tuple(name for name, reason in answers.items() if not reason)
            self._known[ask] = known
        answers, fit = known
        return Candidates(fit, at, answers, self._taken(vmi))

    def _ask(
        self, vmi: VMI, source: Mapping[str, str], launcher: Mapping[str, str], with_cpu: bool
    ) -> _Ask:
        spec, cpu = vmi.spec, vmi.spec.domain.cpu
        wish = Wish(cpu.model, {one.name: one.policy for one in cpu.features})
        wanted = dict(spec.node_selector)
        if spec.architecture:
            wanted[ARCHITECTURE] = spec.architecture
        machine = vmi.status.machine.type or spec.domain.machine.type
        if machine and self._machines_told:
            wanted[f"{MACHINE}{machine}"] = "true"
        return _Ask(
            tuple(sorted(wanted.items())),
            spec.affinity.model_dump_json(exclude_defaults=True),
            tuple((one.key, one.operator, one.value, one.effect) for one in spec.tolerations),
            needs(wish, source, launcher) if with_cpu else Needs(),
        )

    def _taken(self, vmi: VMI) -> frozenset[str]:
        """Nodes that required anti-affinity by host keeps it off."""
        terms = vmi.spec.affinity.pod_anti_affinity.required
        if not terms:
            return frozenset()
        uid = vmi.metadata.uid
        return frozenset(
            pod.spec.node_name
            for term in terms
            if term.topology_key == HOSTNAME
            for pod in self.launchers
            if not pod.finished and pod.spec.node_name
            if term.selects(pod.metadata, vmi.metadata.namespace)
            if (owner := pod.metadata.controller()) is None or owner.uid != uid
        )


def _state(node: Node) -> str:
    """Why a node takes no target whatever it is of."""
    if node.metadata.deleting:
        return "is being deleted"
    if not node.ready:
        return "not ready"
    if node.spec.unschedulable:
        return "cordoned"
    if node.metadata.labels.get(LABEL_SCHEDULABLE) != "true":
        return f"lacks label {LABEL_SCHEDULABLE}: virt-handler does not run there"
    return ""


def _misfit(node: Node, ask: _Ask, affinity: Affinity) -> str:
    """Why a node does not fit; empty when it does."""
    labels = node.metadata.labels
    for taint in node.spec.taints:
        if taint.effect in _KEEPS_OUT and not any(
            Toleration(key=key, operator=operator, value=value, effect=effect).tolerates(
                taint.key, taint.value, taint.effect
            )
            for key, operator, value, effect in ask.tolerations
        ):
            return f"taint {taint.key}:{taint.effect}"
    for key, value in ask.selector:
        if labels.get(key) != value:
            return f"lacks label {key}={value}"
    if not affinity.node_affinity.allows(node.metadata.name, labels):
        return "node affinity of the VM"
    missing = ask.needs.missing(labels)
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{missing[0]}{more}" if missing else ""
