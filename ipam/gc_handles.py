"""Whether a handle's record and the blocks say the same. Pure.

The blocks decide. A record that gives nothing is an orphan and is deleted; one that is missing, or
counts wrongly, is written as the blocks have it: an address is never freed for its record's sake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from libtortie.model.keys import Blocks, HandleKey, Handles, path_of

from .gc_inventory import Counts, Inventory, held_in, place_of
from .gc_verdicts import Opinion, blind, doubt, good


@dataclass(frozen=True, slots=True)
class HandleState:
    """A handle: what its record counts (at `revision`, None: there is none), what blocks hold."""

    handle_id: str
    revision: str | None
    counted: Counts
    held: Counts

    @property
    def key(self) -> str:
        """Unique among all that is judged."""
        return f"handle {self.handle_id}"

    @property
    def name(self) -> str:
        """For people."""
        return f"handle {self.handle_id}"

    @property
    def action(self) -> str:
        """What is done with its record if that is wrong."""
        return "mend" if self.held else "delete"


def handle_states(inventory: Inventory) -> Iterator[HandleState]:
    """Every handle that has a record or an address."""
    held = _held(inventory)
    for handle_id in sorted(held.keys() | inventory.handles.keys()):
        stored = inventory.handles.get(handle_id)
        yield HandleState(
            handle_id,
            stored.revision if stored else None,
            stored.counts if stored else (),
            held.get(handle_id, ()),
        )


def _held(inventory: Inventory) -> dict[str, Counts]:
    """What the blocks have of each handle: those with the same of one block share it."""
    held: dict[str, Counts] = {}
    for block in sorted(inventory.blocks.values(), key=lambda one: place_of(one.cidr)):
        handles = Counter(one.handle_id for _, one in held_in(block) if one.handle_id)
        made: dict[int, Counts] = {}
        for handle_id, count in handles.items():
            counts = made.setdefault(count, ((block.cidr, count),))
            held[handle_id] = held[handle_id] + counts if handle_id in held else counts
    return held


def opine(state: HandleState, inventory: Inventory) -> Opinion[HandleState]:
    """What one observation says of one handle."""
    if state.counted == state.held and state.held:
        return good(state, "it counts what the blocks have")
    missing = [cidr for cidr, _ in state.counted if cidr not in inventory.blocks]
    if any(Blocks(cidr.version) in inventory.blind for cidr in missing):
        return blind(state, f"block {missing[0]} may be one that cannot be read")
    if state.revision is None:
        if _unreadable(state.handle_id, inventory):
            return blind(state, "its record cannot be read")
        return doubt(state, f"it has no record, and holds {_text(state.held)}")
    if not state.held:
        return doubt(state, "no block has an address of it")
    return doubt(state, f"it counts {_text(state.counted)}, blocks have {_text(state.held)}")


def _unreadable(handle_id: str, inventory: Inventory) -> bool:
    """Whether the record is among those that could not be read."""
    path = path_of(HandleKey(handle_id))
    return Handles() in inventory.blind and any(path in text for text in inventory.unreadable)


def _text(counts: Counts) -> str:
    return ", ".join(f"{count} in {cidr}" for cidr, count in counts) or "nothing"
