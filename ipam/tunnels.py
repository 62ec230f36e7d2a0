"""A node's own addresses for its tunnels: IPIP, VXLAN, WireGuard, by Calico's handles.

A node has one address of a tunnel while a pool that may give it one (`allowedUses: Tunnel`,
enabled, selecting the node) has the encapsulation; WireGuard's while FelixConfiguration switches
it on. Level-triggered: what is stored is judged, whatever led to it, and doing it again changes
nothing. The Node resource never names an address that was given back: it is cleared first and set
last. Never used where addresses come from the node's pod CIDR.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from libtortie.datastore.port import Datastore
from libtortie.errors import (
    InvalidInput,
    NoFreeAddresses,
    NotFound,
    OwnerMismatch,
    TortieError,
    Unavailable,
    first_line,
)
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Node, NodeBGP, NodeWireguard

from .attempts import Attempts
from .client import IPAMClient
from .pools import TUNNEL, Pool, described, selects
from .request import AddressRequest, Allocation
from .settings import read_node_labels, read_pools, require_ready
from .transaction import Transaction


@dataclass(frozen=True, slots=True)
class Tunnel:
    """One kind of tunnel address: `type` and `prefix` are Calico's, `part` and `field` where the
    Node resource has it (`part` empty: in the spec itself)."""

    type: str
    prefix: str
    version: int
    field: str
    part: str = ""

    def handle_id(self, node: str) -> str:
        """The handle of a node's address."""
        return f"{self.prefix}-{node}"

    def owner(self, node: str) -> dict[str, str]:
        """The owner attributes of a node's address."""
        return {"node": node, "type": self.type}


IPIP = Tunnel("ipipTunnelAddress", "ipip-tunnel-addr", 4, "ipv4_ipip_tunnel_addr", "bgp")
VXLAN = Tunnel("vxlanTunnelAddress", "vxlan-tunnel-addr", 4, "ipv4_vxlan_tunnel_addr")
VXLAN_V6 = Tunnel("vxlanV6TunnelAddress", "vxlan-v6-tunnel-addr", 6, "ipv6_vxlan_tunnel_addr")
WIREGUARD = Tunnel(
    "wireguardTunnelAddress", "wireguard-tunnel-addr", 4, "interface_ipv4_address", "wireguard"
)
WIREGUARD_V6 = Tunnel(
    "wireguardV6TunnelAddress", "wireguard-v6-tunnel-addr", 6, "interface_ipv6_address", "wireguard"
)
TUNNELS = (IPIP, VXLAN, VXLAN_V6, WIREGUARD, WIREGUARD_V6)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about one tunnel: keep an address, or give back what is held and then, with
    `pools`, take another from them: `prefer` if it is to be had."""

    keep: IPAddress | None = None
    release: bool = False
    pools: tuple[str, ...] = ()
    prefer: IPAddress | None = None


@dataclass(frozen=True, slots=True)
class Ensured:
    """How one tunnel's address stands now. `error` says why it is not as it should be, or ""."""

    tunnel: Tunnel
    address: IPAddress | None = None
    changed: bool = False
    error: str = ""


def pools_for(
    tunnel: Tunnel, pools: Iterable[Pool], labels: Mapping[str, str], wireguard: frozenset[int]
) -> tuple[Pool, ...]:
    """The pools that give a node its address of a tunnel; () when it needs none.

    `wireguard`: the families that are encrypted.
    """
    return tuple(
        pool
        for pool in pools
        if pool.enabled
        and pool.cidr.version == tunnel.version
        and TUNNEL in pool.allowed_uses
        and selects(pool, labels)
        and _has(pool, tunnel, wireguard)
    )


def _has(pool: Pool, tunnel: Tunnel, wireguard: frozenset[int]) -> bool:
    if tunnel is IPIP:
        return pool.ipip
    return pool.vxlan if tunnel in (VXLAN, VXLAN_V6) else tunnel.version in wireguard


def plan(
    tunnel: Tunnel, node: str, pools: Sequence[Pool], held: Sequence[Allocation], stated: str
) -> Plan:
    """What becomes of a tunnel's address: `held` is what its handle has, `stated` the Node says.

    Kept is the one address that is this node's for this tunnel and in one of the pools. An address
    that the Node names and nobody holds is taken again, as a lost record is.
    """
    usable = [one for one in held if any(one.address in pool.cidr for pool in pools)]
    if len(held) == 1 and usable and dict(held[0].active) == tunnel.owner(node):
        return Plan(keep=held[0].address)
    named = _address(stated)
    prefer = named if any(named in pool.cidr for pool in pools if named is not None) else None
    return Plan(release=bool(held), pools=tuple(pool.name for pool in pools), prefer=prefer)


