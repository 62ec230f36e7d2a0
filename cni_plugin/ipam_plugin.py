"""`tortie-ipam`: our IPAM for another plugin, such as `bridge` or `macvlan` (CNI spec, section 4).

That plugin wires the sandbox and is asked for it; here are only addresses. They are neighbours on
one link, of a block or of a pool, so the link's own addresses are given to nobody. A VM keeps its
addresses as on the first network, and each sandbox only frees its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

from cni_plugin import detach, gc, interfaces, seats
from cni_plugin.annotations import wanted_addresses
from cni_plugin.attach import Allocations, Attaching
from cni_plugin.caller import require_caller
from cni_plugin.calls import IDENTITY, IPAM, phase
from cni_plugin.chain import previous
from cni_plugin.endpoint import place_of
from cni_plugin.errors import CheckFailed, InvalidConfig, NotReady
from cni_plugin.plugin import locked
from cni_plugin.ports import Ports
from cni_plugin.recall import recalled
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf, Result
from cni_plugin.undo import Undo
from ipam.client import Allocation
from ipam.ownership import IFNAME, PLUGIN
from ipam.pools import Lan, Pool
from ipam.settings import read_pools
from ipam.transaction import Transaction
from libtortie.errors import InvalidInput, TortieError
from libtortie.kube.objects import LAUNCHER_PREFIX
from libtortie.linux.port import IPInterface, IPNetwork
from libtortie.model import names
from libtortie.model.ipam import IPAddress


class IPAMPlugin:
    """`skel.PluginVerbs`."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def cmd_add(self, args: CmdArgs, conf: NetConf) -> Result:
        """Give a sandbox's interface its addresses (CNI spec, ADD)."""
        p = self._ports
        with phase(IDENTITY):
            workload = p.identify.workload(args, conf)
        with locked(p, _lock_key(conf.name, args)), ExitStack() as stack:
            require_caller()
            workload = interfaces.seated(p, args, conf.name, workload)
            undo = Undo(stack, p.monotonic, p.sleep, p.log)
            step = Attaching(p, args, conf, workload, place_of(args, p.node), undo)
            marks = {PLUGIN: conf.type, IFNAME: args.ifname}
            with phase(IPAM):
                result = self._result(step.allocate(lan_of(conf), marks), conf)
            undo.disarm()
        return result

    def cmd_del(self, args: CmdArgs, conf: NetConf) -> None:
        """Free the addresses (CNI spec, DEL). Nothing to free is success."""
        with locked(self._ports, _lock_key(conf.name, args)), phase(IPAM):
            self._take_back(args, conf)

    def cmd_check(self, args: CmdArgs, conf: NetConf) -> None:
        """Whether the addresses that were given are still the sandbox's. Raises `CheckFailed`."""
        before = previous(conf.prev_result)
        if before is None:
            raise InvalidConfig("prevResult: CHECK needs the result of ADD")
        told = before.addresses()
        held = self._held(args, conf)
        if not held:
            raise CheckFailed(f"container {args.container_id} has no address of {conf.name}")
        if not held <= told:
            missing = ", ".join(sorted(str(one) for one in held - told))
            raise CheckFailed(f"prevResult lacks {missing}, which the container has")

    def cmd_status(self, conf: NetConf) -> None:
        """Whether addresses could be given now (CNI spec, STATUS). Raises `NotReady`."""
        try:
            self._ports.ipam.rehearse(replace(wanted_addresses({}, {}, conf), lan=lan_of(conf)))
            self._ports.identify.require_answers()
        except TortieError as error:
            raise NotReady(str(error)) from error

    def cmd_gc(self, conf: NetConf) -> None:
        """Free what sandboxes of this network and node have that are not listed as valid."""
        p = self._ports
        valid = conf.valid_attachments
        if valid is None:
            return
        errors: list[TortieError] = []
        for args in _attachments(p, conf):
            listed = (args.container_id, args.ifname) in valid
            if listed or p.locks.busy(_lock_key(conf.name, args)):
                continue
            try:
                self.cmd_del(args, conf)
            except TortieError as error:
                errors.append(error)
        gc.raise_all(errors)

    def _take_back(self, args: CmdArgs, conf: NetConf) -> None:
        p = self._ports
        args = recalled(p, args, conf.name)
        detach.release_container(p, _handle_of(conf.name, args), args)
        for seat in self._seats(args, conf):
            seats.leave(p, seat)

    def _seats(self, args: CmdArgs, conf: NetConf) -> list[seats.Seat]:
        """Where the sandbox is a VM's; whose it is, is not asked of the API."""
        launcher = args.pod.startswith(LAUNCHER_PREFIX)
        return seats.of_sandbox(self._ports, args, conf.name) if launcher else []

    def _held(self, args: CmdArgs, conf: NetConf) -> frozenset[IPAddress]:
        """The addresses of which the sandbox is an owner."""
        handles = [_handle_of(conf.name, args), *(handle for handle, _ in self._seats(args, conf))]
        found = (item for handle in handles for item in self._ports.ipam.by_handle(handle))
        return frozenset(item.address for item in found if _is_owner(item, args))

    def _result(self, got: Allocations, conf: NetConf) -> Result:
        gateways = tuple(ip_address(text) for text in conf.ipam.gateway)
        pools: Sequence[Pool] = ()
        if conf.ipam.prefix == "pool":
            pools, _ = read_pools(Transaction(self._ports.store))
        lan = lan_of(conf) or Lan(routers=frozenset(gateways))
        for item in got:
            _require_hosts(item.address, _link_of(item, conf, pools), lan)
        return Result(
            interfaces=(),
            addresses=tuple(_with_prefix(item, conf, pools) for item in got),
            gateways=gateways,
            routes=tuple(route.model_dump(exclude_defaults=True) for route in conf.ipam.routes),
        )


