"""Which raise of an address is new. Pure.

The state machine asks of another node's raised route one thing: is it newer than our own claim?
BGP does not say. So every raise gets a number when it is first seen, larger than all before; it
keeps it as long as it is seen from the same node, also across a restart of the agent, for which
the ledger is persisted. A raise that vanished and came back is new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from libtortie.errors import Malformed
from libtortie.model.ipam import IPAddress


@dataclass(frozen=True, slots=True)
class Raises:
    """`last`: the largest number given out. `numbers`: address → next hop → its raise's number."""

    last: int = 0
    numbers: Mapping[IPAddress, Mapping[str, int]] = field(default_factory=dict)

    def observe(self, asked: Collection[IPAddress], raised: Mapping[IPAddress, str]) -> Raises:
        """The ledger after a look at the BGP tables.

        `asked` are the addresses looked for; one of them that is not in `raised` is raised
        nowhere. A value of `raised` is one next hop or several, joined by commas. Addresses that
        were not asked for keep what was known.
        """
        last, numbers = self.last, dict(self.numbers)
        for address in sorted(asked, key=lambda one: (one.version, int(one))):
            known = numbers.pop(address, {})
            hops: dict[str, int] = {}
            for hop in sorted(filter(None, raised.get(address, "").split(","))):
                if hop not in known:
                    last += 1
                hops[hop] = known.get(hop, last)
            if hops:
                numbers[address] = hops
        return Raises(last, numbers)

    def number(self, addresses: Iterable[IPAddress]) -> int:
        """The newest raise of any of these addresses; 0 when none is raised elsewhere."""
        return max(
            (one for address in addresses for one in self.numbers.get(address, {}).values()),
            default=0,
        )

    def dump(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "last": self.last,
            "numbers": {str(address): dict(hops) for address, hops in self.numbers.items()},
        }


def load_raises(data: Mapping[str, Any]) -> Raises:
    """The ledger of a JSON object. Raises `Malformed`."""
    try:
        return Raises(
            last=int(data["last"]),
            numbers={
                ip_address(address): {str(hop): int(number) for hop, number in hops.items()}
                for address, hops in data["numbers"].items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Malformed(f"saved raises: {error}") from error