def stated_in(node: Node, tunnel: Tunnel) -> str:
    """What a Node resource says is its address of a tunnel, or ""."""
    part = getattr(node.spec, tunnel.part) if tunnel.part else node.spec
    return "" if part is None else str(getattr(part, tunnel.field))


def with_address(node: Node, tunnel: Tunnel, address: IPAddress | None) -> Node:
    """The Node resource with an address of a tunnel, or without; all else as it is."""
    update: dict[str, object] = {tunnel.field: "" if address is None else str(address)}
    if tunnel.part:
        empty = NodeBGP() if tunnel.part == "bgp" else NodeWireguard()
        part = (getattr(node.spec, tunnel.part) or empty).model_copy(update=update)
        update = {tunnel.part: part if part.to_wire() else None}
    return node.model_copy(update={"spec": node.spec.model_copy(update=update)})


def ensure_tunnel_addresses(
    store: Datastore,
    ipam: IPAMClient,
    node: str,
    attempts: Attempts,
    wireguard: frozenset[int] = frozenset(),
) -> tuple[Ensured, ...]:
    """Give this node the tunnel addresses it needs, and only those.

    One tunnel's trouble does not keep the others from theirs: it is told in `Ensured.error`.
    Raises `NotFound` while the node has no Node resource, `Unavailable`; on a locked datastore
    `NotReady`, with nothing changed.
    """
    tx = Transaction(store)
    require_ready(tx)
    resource = tx.value(_key(node), Node)
    if resource is None:
        raise NotFound(f"Node {node} does not exist yet: its tunnel addresses have no place")
    pools, broken = read_pools(tx)
    labels = read_node_labels(tx, node, {})
    hand = _Hand(ipam, attempts, node)
    done: list[Ensured] = []
    for tunnel in TUNNELS:
        giving = pools_for(tunnel, pools, labels, wireguard)
        held, stated = ipam.by_handle(tunnel.handle_id(node)), stated_in(resource, tunnel)
        wanted = plan(tunnel, node, giving, held, stated)
        if broken and wanted.keep is None and (held or stated):
            why = f"{broken[0]}: it may be this address's pool, which is left as it is"
            done.append(Ensured(tunnel, error=why))
            continue
        try:
            done.append(hand.carry_out(tunnel, wanted, stated))
        except Unavailable:
            raise
        except TortieError as error:
            reason = f"{first_line(error)} (pools: {described(giving)})"
            done.append(Ensured(tunnel, error=reason))
    return tuple(done)


@dataclass(frozen=True, slots=True)
class _Hand:
    """Carries plans out for one node."""

    ipam: IPAMClient
    attempts: Attempts
    node: str

    def carry_out(self, tunnel: Tunnel, wanted: Plan, stated: str) -> Ensured:
        address, changed = wanted.keep, wanted.release
        if address is None:
            if stated and (wanted.release or not wanted.pools):
                changed = self.state(tunnel, None) or changed
            if wanted.release:
                self.ipam.release(tunnel.handle_id(self.node))
            if wanted.pools:
                address = self.take(tunnel, wanted)
        if address is not None:
            changed = self.state(tunnel, address) or changed
        return Ensured(tunnel, address, changed)

    def take(self, tunnel: Tunnel, wanted: Plan) -> IPAddress:
        if wanted.prefer is not None:
            try:
                return self.assign(tunnel, AddressRequest(addresses=(wanted.prefer,), use=TUNNEL))
            except (OwnerMismatch, NoFreeAddresses, InvalidInput):
                pass  # somebody else's now, or in a block of another's: another one will do
        v4, pools = tunnel.version == 4, wanted.pools
        want = AddressRequest(ipv4=v4, ipv6=not v4, ipv4_pools=pools, ipv6_pools=pools, use=TUNNEL)
        return self.assign(tunnel, want)

    def assign(self, tunnel: Tunnel, want: AddressRequest) -> IPAddress:
        handle, owner = tunnel.handle_id(self.node), tunnel.owner(self.node)
        return self.ipam.assign(handle, owner, want)[0].address

    def state(self, tunnel: Tunnel, address: IPAddress | None) -> bool:
        """Let the Node resource say it; True when it had to be written."""

        def decide(tx: Transaction) -> bool:
            stored = tx.value(_key(self.node), Node)
            if stored is None:
                raise InvalidInput(f"Node {self.node} was deleted meanwhile")
            wanted = with_address(stored, tunnel, address)
            if wanted == stored:
                return False
            tx.put(_key(self.node), wanted)
            return True

        return self.attempts.run(f"{tunnel.type} of Node {self.node}", decide)


def _key(node: str) -> ResourceKey:
    return ResourceKey(Kind.NODE, node)


def _address(text: str) -> IPAddress | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
