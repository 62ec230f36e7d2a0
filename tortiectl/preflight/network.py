"""What is wrong with Calico's configuration for VMs that migrate. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from libtortie.model.ipam import Persistence
from libtortie.model.resources import FelixConfiguration, IPPool
from libtortie.model.times import parse_duration
from tortiectl.kubevirt.objects import VMI
from tortiectl.preflight.findings import Finding, Severity, Subject
from tortiectl.preflight.world import Cluster, Network

BLOCKS, BREAKS, RISK = Severity.BLOCKS, Severity.BREAKS, Severity.RISK
Address = IPv4Address | IPv6Address
NORMAL, ELEVATED = 1024, 512
"""Route priorities where the FelixConfiguration says nothing."""
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
    for pool in network.pools:
        if _serves(pool, addresses):
            yield from _pool(pool, network)
    for felix in network.felix.values():
        yield from _felix(felix)
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


def _pool(pool: IPPool, network: Network) -> Iterator[Finding]:
    about, spec = Subject("IPPool", pool.metadata.name), pool.spec
    if spec.nat_outgoing:
        yield Finding(
            BREAKS, about, "NATOutgoing",
            "natOutgoing is on: connections out of the pool are masqueraded by the node, and "
            "break when the VM leaves it",
            _pool_fix(pool, network, _Change("natOutgoing", "Disabled", "natOutgoing", False)),
        )  # fmt: skip
    if spec.ipip_mode != "Never":
        yield Finding(
            BLOCKS, about, "IPIP",
            f"ipipMode is {spec.ipip_mode}: live migration is not possible over IPIP",
            _pool_fix(pool, network, _Change("encapsulation", "None", "ipipMode", "Never"))
            + ", or VXLAN where a plain network cannot be had",
        )  # fmt: skip
    if spec.disable_bgp_export and spec.vxlan_mode == "Never":
        yield Finding(
            BREAKS, about, "NoBGPExport",
            "disableBGPExport is on: no other node learns where the VM has gone",
            _pool_fix(pool, network, _Change("disableBGPExport", False, "disableBGPExport", False)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Change:
    """A field and its right value, in the operator's list of pools and in the IPPool."""

    operators: str
    operators_value: object
    own: str
    own_value: object


def _pool_fix(pool: IPPool, network: Network, change: _Change) -> str:
    """The command that changes a pool where its owner does not put it back."""
    at = _operator_index(pool, network.installation)
    if at is None or network.installation is None:
        body = json.dumps({"spec": {change.own: change.own_value}}, separators=(",", ":"))
        return (
            f"set {change.own}: {json.dumps(change.own_value)} on the IPPool: kubectl patch "
            f"ippools.projectcalico.org {pool.metadata.name} --type=merge -p '{body}'"
        )
    patch = [
        {
            "op": "replace" if change.operators in network.installation["ipPools"][at] else "add",
            "path": f"/spec/calicoNetwork/ipPools/{at}/{change.operators}",
            "value": change.operators_value,
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


def _felix(felix: FelixConfiguration) -> Iterator[Finding]:
    name, spec = felix.metadata.name, felix.spec
    about = Subject("FelixConfiguration", name)
    for key, value in (
        ("wireguardEnabled", spec.wireguard_enabled),
        ("wireguardEnabledV6", spec.wireguard_enabled_v6),
    ):
        if value:
            yield Finding(
                BREAKS, about, "WireGuard",
                f"{key} is on: live migration is not supported with WireGuard",
                f"set {key}: false, or keep these VMs where they are",
            )  # fmt: skip
    for version, normal, elevated in (
        (4, spec.ipv4_normal_route_priority, spec.ipv4_elevated_route_priority),
        (6, spec.ipv6_normal_route_priority, spec.ipv6_elevated_route_priority),
    ):
        if (normal or NORMAL) - (elevated or ELEVATED) < 2:
            yield Finding(
                BREAKS, about, "RoutePriorities",
                f"ipv{version}ElevatedRoutePriority {elevated or ELEVATED} must be at least 2 "
                f"below ipv{version}NormalRoutePriority {normal or NORMAL}: the route of a VM "
                "that has moved does not win",
                f"use {ELEVATED} and {NORMAL}, the defaults",
            )  # fmt: skip
    yield from _convergence(about, spec.live_migration_route_convergence_time)


def _convergence(about: Subject, text: str) -> Iterator[Finding]:
    if not text:
        return
    try:
        if parse_duration(text) >= 1:
            return
        why = "is over before other nodes have settled"
    except ValueError:
        why = "is no duration"
    yield Finding(
        RISK, about, "ConvergenceTime", f"liveMigrationRouteConvergenceTime {text!r} {why}",
        "use 30s, the default",
    )  # fmt: skip


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