def _handle_of(network: str, args: CmdArgs) -> str:
    return names.container_handle(network, args.container_id, args.ifname)


def lan_of(conf: NetConf) -> Lan | None:
    """The link that the addresses are for; None where each is routed by itself."""
    if conf.ipam.prefix == "host":
        return None
    routers = frozenset(ip_address(text) for text in conf.ipam.gateway)
    return Lan(conf.ipam.prefix == "pool", routers)


def _with_prefix(item: Allocation, conf: NetConf, pools: Sequence[Pool]) -> IPInterface:
    return ip_interface(f"{item.address}/{_link_of(item, conf, pools).prefixlen}")


def _link_of(item: Allocation, conf: NetConf, pools: Sequence[Pool]) -> IPNetwork:
    """On which an address's neighbours are; itself where it has none."""
    if conf.ipam.prefix == "host":
        return ip_network(item.address)
    return next((one.cidr for one in pools if item.address in one.cidr), item.block)


def _require_hosts(address: IPAddress, link: IPNetwork, lan: Lan) -> None:
    """Raises `InvalidInput` for an address that was asked for and is the link's own."""
    if address in lan.routers:
        raise InvalidInput(f"{address} is ipam.gateway: no pod can have it")
    if lan.keeps(address, link):
        raise InvalidInput(f"{address} is an address of {link} itself: no pod can have it")


def _is_owner(item: Allocation, args: CmdArgs) -> bool:
    owners = (item.active, item.alternate)
    return any(owner.get("container-id") == args.container_id for owner in owners)


def _lock_key(network: str, args: CmdArgs) -> str:
    return f"ipam {network} {args.container_id} {args.ifname}"


def _attachments(ports: Ports, conf: NetConf) -> list[CmdArgs]:
    """What other plugins asked for on this node and network, in the words of their calls."""
    found: dict[tuple[str, str], CmdArgs] = {}
    for owner, attribute in gc.owners_on(ports.store, ports.node):
        args = gc.args_of(owner, owner.get(IFNAME, ""))
        if PLUGIN not in owner or not args.container_id:
            continue
        handles: tuple[str, ...] = (_handle_of(conf.name, args),)
        if vm := owner.get("vmi-name"):
            handles = interfaces.of_vm(conf.name, args.namespace, vm, args.ifname)
        if attribute.handle_id in handles:
            found[args.container_id, args.ifname] = args
    return list(found.values())
