"""Network namespaces in memory: the kernel and namespace ports for tests without root.

`FakeNamespaces` is the machine; `FakeKernel` is one opened namespace of it. Held to the real
adapter by the contract suite, including what the kernel does *not* do: two metrics are two routes,
indices repeat between namespaces, IPv4 routes go silently when their link goes down.

Faults: `namespaces.before` is called with the operation's name and first argument before each
change; what it raises is raised from the operation, and nothing has changed. `namespaces.changes`
lists the changes in order.
"""

from __future__ import annotations

import itertools
import queue
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from libtortie.errors import InvalidInput, KernelError, NotFound, TortieError
from libtortie.linux.port import (
    MAIN_TABLE,
    IPInterface,
    IPNetwork,
    Kernel,
    Link,
    LinkChanged,
    LinkGone,
    NetworkEvent,
    Overrun,
    Route,
    RouteAdded,
    RouteGone,
    VethPair,
)

T = TypeVar("T")
RouteKey = tuple[int, IPNetwork, int]

_PER_LINK = re.compile(r"net/(ipv4/(?:conf|neigh)|ipv6/(?:conf|neigh))/([^/]+)/(\w+)")
_GLOBAL = re.compile(r"net/(?:ipv4/(?:ip_forward|conf/\w+/\w+)|ipv6/conf/\w+/\w+|core/\w+)")


@dataclass
class Space:
    """The state of one namespace."""

    path: str
    inode: int
    links: dict[str, Link] = field(default_factory=dict)
    addresses: dict[str, list[IPInterface]] = field(default_factory=dict)
    routes: dict[RouteKey, Route] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)
    peers: dict[str, tuple[Space, int]] = field(default_factory=dict)
    watchers: list[FakeEvents] = field(default_factory=list)
    indices: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    def __post_init__(self) -> None:
        self.links["lo"] = Link(1, "lo", "00:00:00:00:00:00", 65536, up=False)

    def tell(self, event: NetworkEvent) -> None:
        """Notify everyone who watches."""
        for watcher in self.watchers:
            watcher.put(event)

    def by_index(self, ifindex: int) -> Link | None:
        """A link by index."""
        return next((link for link in self.links.values() if link.ifindex == ifindex), None)

    def change(self, link: Link) -> None:
        """Store a link's new state; a link that goes down loses its routes."""
        before = self.links.get(link.name)
        self.links[link.name] = link
        self.tell(LinkChanged(link))
        if before is not None and before.up and not link.up:
            self.drop_routes(link.name)

    def drop_routes(self, ifname: str) -> None:
        """As the kernel: IPv6 announces each, IPv4 none."""
        for key, route in list(self.routes.items()):
            if route.ifname == ifname:
                del self.routes[key]
                if route.dst.version == 6:
                    self.tell(RouteGone(route))

    def remove(self, name: str) -> None:
        """Delete one end of a link (its peer is the caller's business)."""
        link = self.links.pop(name)
        self.drop_routes(name)
        self.addresses.pop(name, None)
        self.peers.pop(name, None)
        for sysctl in [each for each in self.sysctls if f"/{name}/" in each]:
            del self.sysctls[sysctl]
        self.tell(LinkGone(name, link.ifindex))


