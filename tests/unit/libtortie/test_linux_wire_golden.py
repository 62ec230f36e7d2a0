"""What is packed by hand is byte for byte what pyroute2's classes would send."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from pyroute2.netlink import rtnl  # noqa: TID251  # what ours is compared with
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg  # noqa: TID251  # what ours is compared with
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg  # noqa: TID251  # what ours is compared with
from pyroute2.netlink.rtnl.nsidmsg import nsidmsg  # noqa: TID251  # what ours is compared with
from pyroute2.netlink.rtnl.rtmsg import rtmsg  # noqa: TID251  # what ours is compared with

from libtortie.linux import routes, rtnetlink, wire
from libtortie.linux.port import Route, RouteProto, RouteType
from libtortie.linux.wire import IFF_UP, VethEnd, encode

UP = {"flags": IFF_UP, "change": IFF_UP}
MAC = "02:00:5e:10:00:01"


def veth_end(name: str, *more: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [("IFLA_IFNAME", name), ("IFLA_MTU", 1450), *more]


def veth(queues: int) -> bytes:
    several = [("IFLA_NUM_TX_QUEUES", queues), ("IFLA_NUM_RX_QUEUES", queues)]
    more = several if queues > 1 else []
    peer = {"attrs": veth_end("eth0", *more, ("IFLA_NET_NS_FD", 9))}
    data = {"attrs": [("VETH_INFO_PEER", peer)]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    near = veth_end("cali1", ("IFLA_ADDRESS", MAC), *more)
    return encode(ifinfmsg, UP, [*near, ("IFLA_LINKINFO", info)])


PAIRS: dict[str, tuple[bytes, bytes]] = {
    "veth": (
        wire.veth_creation(VethEnd("cali1", MAC), VethEnd("eth0", "", 9), mtu=1450, queues=1),
        veth(1),
    ),
    "veth with queues": (
        wire.veth_creation(VethEnd("cali1", MAC), VethEnd("eth0", "", 9), mtu=1450, queues=4),
        veth(4),
    ),
    "bridge": (
        wire.bridge_creation("br0", MAC, True),
        encode(
            ifinfmsg,
            UP,
            [
                ("IFLA_IFNAME", "br0"),
                ("IFLA_ADDRESS", MAC),
                ("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "bridge")]}),
            ],
        ),
    ),
    "link up": (wire.link_change(7, up=True), encode(ifinfmsg, {"index": 7, **UP}, [])),
    "link down": (
        wire.link_change(7, up=False),
        encode(ifinfmsg, {"index": 7, "flags": 0, "change": IFF_UP}, []),
    ),
    "link": (
        wire.link_change(7, mtu=1400, master=0, netns_fd=3, name="a", alias="tortie:x", mac=MAC),
        encode(
            ifinfmsg,
            {"index": 7},
            [
                ("IFLA_MTU", 1400),
                ("IFLA_MASTER", 0),
                ("IFLA_NET_NS_FD", 3),
                ("IFLA_IFNAME", "a"),
                ("IFLA_IFALIAS", "tortie:x"),
                ("IFLA_ADDRESS", MAC),
            ],
        ),
    ),
    "no link": (wire.link_deletion(7), encode(ifinfmsg, {"index": 7}, [])),
    "nsid": (wire.nsid_query(5), encode(nsidmsg, {}, [("NETNSA_FD", 5)])),
    "addresses": (wire.address_query(3), encode(ifaddrmsg, {"family": 0, "index": 3}, [])),
}


@pytest.mark.parametrize("name", PAIRS)
def test_links_and_questions(name: str) -> None:
    ours, theirs = PAIRS[name]
    assert ours == theirs


@pytest.mark.parametrize("text", ["10.0.0.1/32", "10.0.0.1/24", "fd00::1/128", "fe80::1/64"])
def test_addresses(text: str) -> None:
    address = ip_interface(text)
    fields = {
        "family": wire.family_of(address.version),
        "prefixlen": address.network.prefixlen,
        "flags": 2 if address.version == 6 else 0,
        "index": 3,
    }
    value = str(address.ip)
    theirs = encode(ifaddrmsg, fields, [("IFA_LOCAL", value), ("IFA_ADDRESS", value)])
    assert wire.address_change(3, address) == theirs


ROUTES = (
    Route(ip_network("10.65.0.1/32"), 1024, "cali1", link_scope=True),
    Route(ip_network("0.0.0.0/0"), 0, "eth0", gateway=ip_address("169.254.1.1")),
    Route(ip_network("::/0"), 1024, "eth0", gateway=ip_address("fe80::1"), table=100),
    Route(ip_network("10.0.0.0/8"), 77, "", type=RouteType.BLACKHOLE, table=1000),
    Route(
        ip_network("10.1.0.0/26"),
        768,
        "up0",
        gateway=ip_address("fe80::7"),
        proto=RouteProto.KERNEL,
        onlink=True,
    ),
)


def fields_of(route: Route, **more: int) -> dict[str, int]:
    table = 252 if route.table > 255 else route.table
    family = wire.family_of(route.dst.version)
    return {"family": family, "dst_len": route.dst.prefixlen, "table": table, **more}


def attributes_of(route: Route, ifindex: int) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = [("RTA_TABLE", route.table)]
    if route.dst.prefixlen:
        out.append(("RTA_DST", str(route.dst.network_address)))
    if ifindex:
        out.append(("RTA_OIF", ifindex))
    if priority := routes.effective_priority(route):
        out.append(("RTA_PRIORITY", priority))
    return out


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.dst))
def test_routes(route: Route) -> None:
    ifindex = 4 if route.ifname else 0
    scope = 253 if route.link_scope else 0
    kind = {RouteType.UNICAST: 1, RouteType.BLACKHOLE: 6}[route.type]
    flags = 4 if route.onlink else 0
    attrs = attributes_of(route, ifindex)
    gateway = route.gateway
    if gateway is not None and gateway.version == route.dst.version:
        attrs.append(("RTA_GATEWAY", str(gateway)))
    elif gateway is not None:
        via = {"family": wire.family_of(gateway.version), "addr": str(gateway)}
        attrs.append(("RTA_VIA", via))
    fields = fields_of(route, proto=int(route.proto), scope=scope, type=kind, flags=flags)
    assert routes.route_addition(route, ifindex) == encode(rtmsg, fields, attrs)
    gone = encode(rtmsg, fields_of(route, scope=255), attributes_of(route, ifindex))
    assert routes.route_deletion(route, ifindex) == gone


@pytest.mark.parametrize(("table", "ifindex"), [(254, 0), (254, 7), (1000, 0)])
@pytest.mark.parametrize("version", [4, 6])
def test_route_queries(version: int, table: int, ifindex: int) -> None:
    attrs: list[tuple[str, Any]] = [("RTA_TABLE", table)]
    if ifindex:
        attrs.append(("RTA_OIF", ifindex))
    fields = {"family": wire.family_of(version), "table": 252 if table > 255 else table}
    assert routes.route_query(version, table, ifindex=ifindex) == encode(rtmsg, fields, attrs)


def test_numbers() -> None:
    ours = {name: value for name, value in vars(rtnetlink).items() if name.startswith("RTM_")}
    assert len(ours) > 10
    assert ours == {name: getattr(rtnl, name) for name in ours}


def test_add_without_the_agent_does_not_pay_for_importing_pyroute2() -> None:
    code = (
        "import sys, cni_plugin.wiring, libtortie.linux.netlink; print('pyroute2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
