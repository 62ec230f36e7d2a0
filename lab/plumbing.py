"""Inside a launcher pod and behind it: KubeVirt's bridge binding, and the guest's cables.

In the pod, as virt-handler leaves it: `eth0` renamed `eth0-nic` and enslaved to the bridge
`k6t-eth0`, `tap0` beside it, and a link named `eth0` that is down and only carries the pod's MAC,
MTU and addresses (a dummy there; this kernel may have none, so a bridge device here). The guest's
MAC is the pod's.

Behind it, instead of QEMU: a namespace with a small bridge `hv`, on it the guest's own cable and
one cable per launcher pod, whose far end is the pod's `tap0`. Exactly one pod's cable forwards.
Cutting over is two netlink requests on ports that are already there (12 µs each). Moving a veth
between namespaces instead takes 15 to 24 ms, and a port whose carrier changes is enabled by a work
queue some time later; either would be a blackout that nobody chose. And the guest's `eth0` never
changes its identity. As with a real tap that QEMU has opened,
`tap0` has carrier before the guest runs. The switch must not learn: with learning on, it would
send the guest's frames to the gateway's old port after the cut-over.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.rtnl import BridgePorts, PortState
from lab.tools import LabError, ip_batch, run, set_sysctls
from libtortie.linux.netns import Netns

POD_BRIDGE = "k6t-eth0"
GATEWAY, GATEWAY6 = "169.254.1.1", "fe80::ecee:eeff:feee:eeee"
"""A pod's next hops: IPv6's is the link-local address of the node's end."""
SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class PodInterface:
    """A pod's `eth0` as the CNI plugin made it; addresses as `a.b.c.d/len`."""

    mac: str
    mtu: int
    addresses: tuple[str, ...]


def read_interface(link: dict[str, Any]) -> PodInterface:
    """The interface that one object of `ip -j addr show` describes."""
    addresses = tuple(
        f"{info['local']}/{info['prefixlen']}"
        for info in link.get("addr_info", ())
        if info.get("scope") == "global"
    )
    return PodInterface(link["address"], link["mtu"], addresses)


def plan_bridge_binding(eth0: PodInterface, pod_uid: str) -> tuple[str, ...]:
    """`ip` commands, inside the pod, that turn a CNI-made pod into a bridge-bound launcher."""
    digest = hashlib.sha256(pod_uid.encode()).hexdigest()
    bridge_mac = ":".join(["0a", *(digest[i : i + 2] for i in range(0, 10, 2))])
    low = int(digest[10:12], 16) % 100
    return (
        f"link add {POD_BRIDGE} address {bridge_mac} mtu {eth0.mtu} type bridge"
        " stp_state 0 mcast_snooping 0",
        f"addr add 169.254.75.1{low:02d}/32 dev {POD_BRIDGE}",
        "link set eth0 down",
        "link set eth0 name eth0-nic",
        "addr flush dev eth0-nic",
        f"link set eth0-nic address {bridge_mac}",
        f"link set eth0-nic master {POD_BRIDGE}",
        "link set eth0-nic type bridge_slave learning off",
        "link set eth0-nic up",
        f"link set {POD_BRIDGE} up",
        f"link add eth0 address {eth0.mac} mtu {eth0.mtu} type bridge",
        *(f"addr add {address} dev eth0" for address in eth0.addresses),
    )


def bind_pod(netns: str, pod_uid: str) -> PodInterface:
    """Do the bridge binding in a pod; returns what its eth0 was. Repeating it changes nothing."""
    links = {link["ifname"]: link for link in json.loads(run(["ip", "-n", netns, "-j", "addr"]))}
    if "eth0" not in links:
        raise LabError(f"{netns}: no eth0, the CNI plugin left none")
    eth0 = read_interface(links["eth0"])
    if POD_BRIDGE not in links:
        if not eth0.addresses:
            raise LabError(f"{netns}: eth0 has no address")
        set_sysctls(netns, {"net.ipv4.conf.all.arp_ignore": "1"})
        ip_batch(netns, plan_bridge_binding(eth0, pod_uid))
    return eth0


def make_guest(hypervisor: str, guest: str, eth0: PodInterface) -> None:
    """The guest's namespace (MAC, addresses, gateway of the pod) and its switch, unplugged."""
    for name in (hypervisor, guest):
        run(["ip", "netns", "add", name])
    set_sysctls(hypervisor, {"net.ipv6.conf.all.disable_ipv6": "1"})
    set_sysctls(hypervisor, {"net.ipv6.conf.default.disable_ipv6": "1"})
    set_sysctls(guest, GUEST_SETTINGS)
    ip_batch(
        hypervisor,
        (
            "link set lo up",
            "link add hv type bridge stp_state 0 mcast_snooping 0",
            "link set hv up",
            f"link add guest type veth peer name eth0 address {eth0.mac} netns {guest}",
            f"link set guest mtu {eth0.mtu} master hv up",
            "link set guest type bridge_slave learning off",
        ),
    )
    ip_batch(guest, plan_guest(eth0))


