"""A sandbox's interfaces: which handle each one's addresses have.

`eth0` is the first, and its names are Calico's. Others come from Multus, or from a runtime with
several networks: of another network, or once more of the same one. Each has addresses of its own:
a container's by a handle with the interface's name at its end, a VM's by the network's handle, or,
where another interface of the VM in that network has it, by one of its own. A VM's interface finds
its handle again in every later pod, whatever became of the others.

A pod's annotations are about its first interface, and its default routes lead there. By another one
it reaches the pools that the network names.
"""

from __future__ import annotations

from dataclasses import replace

from cni_plugin.addresses import DEFAULTS, Giver
from cni_plugin.identity import Workload
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf
from ipam.ownership import IFNAME, ifname_of, is_pod
from ipam.settings import read_pools
from ipam.transaction import Transaction
from libtortie.datastore.port import Datastore
from libtortie.linux.port import IPNetwork, Namespaces
from libtortie.model import names
from libtortie.model.ipam import Owner


def of_vm(network: str, namespace: str, vm: str, ifname: str) -> tuple[str, ...]:
    """The handles that an interface of a VM may have: the network's, or one of its own."""
    shared = names.vm_handle(network, namespace, vm)
    if is_first(ifname):
        return (shared,)
    return shared, names.vm_interface_handle(network, namespace, vm, ifname)


def is_first(ifname: str) -> bool:
    """Whether an interface is the one whose names are Calico's and that annotations are about."""
    return ifname == names.FIRST_INTERFACE


def leads_out(namespaces: Namespaces, args: CmdArgs) -> bool:
    """Whether an interface is its sandbox's way out: the first one, or one that has no other
    beside it that is. Raises `NotFound` without the namespace, `KernelError`."""
    if is_first(args.ifname):
        return True
    inside = namespaces.open(args.netns)
    try:
        ways = [route for dst in DEFAULTS for route in inside.routes(dst=dst)]
    finally:
        inside.close()
    return all(route.ifname == args.ifname for route in ways)


def destinations(
    store: Datastore, conf: NetConf, giver: Giver, *, way_out: bool
) -> tuple[IPNetwork, ...]:
    """What a pod reaches by an interface, each once. Raises what the store raises."""
    if way_out:
        return tuple(dict.fromkeys(giver.destinations(with_defaults=conf.include_default_routes)))
    if giver.kind:
        return tuple(dict.fromkeys(giver.told()))
    named = {*conf.ipam.ipv4_pools, *conf.ipam.ipv6_pools}
    if not named:
        return ()
    pools, _ = read_pools(Transaction(store))
    return tuple(pool.cidr for pool in pools if pool.name in named or str(pool.cidr) in named)


def another(owner: Owner, node: str, args: CmdArgs) -> str:
    """Whose a container's handle is, if it is not this sandbox's; empty if it is.

    Two handles can read the same: names and ids may contain dots, and a person who chooses ids may
    choose the same one on two nodes. What an owner does not say agrees with everything.
    """
    ours = {"container-id": args.container_id, "node": node}
    if args.pod:
        ours |= {"namespace": args.namespace, "pod": args.pod}
    agrees = all(owner.get(key, value) == value for key, value in ours.items())
    if not owner or (agrees and ifname_of(owner) == args.ifname):
        return ""
    container, where = (owner.get(key, ours[key]) for key in ("container-id", "node"))
    pod = f"pod {owner.get('namespace', '')}/{owner['pod']}, " if is_pod(owner) else ""
    return f"{pod}interface {ifname_of(owner)} of container {container} of node {where}"


def marks(ifname: str) -> dict[str, str]:
    """What is noted of an owner, so that the sandbox's other interfaces are told apart."""
    return {} if is_first(ifname) else {IFNAME: ifname}


def seated(ports: Ports, args: CmdArgs, network: str, workload: Workload) -> Workload:
    """The workload with the handle of this interface. Raises what IPAM raises."""
    if workload.vm is None or is_first(args.ifname):
        return workload
    shared, own = of_vm(network, workload.namespace, workload.vm.name, args.ifname)
    handle = own if ports.ipam.by_handle(own) or _is_others(ports, shared, args) else shared
    return replace(workload, handle_id=handle)


def _is_others(ports: Ports, handle: str, args: CmdArgs) -> bool:
    """Whether another interface of the VM's pods has a handle's addresses."""
    held = ports.ipam.by_handle(handle)
    owners = [owner for one in held for owner in (one.active, one.alternate)]
    return any(owner.get("pod") and ifname_of(owner) != args.ifname for owner in owners)
