"""Types of single fields: what a text or number of the wire must be to be taken at its word.

Each check is a function of the value alone and says in one sentence what is wrong; the resource
that the field belongs to, and the field's name, are added where the resource is read
(`resources.parse_resource`). A value is never corrected: what was meant is for its writer to say.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from libtortie.model.plain_ip import plain_network

DEFAULT_BLOCK_SIZES = {4: 26, 6: 122}
BLOCK_SIZES = {4: range(20, 33), 6: range(116, 129)}
"""Prefix lengths that a pool's blocks may have, by family."""


def _as_number(value: Any) -> Any:
    """AS numbers are also read as `"64512"` and dotted `"1.10"` (RFC 5396 asdot)."""
    if not isinstance(value, str):
        return value
    high, dot, low = value.partition(".")
    if not dot:
        return int(value)
    if not (0 <= int(high) < 1 << 16 and 0 <= int(low) < 1 << 16):
        raise ValueError(f"{value!r} is not an AS number")
    return int(high) << 16 | int(low)


def network_of(text: str) -> IPv4Network | IPv6Network:
    """The network `address/length` names. Raises ValueError, also for bits behind the length."""
    _, slash, length = text.partition("/")
    if not slash or not (length.isascii() and length.isdecimal()):
        raise ValueError(f"{text!r} is not address/prefix length")
    network = plain_network(text)
    if network != _exact(text):
        raise ValueError(f"{text} has host bits set: the network is {network}")
    return network


def _exact(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return plain_network(text, strict=True)
    except ValueError:
        return None


def reserved_of(text: str) -> IPv4Network | IPv6Network:
    """The network of a reservation: as `network_of`, or one address alone."""
    return network_of(text) if "/" in text else plain_network(text, strict=True)


def block_size_of(stored: int, cidr: str) -> int:
    """The prefix length of a pool's blocks; 0 is the family's default. Raises ValueError."""
    pool = network_of(cidr)
    size = stored or DEFAULT_BLOCK_SIZES[pool.version]
    allowed = BLOCK_SIZES[pool.version]
    if size not in allowed:
        raise ValueError(f"{size} is not one of {allowed[0]}..{allowed[-1]} for IPv{pool.version}")
    if size < pool.prefixlen:
        raise ValueError(f"a block of /{size} does not fit into {pool}")
    return size


def _checked_network(text: str) -> str:
    network_of(text)
    return text


def _checked_reserved(text: str) -> str:
    reserved_of(text)
    return text


def _or(default: Any) -> BeforeValidator:
    """Go's zero value stands for the default, as an absent field does."""
    return BeforeValidator(lambda value: value or default)


ASNumber = Annotated[int, BeforeValidator(_as_number), Field(ge=0, lt=1 << 32)]
NetworkText = Annotated[str, AfterValidator(_checked_network)]
ReservedText = Annotated[str, AfterValidator(_checked_reserved)]
Encapsulation = Annotated[Literal["Never", "Always", "CrossSubnet"], _or("Never")]
PersistenceText = Annotated[Literal["Enabled", "Disabled"] | None, _or(None)]
AssignmentMode = Annotated[Literal["Automatic", "Manual"], _or("Automatic")]
AllowedUses = Annotated[
    tuple[Literal["Workload", "Tunnel", "LoadBalancer"], ...], _or(("Workload", "Tunnel"))
]