GUEST_SETTINGS = {
    f"net.ipv6.conf.{where}.{key}": "0"
    for where in ("all", "default")
    for key in ("accept_dad", "accept_ra", "router_solicitations")
}
"""The guest's by right, its address is to answer at once; and nobody advertises routers here."""


def plan_guest(eth0: PodInterface) -> tuple[str, ...]:
    """`ip` commands, inside the guest, that give it the pod's addresses and gateways."""
    lines = ["link set lo up", f"link set eth0 mtu {eth0.mtu} up"]
    lines += [f"addr add {address} dev eth0" for address in eth0.addresses]
    families = {6 if ":" in address else 4 for address in eth0.addresses}
    if 4 in families:
        lines.append(f"route add {GATEWAY} dev eth0 scope link")
        lines.append(f"route add default via {GATEWAY} dev eth0")
    if 6 in families:
        lines.append(f"route add ::/0 via {GATEWAY6} dev eth0")
    return tuple(lines)


def lay_cable(hypervisor: str, cable: str, pod: str, mtu: int) -> None:
    """A cable from the guest's switch to a pod's `tap0`, plugged in but not forwarding.

    One that is there already is laid anew: whoever laid it may have been stopped half-way.

    Bringing a port's carrier up makes the kernel enable it, so the port is disabled after that
    has happened and only then is `tap0` joined to the pod's bridge: no frame of the guest can
    slip through in between and pass for a sign of life.
    """
    if _has_link(hypervisor, cable):
        ip_batch(hypervisor, (f"link del {cable}",))
    ip_batch(
        hypervisor,
        (
            f"link add {cable} mtu {mtu} type veth peer name tap0 netns {pod}",
            f"link set {cable} master hv up",
            f"link set {cable} type bridge_slave learning off",
        ),
    )
    ip_batch(pod, (f"link set tap0 mtu {mtu} up",))
    _until(lambda: _link(hypervisor, cable).get("operstate") == "UP", f"{cable} has no carrier")
    set_port(hypervisor, cable, PortState.DISABLED)
    _until(lambda: _port_state(hypervisor, cable) == "disabled", f"{cable} stays enabled")
    ip_batch(pod, (f"link set tap0 master {POD_BRIDGE}",))


def add_tap(pod: str, ifname: str, mtu: int) -> None:
    """A tap device on the pod's bridge, for QEMU to open; repeating it changes nothing.

    Unlike a cable it has no carrier, and lets nothing through, before QEMU has opened it.
    """
    if not _has_link(pod, ifname):
        ip_batch(pod, (f"tuntap add dev {ifname} mode tap",))
    set_sysctls(pod, {f"net.ipv6.conf.{ifname}.disable_ipv6": "1"})
    ip_batch(pod, (f"link set {ifname} mtu {mtu} master {POD_BRIDGE} up",))


def set_port(hypervisor: str, cable: str, state: PortState) -> None:
    """Let a cable forward, or not."""

    def work() -> None:
        ports = BridgePorts()
        try:
            ports.set(cable, state)
        finally:
            ports.close()

    Netns().call(f"/run/netns/{hypervisor}", work)


def forwarding_cables(hypervisor: str) -> frozenset[str]:
    """The pods' cables that forward: at most one, and that is where the guest is."""
    links = json.loads(run(["ip", "-n", hypervisor, "-j", "-d", "link"]))
    return frozenset(
        link["ifname"]
        for link in links
        if link.get("master") == "hv"
        and link["ifname"] != "guest"
        and link.get("linkinfo", {}).get("info_slave_data", {}).get("state") == "forwarding"
    )


def _has_link(netns: str, ifname: str) -> bool:
    links = json.loads(run(["ip", "-n", netns, "-j", "link"]))
    return any(link["ifname"] == ifname for link in links)


def _link(netns: str, ifname: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(
        run(["ip", "-n", netns, "-j", "-d", "link", "show", ifname])
    )
    return found[0]


def _port_state(netns: str, ifname: str) -> str:
    slave = _link(netns, ifname).get("linkinfo", {}).get("info_slave_data", {})
    return str(slave.get("state", ""))


def _until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{complaint} after {SETTLE_S:g} s")
        time.sleep(0.005)