class FakeEvents(Iterator[NetworkEvent]):
    """Events of one consumer; ends when closed."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[NetworkEvent | None] = queue.SimpleQueue()
        self._closed = False

    def put(self, event: NetworkEvent) -> None:
        """Hand over an event."""
        self._queue.put(event)

    def __next__(self) -> NetworkEvent:
        event = None if self._closed else self._queue.get()
        if event is None or self._closed:
            raise StopIteration
        return event

    def drain(self) -> list[NetworkEvent]:
        """What is there, without waiting for more."""
        found = []
        while not self._queue.empty():
            if (event := self._queue.get()) is not None:
                found.append(event)
        return found

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
        self._queue.put(None)


class FakeNamespaces:
    """The `Namespaces` port, and the maker of namespaces. `""` is the host's own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.before: Callable[[str, str], None] = lambda operation, subject: None
        self.changes: list[tuple[str, str]] = []
        self.inside: list[str] = []
        """Paths that `call` was asked to enter, in order."""
        self._inodes = itertools.count(4026531833)
        self._spaces = {"": Space("", next(self._inodes))}

    def create(self, path: str) -> str:
        """Make a namespace."""
        with self.lock:
            self._spaces.setdefault(path, Space(path, next(self._inodes)))
        return path

    def alias(self, path: str, target: str) -> str:
        """A second path to a namespace, such as /proc/PID/ns/net of a process in it."""
        with self.lock:
            self._spaces[path] = self.space(target)
        return path

    def delete(self, path: str) -> bool:
        """Remove a namespace's name; its links go, as when nothing else holds it."""
        with self.lock:
            space = self._spaces.pop(path, None)
            if space is None:
                return False
            if space not in self._spaces.values():
                for name in list(space.links):
                    if name != "lo":
                        self.remove_link(space, name)
            return True

    def space(self, path: str) -> Space:
        """The state behind a path. Raises NotFound."""
        with self.lock:
            if path not in self._spaces:
                raise NotFound(f"no network namespace at {path}")
            return self._spaces[path]

    def open(self, path: str) -> FakeKernel:
        """The kernel adapter of a namespace."""
        return FakeKernel(self, path)

    def call(self, path: str, work: Callable[[], T]) -> T:
        """Run `work`, once the namespace is known to exist."""
        self.space(path)
        self.inside.append(path)
        return work()

    def inode(self, path: str) -> int | None:
        """Identity of a namespace; None when the path is none."""
        try:
            return self.space(path).inode
        except NotFound:
            return None

    def change(self, operation: str, subject: str) -> None:
        """Announce a change: the fault hook, then the record."""
        self.before(operation, subject)
        self.changes.append((operation, subject))

    def remove_link(self, space: Space, name: str) -> None:
        """Delete a link and, of a veth, the other end."""
        peer = space.peers.get(name)
        space.remove(name)
        if peer is not None:
            other, ifindex = peer
            far = other.by_index(ifindex)
            if far is not None:
                other.remove(far.name)


