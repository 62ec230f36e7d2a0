"""Prove with a test address that a router prefers a raised route, whoever has it.

Two nodes announce the same host route, one as a VM's normal one and one as raised; then the other
way round. The router must choose the raised one each time: once might be chance, for without our
preference it would choose by router id.

The nodes announce what an annotation of their Node asks for, until a time that is in it: whatever
becomes of this process, nothing of it lasts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_network

from libtortie.datastore.port import Datastore
from libtortie.errors import Conflict, NotFound, TortieError
from libtortie.model.bgp_canary import ANNOTATION, CanaryRequest
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Node

ATTEMPTS = 20
LASTS = timedelta(minutes=5)
PAUSE_SECONDS = 0.2


class CanaryError(TortieError):
    """The router did not choose as it must; the text says what it chose."""


@dataclass(frozen=True, slots=True)
class Perch:
    """A node and the address that routers know it by."""

    node: str
    address: IPAddress


@dataclass(frozen=True, slots=True)
class Means:
    """`look` prints the router's route to the address; `timeout`, in seconds, is each step's."""

    store: Datastore
    look: Callable[[], str]
    say: Callable[[str], None]
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    pause: Callable[[float], None]
    timeout: float = 60.0


def prove(
    means: Means, address: IPAddress, nodes: tuple[Perch, Perch], metrics: tuple[int, int]
) -> None:
    """Both rounds. `metrics` are (normal, raised). Raises `CanaryError`, and as the store does."""
    first, second = nodes
    with ExitStack() as stack:
        for perch in nodes:
            stack.callback(_annotate, means.store, perch.node, None)
        for normal, raised in ((first, second), (second, first)):
            _round(means, address, (normal, raised), metrics)
    means.say(f"the router prefers the raised route to {address}, whichever node has it")


def _round(
    means: Means, address: IPAddress, order: tuple[Perch, Perch], metrics: tuple[int, int]
) -> None:
    normal, raised = order
    ask = _Asker(means, address)
    with ask.announced(normal, metrics[0]):
        ask.await_choice(order, normal, f"{normal.node} announces {address} at {metrics[0]}")
        with ask.announced(raised, metrics[1]):
            ask.await_choice(order, raised, f"{raised.node} announces it at {metrics[1]}, too")
        ask.await_choice(order, normal, f"{raised.node} withdraws it")
    ask.await_choice(order, None, f"{normal.node} withdraws it")


@dataclass(frozen=True, slots=True)
class _Asker:
    means: Means
    address: IPAddress

    @contextmanager
    def announced(self, perch: Perch, metric: int) -> Iterator[None]:
        """While this lasts the node is asked to announce the address."""
        request = CanaryRequest(ip_network(self.address), metric, self.means.now() + LASTS)
        _annotate(self.means.store, perch.node, request.to_text())
        try:
            yield
        finally:
            _annotate(self.means.store, perch.node, None)

    def await_choice(self, perches: tuple[Perch, Perch], wanted: Perch | None, when: str) -> None:
        """Wait until the router uses this node alone, or neither. Raises `CanaryError`."""
        means = self.means
        begin = means.monotonic()
        want = {wanted.node} if wanted is not None else set()
        while (found := chosen(means.look(), perches)) != want:
            if means.monotonic() - begin > means.timeout:
                uses = " and ".join(sorted(found)) or "neither node"
                should = wanted.node if wanted is not None else "neither node"
                raise CanaryError(
                    f"{when}: after {means.timeout:g} s the router uses {uses}, not {should}; "
                    "see `tortiectl bgp tor-config`"
                )
            means.pause(PAUSE_SECONDS)
        uses = wanted.node if wanted is not None else "neither node"
        means.say(f"{when}: the router uses {uses} after {means.monotonic() - begin:.1f} s")


def chosen(text: str, perches: tuple[Perch, Perch]) -> set[str]:
    """The nodes whose addresses a router's route names, each as a word of its own."""
    words = set(re.findall(r"[0-9a-fA-F:.]*[0-9a-fA-F]", text.lower()))
    return {perch.node for perch in perches if str(perch.address) in words}


def _annotate(store: Datastore, node: str, text: str | None) -> None:
    """Put the annotation on a Node, or take it away, whoever else writes the Node."""
    key = ResourceKey(Kind.NODE, node)
    for _ in range(ATTEMPTS):
        try:
            record = store.get(key)
        except NotFound:
            if text is None:
                return
            raise
        if not isinstance(record.value, Node):
            raise NotFound(f"Node {node} holds something else")
        metadata = record.value.metadata
        annotations = {**metadata.annotations, ANNOTATION: text}
        wanted = {name: value for name, value in annotations.items() if value is not None}
        if wanted == metadata.annotations:
            return
        metadata = metadata.model_copy(update={"annotations": wanted})
        try:
            store.update(
                key, record.value.model_copy(update={"metadata": metadata}), record.revision
            )
        except Conflict:
            continue
        return
    raise Conflict(f"Node {node}: {ATTEMPTS} writes met another writer's")
