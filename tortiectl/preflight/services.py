"""What migrations need beside VMs and network: rights, certificates, clocks, budgets. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median

from tortiectl.kubevirt.objects import GROUP, LABEL_SCHEDULABLE, VMI, Pod
from tortiectl.preflight.findings import Finding, Severity, Subject
from tortiectl.preflight.world import Budget, Certificate, Cluster

SKEW = timedelta(seconds=30)
"""Leases are renewed every 10 s: two of one moment differ by less than this."""
LEAST_LEFT = 0.1
"""KubeVirt renews its certificates at 20 % of their time; less than this says that it does not."""
AGENTS = ("tortie-node", "tortie-cni-plugin", "calico-node", "calico-cni-plugin")
"""Service accounts that must be able to tell a VM from a pod."""
_READ = (
    ("virtualmachineinstances", "get"),
    ("virtualmachineinstancemigrations", "get"),
)
_CLUSTER = Subject("Cluster", "")


def check_services(cluster: Cluster, launchers: Sequence[Pod]) -> Iterator[Finding]:
    """Every finding of the cluster as a whole."""
    yield from _kinds(cluster)
    yield from _rights(cluster)
    for certificate in cluster.certificates:
        yield from _certificate(certificate, cluster.now)
    yield from _clocks(cluster)
    for budget in cluster.budgets:
        yield from _budget(budget, launchers)
    if cluster.settings.tls_off:
        yield Finding(
            Severity.RISK, Subject("KubeVirt", "kubevirt"), "MigrationTLSOff",
            "migrations.disableTLS is on: the guest's memory crosses the network in the clear, "
            "from anybody who asks",
            "take disableTLS out",
        )  # fmt: skip


def _kinds(cluster: Cluster) -> Iterator[Finding]:
    for kind in cluster.missing_kinds:
        yield Finding(
            Severity.BLOCKS, Subject("CustomResourceDefinition", kind), "KindMissing",
            f"the API does not serve {kind}",
            "install or repair KubeVirt: its operator makes the CRD",
        )  # fmt: skip


def _rights(cluster: Cluster) -> Iterator[Finding]:
    if cluster.may_migrate is False:
        yield Finding(
            Severity.RISK, _CLUSTER, "MayNotMigrate",
            "you may not create virtualmachineinstancemigrations",
            "ask for the role kubevirt.io:migrate",
        )  # fmt: skip
    if cluster.rules is None:
        return
    for account in sorted({one.subject for one in cluster.rules}):
        if account.rpartition("/")[2] not in AGENTS:
            continue
        mine = [one for one in cluster.rules if one.subject == account]
        for resource, verb in _READ:
            if not any(
                {GROUP, "*"} & one.groups
                and {resource, "*"} & one.resources
                and {verb, "*"} & one.verbs
                for one in mine
            ):
                yield Finding(
                    Severity.BLOCKS, Subject("ServiceAccount", account), "RightMissing",
                    f"it may not {verb} {resource}.{GROUP}: migration targets are not recognised",
                    f"add get, list and watch of {resource} in {GROUP} to its ClusterRole",
                )  # fmt: skip


def _certificate(certificate: Certificate, now: datetime) -> Iterator[Finding]:
    about = Subject("Certificate", certificate.place)
    renew = "let virt-operator renew it: see whether it runs, then delete the expired secret"
    if certificate.problem:
        yield Finding(Severity.RISK, about, "CertificateUnreadable", certificate.problem, renew)
        return
    left, lifetime = certificate.not_after - now, certificate.not_after - certificate.not_before
    if certificate.not_before > now:
        text = f"it is not valid before {certificate.not_before:%Y-%m-%d %H:%M} UTC"
        yield Finding(Severity.BLOCKS, about, "CertificateNotYetValid", text, "see the clocks")
    elif left <= timedelta():
        text = f"it expired {_span(-left)} ago: migrations end at the handshake"
        yield Finding(Severity.BLOCKS, about, "CertificateExpired", text, renew)
    elif left < lifetime * LEAST_LEFT:
        text = f"{_span(left)} of {_span(lifetime)} left, and it should have been renewed"
        yield Finding(Severity.RISK, about, "CertificateExpires", text, renew)


def _span(value: timedelta) -> str:
    hours = value.total_seconds() / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def _clocks(cluster: Cluster) -> Iterator[Finding]:
    """Clocks by what kubelets write into their leases, against the middle one."""
    hosts = {
        name: when
        for name, when in cluster.renewals.items()
        if name in cluster.nodes
        and cluster.nodes[name].ready
        and cluster.nodes[name].metadata.labels.get(LABEL_SCHEDULABLE) == "true"
    }
    if len(hosts) < 3:
        return
    middle = median(when.timestamp() for when in hosts.values())
    for name, when in sorted(hosts.items()):
        off = timedelta(seconds=when.timestamp() - middle)
        if abs(off) > SKEW:
            side = "ahead of" if off > timedelta() else "behind"
            yield Finding(
                Severity.RISK, Subject("Node", name), "ClockSkew",
                f"its clock is about {abs(off).total_seconds():.0f} s {side} the others': "
                "certificates and migration times are judged by it",
                "let chrony or ntpd run there",
            )  # fmt: skip


def _budget(budget: Budget, launchers: Sequence[Pod]) -> Iterator[Finding]:
    """A budget of one protects a VM's one pod, and in a migration it has two; one of none lets
    nobody end a pod, which a drain does to a VM that does not migrate."""
    selector = budget.selector
    never = budget.max_unavailable in (0, "0", "0%") or budget.min_available == "100%"
    if selector is None or not (never or budget.min_available in (1, "1")):
        return
    protects = any(
        pod.metadata.namespace == budget.namespace and selector.holds(pod.metadata.labels)
        for pod in launchers
    )
    about = Subject("PodDisruptionBudget", budget.name, budget.namespace)
    if protects and never:
        yield Finding(
            Severity.RISK, about, "BudgetOfNone",
            "it lets no launcher be evicted: a VM that does not migrate holds up every drain",
            "delete it (KubeVirt's webhook protects VMs that migrate)",
        )  # fmt: skip
    elif protects:
        yield Finding(
            Severity.RISK, about, "Budget",
            "minAvailable 1 covers a VM's launcher: once the migration's target is ready there "
            "are two, and the source may be evicted in the middle of the move",
            "delete it (KubeVirt's webhook protects VMs), or let it ask for 2",
        )  # fmt: skip


def launchers_of(vmis: Sequence[VMI], launchers: Mapping[str, Sequence[Pod]]) -> list[Pod]:
    """The launchers of these VMs."""
    return [pod for vmi in vmis for pod in launchers.get(vmi.metadata.uid, ())]
