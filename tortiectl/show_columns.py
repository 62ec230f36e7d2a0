"""Which columns `get` shows of each kind, as calicoctl does; pure.

A column reads one place in a resource's JSON form; `wide` adds the second list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libtortie.model.keys import Kind
from tortiectl.jsonpath import Template


@dataclass(frozen=True, slots=True)
class Column:
    """`path` is dotted; `default` stands for what is absent."""

    heading: str
    path: str
    default: str = ""
    template: Template | None = None
    """Instead of the path, where that is more than a dotted one."""

    def cell(self, wire: Mapping[str, Any]) -> str:
        """The column's text for a resource."""
        if self.template is not None:
            found = self.template.values(wire)
            return ",".join(map(as_text, found)) if found else self.default
        value: Any = wire
        for step in self.path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return self.default if value is None else as_text(value)


def as_text(value: Any) -> str:
    """A value in a cell: lists joined by commas, maps as `k=v`, whole floats as integers."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}={as_text(value[key])}" for key in sorted(value))
    if isinstance(value, list | tuple):
        return ",".join(as_text(item) for item in value)
    return str(value)


NAME = Column("NAME", "metadata.name")
NAMESPACE = Column("NAMESPACE", "metadata.namespace")
_ORDER = Column("ORDER", "spec.order")
_SELECTOR = Column("SELECTOR", "spec.selector")
_NETS = Column("NETS", "spec.nets")
_LOG = Column("LOGSEVERITY", "spec.logSeverityScreen")
_POLICY = ((NAME,), (_ORDER, _SELECTOR))
_STAGED_ACTION = Column("STAGEDACTION", "spec.stagedAction", "Set")
_STAGED = ((NAME,), (_STAGED_ACTION, _ORDER, _SELECTOR))

Columns = tuple[tuple[Column, ...], tuple[Column, ...]]

COLUMNS: dict[Kind, Columns] = {
    Kind.IP_POOL: (
        (NAME, Column("CIDR", "spec.cidr"), Column("SELECTOR", "spec.nodeSelector", "all()")),
        (
            Column("NAT", "spec.natOutgoing", "false"),
            Column("IPIPMODE", "spec.ipipMode", "Never"),
            Column("VXLANMODE", "spec.vxlanMode", "Never"),
            Column("DISABLED", "spec.disabled", "false"),
            Column("DISABLEBGPEXPORT", "spec.disableBGPExport", "false"),
            Column("ASSIGNMENTMODE", "spec.assignmentMode", "Automatic"),
        ),
    ),
    Kind.IP_RESERVATION: ((NAME,), (Column("RESERVEDCIDRS", "spec.reservedCIDRs"),)),
    Kind.IPAM_CONFIGURATION: (
        (NAME,),
        (
            Column("STRICTAFFINITY", "spec.strictAffinity", "false"),
            Column("MAXBLOCKSPERHOST", "spec.maxBlocksPerHost", "0"),
            Column("KUBEVIRTVMADDRESSPERSISTENCE", "spec.kubeVirtVMAddressPersistence"),
        ),
    ),
    Kind.CLUSTER_INFORMATION: (
        (
            NAME,
            Column("CLUSTERGUID", "spec.clusterGUID"),
            Column("CLUSTERTYPE", "spec.clusterType"),
            Column("CALICOVERSION", "spec.calicoVersion"),
            Column("DATASTOREREADY", "spec.datastoreReady"),
        ),
        (),
    ),
    Kind.FELIX_CONFIGURATION: (
        (NAME, _LOG),
        (Column("CONVERGENCETIME", "spec.liveMigrationRouteConvergenceTime"),),
    ),
    Kind.BGP_CONFIGURATION: (
        (
            NAME,
            _LOG,
            Column("MESHENABLED", "spec.nodeToNodeMeshEnabled"),
            Column("ASNUMBER", "spec.asNumber"),
        ),
        (),
    ),
    Kind.BGP_PEER: (
        (
            NAME,
            Column("PEERIP", "spec.peerIP"),
            Column("NODE", "", "(global)", Template("{.spec.node}{.spec.nodeSelector}")),
            Column("ASN", "spec.asNumber"),
        ),
        (),
    ),
    Kind.BGP_FILTER: ((NAME,), ()),
    Kind.NODE: (
        (NAME,),
        (
            Column("ASN", "spec.bgp.asNumber"),
            Column("IPV4", "spec.bgp.ipv4Address"),
            Column("IPV6", "spec.bgp.ipv6Address"),
        ),
    ),
    Kind.PROFILE: ((NAME,), (Column("LABELS", "spec.labelsToApply"),)),
    Kind.TIER: (
        (NAME, _ORDER, Column("DEFAULTACTION", "spec.defaultAction", "Deny")),
        (),
    ),
    Kind.KUBE_CONTROLLERS_CONFIGURATION: ((NAME,), ()),
    Kind.HOST_ENDPOINT: (
        (NAME, Column("NODE", "spec.node")),
        (
            Column("INTERFACE", "spec.interfaceName"),
            Column("IPS", "spec.expectedIPs"),
            Column("PROFILES", "spec.profiles"),
        ),
    ),
    Kind.GLOBAL_NETWORK_POLICY: _POLICY,
    Kind.GLOBAL_NETWORK_SET: ((NAME,), (_NETS,)),
    Kind.WORKLOAD_ENDPOINT: (
        (
            Column("WORKLOAD", "spec.pod"),
            Column("NODE", "spec.node"),
            Column("NETWORKS", "spec.ipNetworks"),
            Column("INTERFACE", "spec.interfaceName"),
        ),
        (Column("PROFILES", "spec.profiles"), NAME),
    ),
    Kind.NETWORK_POLICY: _POLICY,
    Kind.NETWORK_SET: ((NAME,), (_NETS,)),
    Kind.STAGED_NETWORK_POLICY: _STAGED,
    Kind.STAGED_GLOBAL_NETWORK_POLICY: _STAGED,
    Kind.STAGED_KUBERNETES_NETWORK_POLICY: ((NAME,), (_STAGED_ACTION,)),
    Kind.CALICO_NODE_STATUS: (
        (NAME, Column("NODE", "spec.node"), Column("CLASSES", "spec.classes")),
        (Column("UPDATEPERIODSECONDS", "spec.updatePeriodSeconds"),),
    ),
}


def chosen(kind: Kind, *, wide: bool, all_namespaces: bool) -> tuple[Column, ...]:
    """The columns to show."""
    normal, more = COLUMNS[kind]
    shown = (*normal, *more) if wide else normal
    return (NAMESPACE, *shown) if all_namespaces and kind.namespaced else shown


def known_columns(kind: Kind) -> tuple[Column, ...]:
    """Every column that a kind has."""
    normal, more = COLUMNS[kind]
    return (*((NAMESPACE,) if kind.namespaced else ()), *normal, *more)


def rows_of(columns: Sequence[Column], wires: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The cells of resources."""
    return [[column.cell(wire) for column in columns] for wire in wires]
