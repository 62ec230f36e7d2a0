"""The text of BIRD's configuration, of values that were checked here. Pure.

Text is root's to run, and values come from whoever may write a resource: nothing gets into it that
is not a number, an address, a name of a known form, or a password without quotes and line ends.
Equal values give equal text whatever their order, so that what did not change touches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address

from felix_shim.bgp_model import AS_MAX, BirdInput, Peer
from felix_shim.bird_filters import families, render_filters
from felix_shim.bird_sessions import render_head, render_session, render_tables
from libtortie.errors import InvalidInput
from libtortie.model.bgp_spec import INTERFACE, PASSWORD_MAX

_FILTER_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_QUOTABLE = re.compile(r'[^"\x00-\x1f\x7f]*')


def render_bird(config: BirdInput) -> str:
    """The configuration. Raises `InvalidInput` for a value BIRD must not be given."""
    for problem in _problems(config):
        raise InvalidInput(problem)
    parts = [render_head(config)]
    by_version = {family.version: family for family in families(config)}
    for family in by_version.values():
        parts += [render_filters(family), render_tables(family)]
    for peer in sorted(set(config.peers), key=lambda one: (one.address.version, one.protocol)):
        parts.append(render_session(peer, by_version[peer.address.version]))
    return "\n".join(parts)


def problem_of(password: str) -> str:
    """Why BIRD cannot be given a password; empty if it can."""
    if not _QUOTABLE.fullmatch(password):
        return "has a quotation mark or a control character"
    if not 1 <= len(password.encode()) <= PASSWORD_MAX:
        return f"is not 1 to {PASSWORD_MAX} bytes long"
    return ""


def _problems(config: BirdInput) -> Iterator[str]:
    if not families(config):
        yield "a node needs an address to speak BGP"
    yield from _bad_numbers(config)
    yield from _bad_words(config)
    names = set()
    for peer in set(config.peers):
        yield from _problems_of_peer(peer, config)
        if peer.protocol in names:
            yield f"BGP peer {peer.address} is configured twice"
        names.add(peer.protocol)


def _bad_numbers(config: BirdInput) -> Iterator[str]:
    numbers = [config.as_number, *(peer.as_number for peer in config.peers)]
    numbers += [peer.local_as for peer in config.peers if peer.local_as]
    for number in numbers:
        if not 1 <= number <= AS_MAX:
            yield f"AS number {number} is outside 1..{AS_MAX}"
    for port in (config.listen_port, *(peer.port for peer in config.peers)):
        if not 1 <= port <= 65535:
            yield f"BGP port {port} is outside 1..65535"


def _bad_words(config: BirdInput) -> Iterator[str]:
    for name in (*config.uplinks, *config.ignored):
        if not INTERFACE.fullmatch(name):
            yield f"uplink {name!r} is no interface name"
    if not _QUOTABLE.fullmatch(config.log_file):
        yield f"log file {config.log_file!r} cannot be written into BIRD's syntax"
    for found in config.filters:
        if not _FILTER_NAME.fullmatch(found.name):
            yield f"BGPFilter {found.name!r} has no name of a resource"
    if config.cluster_id and not _is_ipv4(config.cluster_id):
        yield f"route reflector cluster id {config.cluster_id!r} is not like 1.0.0.1"


def _problems_of_peer(peer: Peer, config: BirdInput) -> Iterator[str]:
    own = config.own(peer.address.version)
    if own is None:
        yield f"BGP peer {peer.address} needs an IPv{peer.address.version} address of this node"
    elif own.ip == peer.address:
        yield f"BGP peer {peer.address} is this node itself"
    if peer.password and (why := problem_of(peer.password)):
        yield f"the password of BGP peer {peer.address} {why}"
    if peer.reflect and not config.cluster_id:
        yield f"BGP peer {peer.address} is reflected to, and this node has no cluster id"
    if bool(peer.interface) != (peer.source is not None):
        yield f"BGP peer {peer.address} has a link without an address of ours, or the reverse"
    elif peer.source is not None and peer.source.version != peer.address.version:
        yield f"BGP peer {peer.address} is not of the family of our address {peer.source}"
    if peer.reachable_by is not None and peer.reachable_by.version != peer.address.version:
        yield f"BGP peer {peer.address} is not of the family of its gateway {peer.reachable_by}"


def _is_ipv4(text: str) -> bool:
    try:
        return str(IPv4Address(text)) == text
    except ValueError:
        return False
