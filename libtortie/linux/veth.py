"""A pod's veth: both ends made by one request, each where it belongs.

Never touches a link that is not provably the pair's: the host end's peer is known by namespace
*and* index, because indices repeat between namespaces.
"""

from __future__ import annotations

from libtortie.errors import KernelError, NotFound
from libtortie.linux import wire
from libtortie.linux.port import Link, VethPair
from libtortie.linux.space import Space
from libtortie.linux.wire import LinkAnswer

_ATTEMPTS = 4
"""Rounds against links that come and go between reading and writing."""


def ensure_veth(host: Space, pod: Space, pair: VethPair) -> tuple[Link, Link]:
    """Create the pair, or bring exactly this pair to what is asked; (host, pod) ends.

    Raises KernelError when a name is taken by something that is not ours to remove.
    """
    if host.inode == pod.inode:
        raise KernelError(f"{pair.pod_netns} is the host's own namespace: no veth leads there")
    for _ in range(_ATTEMPTS):
        try:
            ends = _ensure_once(host, pod, pair)
        except NotFound:
            continue
        if ends is not None:
            return ends
    raise KernelError(f"veth {pair.host_name}: its links keep appearing and vanishing")


def _ensure_once(host: Space, pod: Space, pair: VethPair) -> tuple[Link, Link] | None:
    """One round; None when another one changed the links in between."""
    if not _create(host, pod, pair):
        near = host.find(pair.host_name)
        if near is None:
            return None
        far = _far_end(host, pod, pair, near)
        if far is not None:
            _correct(host, near.link, pair.mtu, pair.host_mac, pair.alias)
            _correct(pod, far, pair.mtu, pair.pod_mac)
            return _read(host, pod, pair)
        host.delete_link(pair.host_name)
        return None
    if pair.alias:  # the kernel takes no alias in the request that makes a link
        host.change_link(pair.host_name, alias=pair.alias)
    pod.change_link(pair.pod_name, up=True)
    return _read(host, pod, pair)


def _far_end(host: Space, pod: Space, pair: VethPair, near: LinkAnswer) -> Link | None:
    """The pod end of the pair in place; None when the host end is a left-over to delete.

    Raises KernelError when it is neither.
    """
    if near.link.kind != "veth":
        kind = near.link.kind or "physical"
        raise KernelError(f"link {pair.host_name} in {host.name} exists and is a {kind} link")
    if near.peer_nsid is None or near.peer_nsid != host.nsid_of(pod):
        return None
    far = pod.find(pair.pod_name)
    if far is None or far.link.ifindex != near.link.peer_ifindex:
        if host.find(pair.host_name) != near:
            raise NotFound(f"link {pair.host_name} changed while it was looked at")
        raise KernelError(
            f"link {pair.host_name} leads into {pair.pod_netns} already, "
            f"but not to a link named {pair.pod_name}"
        )
    return far.link


def _read(host: Space, pod: Space, pair: VethPair) -> tuple[Link, Link] | None:
    near, far = host.find(pair.host_name), pod.find(pair.pod_name)
    if near is None or far is None or near.link.peer_ifindex != far.link.ifindex:
        return None
    return near.link, far.link


def _create(host: Space, pod: Space, pair: VethPair) -> bool:
    near = wire.VethEnd(pair.host_name, pair.host_mac)
    far = wire.VethEnd(pair.pod_name, pair.pod_mac, pod.namespace.fileno())
    body = wire.veth_creation(near, far, mtu=pair.mtu, queues=pair.queues)
    if host.create_link(pair.host_name, body):
        return True
    # Ends of a pair come and go together, so the pod's is another's only if the host's was missing
    # before and after it was seen.
    free, taken = host.find(pair.host_name) is None, pod.find(pair.pod_name) is not None
    if free and taken and host.find(pair.host_name) is None:
        raise KernelError(f"{pair.pod_netns} has a link named {pair.pod_name} already")
    return False


def _correct(space: Space, link: Link, mtu: int, mac: str, alias: str = "") -> None:
    new_mtu = mtu if mtu and link.mtu != mtu else None
    new_mac = mac if mac and link.mac != mac.lower() else None
    new_up = None if link.up else True
    new_alias = alias if alias and link.alias != alias else None
    changes = {"mtu": new_mtu, "mac": new_mac, "up": new_up, "alias": new_alias}
    if any(value is not None for value in changes.values()):
        space.change_link(link.name, **changes)
