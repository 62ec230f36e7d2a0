"""`tortiectl bgp canary`."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from ipaddress import ip_network

import click

from ipam.client import IPAMClient
from ipam.request import AddressRequest
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput, NotFound
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import plain_address
from tortiectl.canary import CanaryError, Means, Perch, prove
from tortiectl.commands.bgp_tor_config import read_stored
from tortiectl.connection import connect
from tortiectl.options import Finite, config_option, not_empty
from tortiectl.tor_config import Stored

HANDLE = "tortie-bgp-canary"
LOOK_SECONDS = 15.0


@click.command(name="canary")
@click.argument("node", callback=not_empty)
@config_option
@click.option(
    "--against",
    default="",
    metavar="NODE",
    callback=not_empty,
    help="The other node.  [default: the first by name]",
)
@click.option(
    "--tor-command",
    required=True,
    metavar="COMMAND",
    callback=not_empty,
    help="Prints the ToR's route in use to {prefix}, and no other; run without a shell. "
    "{address} is the same without its length.",
)
@click.option(
    "--address",
    default="",
    metavar="ADDRESS",
    callback=not_empty,
    help="What to announce, that nobody uses.  [default: a free one of a pool]",
)
@click.option("--ipv6", is_flag=True, help="Prove it for IPv6.")
@click.option("--timeout", type=Finite(1, 240), default=60.0, show_default=True, help="Seconds.")
@click.pass_context
def canary(
    ctx: click.Context,
    *,
    node: str,
    config: str,
    against: str,
    tor_command: str,
    address: str,
    ipv6: bool,
    timeout: float,
) -> None:
    """Prove that the ToR prefers a raised host route, with a test address.

    NODE and another one announce it, one normal, one raised, and then the other way round. The
    ToR's choice is read with a command of yours, for example
    --tor-command 'ssh tor show ip route {prefix}'. Nothing is left behind.
    """
    command = _command(tor_command)
    store = connect(ctx, config).store
    stored = read_stored(store)
    version = 6 if ipv6 else 4
    nodes = (_perch(stored, against or _other(stored, node, version), version),
             _perch(stored, node, version))  # fmt: skip
    if nodes[0] == nodes[1]:
        raise InvalidInput(f"--against {against}: want another node than {node}")
    normal, raised = _metrics(stored, version)
    with _borrowed(store, node, address, version) as chosen:
        means = Means(
            store,
            lambda: _look(command, chosen),
            click.echo,
            lambda: datetime.now(UTC),
            time.monotonic,
            time.sleep,
            timeout,
        )
        prove(means, chosen, nodes, (normal, raised))


def _command(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"--tor-command: {error}") from error
    if not any(mark in word for mark in ("{prefix}", "{address}") for word in words):
        raise InvalidInput("--tor-command: {prefix} or {address} must be in it")
    return words


def _look(command: list[str], address: IPAddress) -> str:
    """What the router says; a command that fails has failed the proof."""
    prefix = str(ip_network(address))
    words = [
        word.replace("{prefix}", prefix).replace("{address}", str(address)) for word in command
    ]
    try:
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, timeout=LOOK_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CanaryError(f"--tor-command: {error}") from error
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise CanaryError(f"--tor-command: status {done.returncode}: {reason[0]}")
    return done.stdout


def _metrics(stored: Stored, version: int) -> tuple[int, int]:
    """(normal, raised), as FelixConfiguration has them."""
    spec = stored.felix.spec
    normal = spec.ipv4_normal_route_priority if version == 4 else spec.ipv6_normal_route_priority
    return normal or 1024, stored.elevated(version)


def _perch(stored: Stored, name: str, version: int) -> Perch:
    if name not in stored.nodes:
        raise NotFound(f"Node {name}: no such node; there are {', '.join(sorted(stored.nodes))}")
    for address in stored.addresses(stored.nodes[name]):
        if address.version == version:
            return Perch(name, address)
    raise InvalidInput(f"Node {name} has no IPv{version} address for BGP")


def _other(stored: Stored, node: str, version: int) -> str:
    for name in sorted(set(stored.nodes) - {node}):
        if any(one.version == version for one in stored.addresses(stored.nodes[name])):
            return name
    raise InvalidInput(f"there is no other node than {node} with an IPv{version} address")


@contextmanager
def _borrowed(store: Datastore, node: str, text: str, version: int) -> Iterator[IPAddress]:
    """An address that is nobody's meanwhile. Raises `InvalidInput`, and as IPAM does."""
    if text:
        try:
            address = plain_address(text)
        except ValueError as error:
            raise InvalidInput(f"--address: {error}") from error
        if address.version != version:
            raise InvalidInput(f"--address: {address} is not IPv{version}")
    ipam = IPAMClient(store, node, now=lambda: datetime.now(UTC))
    if text and ipam.owner_of(address) is not None:
        raise InvalidInput(f"--address: {address} is in use")
    if text:
        yield address
        return
    handle = f"{HANDLE}.{node}"
    ipam.release(handle)  # of one that was killed
    try:
        want = AddressRequest(ipv4=version == 4, ipv6=version == 6)
        (held,) = ipam.assign(handle, {"node": node}, want)
        yield held.address
    finally:
        ipam.release(handle)
