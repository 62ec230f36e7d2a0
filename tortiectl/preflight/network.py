"""What is wrong with Calico's configuration for VMs that migrate. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from libtortie.model.ipam import Persistence
from libtortie.model.move_limits import Layers, Limit, felix_limits, layers_of, pool_limits
from libtortie.model.resources import IPPool
from tortiectl.kubevirt.objects import VMI
from tortiectl.preflight.findings import Finding, Severity, Subject
from tortiectl.preflight.world import Cluster, Network

BLOCKS, RISK = Severity.BLOCKS, Severity.RISK
Address = IPv4Address | IPv6Address
POLICY_TIMEOUT = 10


def keeps_address(vmi: VMI) -> bool:
    """Whether its guest has the pod's address, which masquerade hides."""
    interface = vmi.spec.pod_interface
    return interface is not None and interface.masquerade is None


def addresses_of(vmis: Sequence[VMI]) -> tuple[Address, ...]:
    """The addresses that must move with these VMs; what is no address is passed over."""
    found: list[Address] = []
    for vmi in vmis:
        for text in vmi.addresses if keeps_address(vmi) else ():
            try:
                found.append(ip_address(text))
            except ValueError:
                continue
    return tuple(found)


def check_network(cluster: Cluster, vmis: Sequence[VMI]) -> Iterator[Finding]:
    """Every finding that concerns these VMs."""
    network = cluster.network
    moving = [vmi for vmi in vmis if keeps_address(vmi)]
    if not moving:
        return
    addresses = addresses_of(moving)
    yield from _persistence(network, len(moving))
    layers = layers_of(network.felix, cluster.nodes)
    for pool in network.pools:
        if _serves(pool, addresses):
            yield from _pool(pool, network, layers)
    limits = dict.fromkeys(one for each in layers for one in felix_limits(each))
    yield from (_finding(one, one.remedy) for one in limits)
    yield from _policy_timeout(network)


def _persistence(network: Network, count: int) -> Iterator[Finding]:
    if network.persistence is Persistence.DISABLED:
        yield Finding(
            BLOCKS, Subject("IPAMConfiguration", "default"), "AddressPersistenceDisabled",
            f"kubeVirtVMAddressPersistence is Disabled ({network.persistence_place}): the target "
            f"pod of every migration is refused ({count} VMs)",
            "tortiectl ipam configure --kubevirt-ip-persistence=Enabled",
        )  # fmt: skip


def _serves(pool: IPPool, addresses: Sequence[Address]) -> bool:
    network = ip_network(pool.spec.cidr)
    return any(one.version == network.version and one in network for one in addresses)


def _finding(limit: Limit, fix: str) -> Finding:
    return Finding(limit.severity, Subject(limit.kind, limit.name), limit.code, limit.text, fix)


def _pool(pool: IPPool, network: Network, layers: Iterable[Layers]) -> Iterator[Finding]:
    for limit in dict.fromkeys(pool_limits(pool, layers)):
        fix = _pool_fix(pool, network, limit) if limit.field else limit.remedy
        more = ", or VXLAN where a plain network cannot be had" if limit.code == "IPIP" else ""
        yield _finding(limit, fix + more)


_OPERATORS: Mapping[str, tuple[str, object]] = {
    "natOutgoing": ("natOutgoing", "Disabled"),
    "ipipMode": ("encapsulation", "None"),
    "disableBGPExport": ("disableBGPExport", False),
}
"""A pool's fields as the operator's list of pools has them, with the right value."""


def _pool_fix(pool: IPPool, network: Network, limit: Limit) -> str:
    """The command that changes a pool where its owner does not put it back."""
    at = _operator_index(pool, network.installation)
    if at is None or network.installation is None:
        body = json.dumps({"spec": {limit.field: limit.value}}, separators=(",", ":"))
        return (
            f"{limit.remedy}: kubectl patch "
            f"ippools.projectcalico.org {pool.metadata.name} --type=merge -p '{body}'"
        )
    field, value = _OPERATORS[limit.field]
    patch = [
        {
            "op": "replace" if field in network.installation["ipPools"][at] else "add",
            "path": f"/spec/calicoNetwork/ipPools/{at}/{field}",
            "value": value,
        }
    ]
    body = json.dumps(patch, separators=(",", ":"))
    return (
        f"kubectl patch installation default --type=json -p '{body}' "
        "(the operator owns the pool: a change of the IPPool itself is put back)"
    )


def _operator_index(pool: IPPool, installation: Mapping[str, Any] | None) -> int | None:
    """The pool's place in the operator's list; None where the operator does not own it."""
    pools = (installation or {}).get("ipPools")
    for index, one in enumerate(pools if isinstance(pools, list) else ()):
        if not isinstance(one, Mapping):
            continue
        if one.get("cidr") == pool.spec.cidr or one.get("name") == pool.metadata.name:
            return index
    return None


def _policy_timeout(network: Network) -> Iterator[Finding]:
    """How long ADD waits for policy, where it can be known: the operator's, or a conflist's."""
    if network.installation is not None:
        value = network.installation.get("linuxPolicySetupTimeoutSeconds")
        if not isinstance(value, int) or value <= 0:
            body = {"spec": {"calicoNetwork": {"linuxPolicySetupTimeoutSeconds": POLICY_TIMEOUT}}}
            patch = json.dumps(body, separators=(",", ":"))
            yield Finding(
                RISK, Subject("Installation", "default"), "PolicySetupTimeout",
                "linuxPolicySetupTimeoutSeconds is not set: a target may run before its policy "
                "is in force",
                f"kubectl patch installation default --type=merge -p '{patch}'",
            )  # fmt: skip
    for place, value in network.plugin_timeouts.items():
        if value <= 0:
            yield Finding(
                RISK, Subject("Conflist", place), "PolicySetupTimeout",
                "policy_setup_timeout_seconds is not set: a target may run before its policy is "
                "in force",
                f'"policy_setup_timeout_seconds": {POLICY_TIMEOUT}',
            )  # fmt: skip
