"""CHECK: is the attachment still what ADD made? Says everything that differs, not the first thing.

Compares the previous result, the endpoint, both ends of the veth with their MTU, sysctls,
addresses and routes, the packet filter's rules, and the owners in IPAM. What plugins later in the
chain did is theirs: more addresses, interfaces and routes than ours are no difference.

A VM's launcher is allowed what KubeVirt's bridge binding does to it: the pod's end of the veth
is renamed and enslaved, its address moves to a device that stands in for it. And a VM's host
route is the agent's to raise, keep or withhold, so it is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_interface

from cni_plugin import chain, dataplane, endpoint, interfaces, mtu
from cni_plugin.addresses import giver_of
from cni_plugin.delegate import DelegateFailed
from cni_plugin.endpoint import Place
from cni_plugin.errors import CheckFailed, InvalidConfig, UnknownContainer
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf
from ipam.client import Allocation
from libtortie.errors import KernelError, NotFound
from libtortie.linux.port import IPInterface, Kernel, Link, Route
from libtortie.model import names
from libtortie.model.resources import WorkloadEndpoint

POLICY_SECONDS = 5.0
"""How long policy may be on its way: CHECK may come right after ADD."""


def check(ports: Ports, place: Place, args: CmdArgs, conf: NetConf) -> None:
    """Raises `CheckFailed` naming every difference, or what the ports raise.

    A refusal by another program's IPAM is passed on as it is only if nothing else differs.
    """
    before = chain.previous(conf.prev_result)
    if before is None:
        raise InvalidConfig("prevResult: CHECK needs the result of ADD")
    if ports.namespaces.inode(args.netns) is None:
        raise UnknownContainer(f"CNI_NETNS {args.netns} is not a network namespace")
    stored = _endpoint(ports, place, args)
    found = [
        *_result(before, stored, args),
        *_links(ports, place, stored, args, conf, before=before),
        *_policy(ports, place, stored),
    ]
    try:
        found += _ownership(ports, stored, args)
    except DelegateFailed as refusal:
        if not found:
            raise
        found.append(str(refusal))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        error = CheckFailed(found[0] + more)
        for text in found:
            error.add_note(text)
        raise error


def _endpoint(ports: Ports, place: Place, args: CmdArgs) -> WorkloadEndpoint:
    record = endpoint.read(ports.store, place.key)
    if record is None:
        raise CheckFailed(f"WorkloadEndpoint {place.namespace}/{place.key.name} does not exist")
    stored = endpoint.endpoint_of(record)
    if not endpoint.is_of(stored, args.container_id, args.pod_uid):
        raise CheckFailed(
            f"WorkloadEndpoint {place.namespace}/{place.key.name} is of container "
            f"{stored.spec.container_id}"
        )
    return stored


def _result(before: chain.Previous, stored: WorkloadEndpoint, args: CmdArgs) -> Iterator[str]:
    """What the runtime was told, against what is stored."""
    ours, told = endpoint.addresses_of(stored), before.addresses_of(args.ifname)
    if not ours <= told:
        yield f"prevResult has {_text(told)} for {args.ifname}, the endpoint {_text(ours)}"
    listed = before.interface(args.ifname)
    if before.interfaces and listed is None:
        yield f"prevResult has no interface {args.ifname} in a sandbox"
    mac = str((listed or {}).get("mac") or "").lower()
    if mac and stored.spec.mac and mac != stored.spec.mac.lower():
        yield f"prevResult has MAC {mac} for {args.ifname}, the endpoint {stored.spec.mac}"


def _links(
    ports: Ports,
    place: Place,
    stored: WorkloadEndpoint,
    args: CmdArgs,
    conf: NetConf,
    *,
    before: chain.Previous,
) -> Iterator[str]:
    name = endpoint.host_name_of(stored, place)
    host = ports.kernel.link(name)
    if host is None:
        yield f"interface {name} does not exist on the node"
        return
    if not host.up:
        yield f"interface {name} is down"
    if host.mac != names.HOST_SIDE_MAC:
        yield f"interface {name} has MAC {host.mac}, not {names.HOST_SIDE_MAC}"
    noted = stored.metadata.annotations.get(names.ANNOTATION_MTU, "")
    right = mtu.expected(before, name, noted, conf, ports)
    yield from mtu.host_difference(host, right)
    addresses = endpoint.addresses_of(stored)
    ipv6 = 6 in _versions(addresses)
    yield from _sysctls(ports.kernel, dataplane.host_sysctls(name, ipv6=ipv6), "the node")
    if endpoint.vm_of(stored) is None:
        yield from _host_routes(ports.kernel, name, addresses)
    inside = ports.namespaces.open(args.netns)
    try:
        way_out = interfaces.leads_out(ports.namespaces, args)
        reached = interfaces.destinations(ports.store, conf, giver_of(stored), way_out=way_out)
        versions = _versions(addresses)
        routes = dataplane.pod_routes(args.ifname, versions, reached, way_out=way_out)
        yield from _pod_side(inside, host, stored, args, routes, right=right)
    finally:
        inside.close()


def _pod_side(
    inside: Kernel,
    host: Link,
    stored: WorkloadEndpoint,
    args: CmdArgs,
    routes: tuple[Route, ...],
    *,
    right: mtu.Expected,
) -> Iterator[str]:
    peer = next((link for link in inside.links() if link.ifindex == host.peer_ifindex), None)
    if peer is None or peer.peer_ifindex != host.ifindex:
        yield f"interface {host.name} does not lead into {args.netns}"
        return
    if endpoint.vm_of(stored) is not None:
        return
    if peer.name != args.ifname:
        yield f"the pod's interface is named {peer.name}, not {args.ifname}"
        return
    if not peer.up:
        yield f"{args.ifname} is down"
    if stored.spec.mac and peer.mac != stored.spec.mac:
        yield f"{args.ifname} has MAC {peer.mac}, not {stored.spec.mac}"
    yield from mtu.pod_difference(peer, right)
    addresses = endpoint.addresses_of(stored)
    versions = _versions(addresses)
    actual = {str(address) for address in inside.addresses(args.ifname)}
    if not addresses <= actual:
        yield f"{args.ifname} has {_text(actual)}, not {_text(addresses)}"
    yield from _sysctls(inside, dataplane.pod_sysctls(args.ifname, ipv6=6 in versions), "the pod")
    for wanted in routes:
        found = inside.routes(dst=wanted.dst)
        if not any(one.ifname == args.ifname and one.gateway == wanted.gateway for one in found):
            yield f"the pod has no route {wanted.dst} dev {args.ifname}"


def _sysctls(kernel: Kernel, plan: tuple[dataplane.Sysctl, ...], where: str) -> Iterator[str]:
    """Values that ADD had to set, and that are others now."""
    for item in plan:
        if not item.needed:
            continue
        try:
            value = kernel.read_sysctl(item.name)
        except (KernelError, NotFound) as error:
            yield f"sysctl {item.name} of {where} cannot be read: {error}"
            continue
        if value.split() != item.value.split():
            yield f"sysctl {item.name} of {where} is {value}, not {item.value}"


def _host_routes(kernel: Kernel, name: str, addresses: frozenset[str]) -> Iterator[str]:
    for text in sorted(addresses):
        network = _interface(text).network
        routes = kernel.routes(version=network.version, dst=network)
        if not any(route.ifname == name for route in routes):
            yield f"the node has no route {network} dev {name}"


def _policy(ports: Ports, place: Place, stored: WorkloadEndpoint) -> Iterator[str]:
    """The agent's word that policy is in force, and the rules themselves."""
    name = endpoint.host_name_of(stored, place)
    if not ports.policy.wait(place.status_file, place.container_id, POLICY_SECONDS):
        yield f"policy of {name} is not in force: the agent has no status for this container"
    if name not in ports.policy.policed():
        yield f"the packet filter has no rules for {name}"


def _ownership(ports: Ports, stored: WorkloadEndpoint, args: CmdArgs) -> Iterator[str]:
    giver = giver_of(stored)
    if giver.kind:  # another program's, which is asked, or the pod's own
        if ports.delegate is not None and giver.kind == ports.delegate.kind:
            ports.delegate.check(args)
        return
    handle = stored.metadata.annotations.get(names.ANNOTATION_HANDLE, "")
    held = {
        str(dataplane.as_interface(item.address)): item for item in ports.ipam.by_handle(handle)
    }
    for text in sorted(endpoint.addresses_of(stored)):
        if text not in held:
            yield f"{text} is not allocated to handle {handle}"
        elif not _owns(held[text], args):
            yield f"{text} is owned by another sandbox: {dict(held[text].active)}"


def _owns(allocation: Allocation, args: CmdArgs) -> bool:
    owners = (allocation.active, allocation.alternate)
    return any(owner.get("container-id") == args.container_id for owner in owners)


def _versions(addresses: Iterable[str]) -> set[int]:
    return {_interface(text).version for text in addresses}


def _interface(text: str) -> IPInterface:
    return ip_interface(text)


def _text(addresses: Iterable[str]) -> str:
    return ", ".join(sorted(addresses)) or "no address"