class FakeKernel:
    """The `Kernel` port over one namespace of a `FakeNamespaces` (a machine of its own if none)."""

    def __init__(self, namespaces: FakeNamespaces | None = None, path: str = "") -> None:
        self.namespaces = namespaces or FakeNamespaces()
        self.space = self.namespaces.space(path)
        self._events: list[FakeEvents] = []
        self._closed = False

    def add_link(self, name: str, kind: str = "bridge", *, mac: str = "", up: bool = True) -> Link:
        """A link that is no veth: what tests need and the port can't make."""
        with self._open():
            ifindex = next(self.space.indices)
            link = Link(ifindex, name, mac or _made_up_mac(ifindex), 1500, up, kind)
            self.space.change(link)
            return link

    def links(self) -> tuple[Link, ...]:
        """All links."""
        with self._open():
            return tuple(self.space.links.values())

    def link(self, name: str) -> Link | None:
        """One link by name."""
        with self._open():
            return self.space.links.get(name)

    def ensure_veth(self, pair: VethPair, inside: Kernel | None = None) -> tuple[Link, Link]:
        """Create the pair or find it in place."""
        with self._open():
            pod = self.namespaces.space(pair.pod_netns)
            if pod is self.space:
                raise KernelError(f"{pair.pod_netns} is the host's own namespace")
            self.namespaces.change("ensure_veth", pair.host_name)
            self._clear_host_name(pod, pair)
            if pair.host_name not in self.space.links:
                self._create(pod, pair)
            ends = self.space.links[pair.host_name], pod.links[pair.pod_name]
            _correct(self.space, ends[0], pair.mtu, pair.host_mac, pair.alias)
            _correct(pod, ends[1], pair.mtu, pair.pod_mac)
            return self.space.links[pair.host_name], pod.links[pair.pod_name]

    def delete_link(self, name: str) -> bool:
        """Delete a link; False when there was none."""
        with self._open():
            link = self.space.links.get(name)
            self.namespaces.change("delete_link", name)
            if link is None:
                return False
            if name == "lo":
                raise KernelError("delete link lo: Operation not supported")
            self.namespaces.remove_link(self.space, name)
            return True

    def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        mtu: int | None = None,
        mac: str | None = None,
        master: str | None = None,
    ) -> None:
        """Change attributes of a link."""
        with self._open():
            bridge = self._must(master).ifindex if master else 0
            link = self._must(name)
            self.namespaces.change("set_link", name)
            changed = replace(
                link,
                up=link.up if up is None else up,
                mtu=link.mtu if mtu is None else mtu,
                mac=link.mac if mac is None else mac.lower(),
                master=link.master if master is None else bridge,
            )
            self.space.change(changed)

    def addresses(self, ifname: str) -> tuple[IPInterface, ...]:
        """Addresses of a link."""
        with self._open():
            self._must(ifname)
            return tuple(self.space.addresses.get(ifname, ()))

    def ensure_address(self, ifname: str, address: IPInterface) -> None:
        """Give a link an address."""
        with self._open():
            self._must(ifname)
            self.namespaces.change("ensure_address", f"{ifname} {address}")
            held = self.space.addresses.setdefault(ifname, [])
            if address not in held:
                held.append(address)

    def delete_address(self, ifname: str, address: IPInterface) -> bool:
        """Take an address from a link."""
        with self._open():
            held = self.space.addresses.get(ifname, [])
            if address not in held:
                return False
            self.namespaces.change("delete_address", f"{ifname} {address}")
            held.remove(address)
            return True

    def routes(
        self,
        *,
        table: int = MAIN_TABLE,
        version: int = 4,
        dst: IPNetwork | None = None,
        ifname: str = "",
    ) -> tuple[Route, ...]:
        """Routes of a table and family."""
        with self._open():
            family = version if dst is None else dst.version
            return tuple(
                route
                for route in self.space.routes.values()
                if route.table == table
                and route.dst.version == family
                and dst in (None, route.dst)
                and ifname in ("", route.ifname)
            )

    def ensure_route(self, route: Route) -> None:
        """Add a route, or replace the one with its key."""
        with self._open():
            if route.ifname and not self._must(route.ifname).up:
                raise KernelError(f"add route {route.dst}: Network is down")
            self.namespaces.change("ensure_route", f"{route.dst} metric {route.priority}")
            stored = _as_stored(route)
            self.space.routes[_key(stored)] = stored
            self.space.tell(RouteAdded(stored))

    def ensure_routes(self, routes: Sequence[Route]) -> tuple[TortieError | None, ...]:
        """Add or replace routes; what is wrong with each."""
        return tuple(map(self._refusal, routes))

    def _refusal(self, route: Route) -> TortieError | None:
        try:
            self.ensure_route(route)
        except (KernelError, NotFound) as error:
            return error
        return None

    def delete_route(self, route: Route) -> bool:
        """Delete the route with this key; with an ifname only if it points there."""
        with self._open():
            self.namespaces.change("delete_route", f"{route.dst} metric {route.priority}")
            key = _key(_as_stored(route))
            held = self.space.routes.get(key)
            if held is None or route.ifname not in ("", held.ifname):
                return False
            del self.space.routes[key]
            self.space.tell(RouteGone(held))
            return True

    def read_sysctl(self, name: str) -> str:
        """A value under /proc/sys by path."""
        with self._open():
            self._check_sysctl(name)
            return self.space.sysctls.get(name, "0")

    def visit(self, work: Callable[[], T]) -> T:
        """Do something; visits cost nothing here."""
        with self._open():
            return work()

    def write_sysctl(self, name: str, value: str) -> None:
        """Set a value under /proc/sys; no change recorded when it has that value already."""
        with self._open():
            if self.read_sysctl(name).split() == value.split():
                return
            if not re.fullmatch(r"-?\d+(\s+-?\d+)*", value.strip()):
                raise KernelError(f"cannot write {value!r} to sysctl {name}: Invalid argument")
            self.namespaces.change("write_sysctl", f"{name} {value}")
            self.space.sysctls[name] = value.strip()

    def events(self) -> FakeEvents:
        """Link and route changes from this call on."""
        with self._open():
            events = FakeEvents()
            self._events.append(events)
            self.space.watchers.append(events)
            return events

    def overrun(self) -> None:
        """Tell the watchers of this namespace that notifications were lost."""
        self.space.tell(Overrun())

    def close(self) -> None:
        """End `events`; other openings of the namespace go on."""
        with self.namespaces.lock:
            self._closed = True
            for events in self._events:
                self.space.watchers.remove(events)
                events.close()
            self._events.clear()

    def _open(self) -> threading.RLock:
        if self._closed:
            raise KernelError("the kernel adapter is closed")
        return self.namespaces.lock

    def _must(self, name: str) -> Link:
        link = self.space.links.get(name)
        if link is None:
            raise NotFound(f"no link {name}")
        return link

    def _clear_host_name(self, pod: Space, pair: VethPair) -> None:
        link = self.space.links.get(pair.host_name)
        if link is None:
            return
        if link.kind != "veth":
            raise KernelError(f"link {pair.host_name} exists and is a {link.kind} link")
        other, ifindex = self.space.peers[pair.host_name]
        if other is not pod:
            self.namespaces.remove_link(self.space, pair.host_name)
            return
        far = pod.links.get(pair.pod_name)
        if far is None or far.ifindex != ifindex:
            raise KernelError(f"link {pair.host_name} leads to a link other than {pair.pod_name}")

    def _create(self, pod: Space, pair: VethPair) -> None:
        if pair.pod_name in pod.links:
            raise KernelError(f"{pair.pod_netns} has a link named {pair.pod_name} already")
        for name in (pair.host_name, pair.pod_name):
            if not 0 < len(name.encode()) <= 15:
                raise InvalidInput(f"{name!r} is no link name")
        far_index, near_index = next(pod.indices), next(self.space.indices)
        near_mac = pair.host_mac.lower() or _made_up_mac(near_index)
        far_mac = pair.pod_mac.lower() or _made_up_mac(far_index)
        near = Link(near_index, pair.host_name, near_mac, pair.mtu, True, "veth", 0, far_index)
        far = Link(far_index, pair.pod_name, far_mac, pair.mtu, True, "veth", 0, near_index)
        self.space.peers[near.name] = (pod, far_index)
        pod.peers[far.name] = (self.space, near_index)
        pod.change(far)
        self.space.change(near)

    def _check_sysctl(self, name: str) -> None:
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise InvalidInput(f"{name!r} is no sysctl path")
        per_link = _PER_LINK.fullmatch(name)
        if per_link is not None:
            if per_link[2] in ("all", "default") or per_link[2] in self.space.links:
                return
        elif _GLOBAL.fullmatch(name):
            return
        raise NotFound(f"no sysctl {name} in this namespace")


def _correct(space: Space, link: Link, mtu: int, mac: str, alias: str = "") -> None:
    wanted = replace(
        link,
        mtu=mtu or link.mtu,
        mac=mac.lower() or link.mac,
        up=True,
        alias=alias or link.alias,
    )
    if wanted != link:
        space.change(wanted)


def _as_stored(route: Route) -> Route:
    """IPv6 has no metric 0 and no link scope."""
    if route.dst.version == 4:
        return route
    return replace(route, priority=route.priority or 1024, link_scope=False)


def _key(route: Route) -> RouteKey:
    return route.table, route.dst, route.priority


def _made_up_mac(ifindex: int) -> str:
    return f"06:00:00:00:{ifindex >> 8 & 255:02x}:{ifindex & 255:02x}"


def _conforms(kernel: FakeKernel) -> Kernel:
    return kernel
