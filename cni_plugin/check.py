"""CHECK: is the attachment still what ADD made? Compares device, addresses, routes and owners.

A VM's launcher is allowed what KubeVirt's bridge binding does to it: the pod's end of the veth
is renamed and enslaved, its address moves to a device that stands in for it. And a VM's host
route is the agent's to raise, keep or withhold, so it is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_interface

from cni_plugin import dataplane, endpoint
from cni_plugin.endpoint import Place
from cni_plugin.errors import CheckFailed, InvalidConfig, UnknownContainer
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf, addresses_of_result
from ipam.client import Allocation, IPAMClient
from libtortie.datastore.port import Datastore
from libtortie.linux.port import IPInterface, Kernel, Link, Namespaces
from libtortie.model import names
from libtortie.model.resources import WorkloadEndpoint


def check(ports: Ports, place: Place, args: CmdArgs, conf: NetConf) -> None:
    """Raises `CheckFailed` naming the first difference, or what the ports raise."""
    if conf.prev_result is None:
        raise InvalidConfig("prevResult: CHECK needs the result of ADD")
    stored = _endpoint(ports.store, place, args)
    addresses = endpoint.addresses_of(stored)
    promised = addresses_of_result(conf.prev_result)
    if promised != addresses:
        raise CheckFailed(f"prevResult has {_text(promised)}, the endpoint {_text(addresses)}")
    name = endpoint.host_name_of(stored, place)
    host = _host_side(ports.kernel, name)
    _pod_side(ports.namespaces, host, stored, args)
    if endpoint.vm_of(stored) is None:
        _host_routes(ports.kernel, name, addresses)
    _ownership(ports.ipam, stored, args, addresses)


def _endpoint(store: Datastore, place: Place, args: CmdArgs) -> WorkloadEndpoint:
    record = endpoint.read(store, place.key)
    if record is None:
        raise CheckFailed(f"WorkloadEndpoint {place.namespace}/{place.key.name} does not exist")
    stored = endpoint.endpoint_of(record)
    if not endpoint.is_of(stored, args.container_id, args.pod_uid):
        raise CheckFailed(
            f"WorkloadEndpoint {place.namespace}/{place.key.name} is of container "
            f"{stored.spec.container_id}"
        )
    return stored


def _host_side(kernel: Kernel, name: str) -> Link:
    host = kernel.link(name)
    if host is None:
        raise CheckFailed(f"interface {name} does not exist on the node")
    if not host.up:
        raise CheckFailed(f"interface {name} is down")
    if host.mac != names.HOST_SIDE_MAC:
        raise CheckFailed(f"interface {name} has MAC {host.mac}")
    return host


def _pod_side(
    namespaces: Namespaces,
    host: Link,
    stored: WorkloadEndpoint,
    args: CmdArgs,
) -> None:
    if namespaces.inode(args.netns) is None:
        raise UnknownContainer(f"CNI_NETNS {args.netns} is not a network namespace")
    inside = namespaces.open(args.netns)
    try:
        links = inside.links()
        peer = next((link for link in links if link.ifindex == host.peer_ifindex), None)
        if peer is None or peer.peer_ifindex != host.ifindex:
            raise CheckFailed(f"interface {host.name} does not lead into {args.netns}")
        if endpoint.vm_of(stored) is not None:
            return
        if peer.name != args.ifname:
            raise CheckFailed(f"the pod's interface is named {peer.name}, not {args.ifname}")
        if stored.spec.mac and peer.mac != stored.spec.mac:
            raise CheckFailed(f"{args.ifname} has MAC {peer.mac}, not {stored.spec.mac}")
        _pod_network(inside, args.ifname, endpoint.addresses_of(stored))
    finally:
        inside.close()


def _pod_network(inside: Kernel, ifname: str, addresses: frozenset[str]) -> None:
    actual = {str(address) for address in inside.addresses(ifname)}
    if not addresses <= actual:
        raise CheckFailed(f"{ifname} has {_text(actual)}, not {_text(addresses)}")
    versions: set[int] = {_interface(text).version for text in addresses}
    for wanted in dataplane.pod_routes(ifname, versions):
        found = inside.routes(version=wanted.dst.version, dst=wanted.dst)
        if not any(route.ifname == ifname and route.gateway == wanted.gateway for route in found):
            raise CheckFailed(f"the pod has no route {wanted.dst} dev {ifname}")


def _host_routes(kernel: Kernel, name: str, addresses: frozenset[str]) -> None:
    for text in sorted(addresses):
        network = _interface(text).network
        found = kernel.routes(version=network.version, dst=network)
        if not any(route.ifname == name for route in found):
            raise CheckFailed(f"the node has no route {network} dev {name}")


def _ownership(
    ipam: IPAMClient, stored: WorkloadEndpoint, args: CmdArgs, addresses: frozenset[str]
) -> None:
    handle = stored.metadata.annotations.get(names.ANNOTATION_HANDLE, "")
    held = {str(dataplane.as_interface(item.address)): item for item in ipam.by_handle(handle)}
    for text in sorted(addresses):
        if text not in held:
            raise CheckFailed(f"{text} is not allocated to handle {handle}")
        if not _owns(held[text], args):
            raise CheckFailed(f"{text} is owned by another sandbox: {dict(held[text].active)}")


def _owns(allocation: Allocation, args: CmdArgs) -> bool:
    owners = (allocation.active, allocation.alternate)
    return any(owner.get("container-id") == args.container_id for owner in owners)


def _interface(text: str) -> IPInterface:
    return ip_interface(text)


def _text(addresses: Iterable[str]) -> str:
    return ", ".join(sorted(addresses)) or "no address"
