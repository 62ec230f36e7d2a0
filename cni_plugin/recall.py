"""Which pod was this container's, when a DEL does not say? What ADD left on record does.

A sandbox is its container's id and an interface's name (CNI spec, section 2); CNI_ARGS are only
what a runtime has to say besides, and may be lost by the time of DEL. Freeing by the id alone what
was attached under a pod's name would leave that pod's endpoint with an address that is the next
pod's, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cni_plugin import endpoint, gc, seats
from cni_plugin.endpoint import place_of
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from ipam.ownership import ifname_of, is_pod
from libtortie.model import names
from libtortie.model.ipam import Owner


def recalled(ports: Ports, args: CmdArgs, network: str) -> CmdArgs:
    """The call with the names that ADD was given; as it is where it names a pod, or none had one.

    Raises what datastore and IPAM raise.
    """
    if args.pod:
        return args
    own = endpoint.read(ports.store, place_of(args, ports.node).key)
    if own is not None and endpoint.is_of(endpoint.endpoint_of(own), args.container_id, ""):
        return args
    found = next(_on_record(ports, args, network), None)
    return args if found is None else replace(args, args={**args.args, **found.args})


def _on_record(ports: Ports, args: CmdArgs, network: str) -> Iterator[CmdArgs]:
    """What endpoints and, without one, IPAM's records say of the sandbox."""
    sandbox = args.container_id, args.ifname
    for stored in endpoint.of_node(ports.store, ports.node):
        if (stored.spec.container_id, stored.spec.endpoint) != sandbox:
            continue
        if stored.spec.pod and gc.is_of_network(stored, network):
            yield gc.args_of_endpoint(stored)
    for owner in _owners(ports, args, network):
        if is_pod(owner) and owner.get("node") == ports.node and ifname_of(owner) == args.ifname:
            yield gc.args_of(owner, args.ifname)


def _owners(ports: Ports, args: CmdArgs, network: str) -> Iterator[Owner]:
    """Owners with the container's id, of its own handle and of VMs' in this network."""
    handle = names.container_handle(network, args.container_id, args.ifname)
    for held in ports.ipam.by_handle(handle):
        if held.active.get("container-id") == args.container_id:
            yield held.active
    yield from seats.of_container(ports, args, network)
