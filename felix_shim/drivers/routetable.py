"""Workload routes in the main table: knows what the kernel has, changes as little as it can.

Only the reconciler's thread calls it. What the kernel has is learned from surveys and from the
kernel's own notifications; a change of ours is noted at once, so that the next plan builds on it.
Within one address every add comes before any delete, so there is no moment without a route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from felix_shim.overlay import is_overlay
from felix_shim.routes import is_ours, plan_routes
from libtortie.errors import TortieError
from libtortie.linux.port import MAIN_TABLE, IPNetwork, Kernel, Route, RouteProto
from libtortie.model.names import INTERFACE_PREFIX

Key = tuple[IPNetwork, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one address's change did. `error` is empty when the kernel has what was asked for."""

    dst: IPNetwork
    added: tuple[Route, ...] = ()
    deleted: tuple[Route, ...] = ()
    error: str = ""


class RouteTable:
    """The kernel's host routes on workload interfaces, and other daemons' for the same addresses.

    `monotonic` is in seconds; it dates changes, so that a survey that began before one of them
    does not undo it.
    """

    def __init__(self, kernel: Kernel, monotonic: Callable[[], float]) -> None:
        self._kernel = kernel
        self._monotonic = monotonic
        self._actual: dict[IPNetwork, dict[int, Route]] = {}
        self._foreign: dict[IPNetwork, dict[int, Route]] = {}
        self._changed: dict[Key, float] = {}

    def actual(self, dst: IPNetwork) -> tuple[Route, ...]:
        """Our routes to an address, best first."""
        routes = self._actual.get(dst, {})
        return tuple(routes[priority] for priority in sorted(routes))

    def destinations(self) -> frozenset[IPNetwork]:
        """Every address that has a route of ours."""
        return frozenset(self._actual)

    def learned(self, dst: IPNetwork) -> Route | None:
        """The host route that BIRD installed for an address, if any."""
        found = self._foreign.get(dst, {}).values()
        return next((route for route in found if not is_overlay(route)), None)

    def tunnelled(self, dst: IPNetwork) -> Route | None:
        """The host route that leads an address into the overlay, if any."""
        return next((one for one in self._foreign.get(dst, {}).values() if is_overlay(one)), None)

    def observe(self, route: Route, *, present: bool) -> bool:
        """Take a kernel notification; True when it tells something new about a host route."""
        if route.table != MAIN_TABLE or route.dst.prefixlen != route.dst.max_prefixlen:
            return False
        known = self._known(route)
        if known is None:
            return False
        before = known.get(route.dst, {}).get(route.priority)
        if present == (before == route) and not (not present and before is not None):
            return False
        if not present and before is not None and before.ifname != route.ifname:
            return False  # the route that left was replaced by this one before
        self._note(known, route, present)
        return True

    def survey(self, routes: Iterable[Route], began: float) -> frozenset[IPNetwork]:
        """Take a complete reading of the table; returns the addresses it changes our view of.

        A key that changed after the reading began is left as it is: the reading may be older.
        """
        fresh = {_key(route): route for route in routes if self._known(route) is not None}
        for known in (self._actual, self._foreign):
            for by_priority in list(known.values()):
                for route in list(by_priority.values()):
                    if fresh.get(_key(route)) != route and self._older(route, began):
                        self._note(known, route, False)
        changed = set()
        for route in fresh.values():
            known_here = self._known(route)
            if known_here is None or known_here.get(route.dst, {}).get(route.priority) == route:
                continue
            if self._older(route, began):
                self._note(known_here, route, True)
                changed.add(route.dst)
        recent = {key: when for key, when in self._changed.items() if when > began}
        changed |= {dst for (dst, _) in self._changed if (dst, _) not in recent}
        self._changed = recent
        return frozenset(changed)

    def apply(self, wanted: Mapping[IPNetwork, frozenset[Route]]) -> list[Outcome]:
        """Make the kernel's routes to these addresses the desired ones, adds before deletes.

        A VM's addresses come together: what is added for all of them is one request, so that no
        family waits for what the processor does between two.
        """
        plans = {dst: plan_routes(routes, self.actual(dst)) for dst, routes in wanted.items()}
        adds = [route for added, _ in plans.values() for route in added]
        wrong = dict(zip(adds, self._ensure(adds), strict=True))
        return [self._outcome(dst, *plan, wrong) for dst, plan in plans.items()]

    def _ensure(self, routes: Sequence[Route]) -> Sequence[TortieError | None]:
        try:
            found = self._kernel.ensure_routes(routes)
        except TortieError as error:
            return [error] * len(routes)
        for route, wrong in zip(routes, found, strict=True):
            if wrong is None:
                self._note(self._actual, route, True)
        return found

    def _outcome(
        self,
        dst: IPNetwork,
        adds: Iterable[Route],
        deletes: Iterable[Route],
        wrong: Mapping[Route, TortieError | None],
    ) -> Outcome:
        """The deletes, unless an add has failed."""
        added = tuple(route for route in adds if wrong[route] is None)
        if error := next((one for route in adds if (one := wrong[route])), None):
            return Outcome(dst, added, (), str(error))
        deleted: list[Route] = []
        try:
            for route in deletes:
                self._kernel.delete_route(route)
                self._note(self._actual, route, False)
                deleted.append(route)
        except TortieError as error:
            return Outcome(dst, added, tuple(deleted), str(error))
        return Outcome(dst, added, tuple(deleted))

    def link_gone(self, ifname: str) -> frozenset[IPNetwork]:
        """The kernel dropped all routes of an interface; returns their addresses."""
        lost = [
            route
            for by_priority in self._actual.values()
            for route in by_priority.values()
            if route.ifname == ifname
        ]
        for route in lost:
            self._note(self._actual, route, False)
        return frozenset(route.dst for route in lost)

    def _known(self, route: Route) -> dict[IPNetwork, dict[int, Route]] | None:
        if is_ours(route):
            return self._actual
        return self._foreign if is_learned(route) else None

    def _older(self, route: Route, began: float) -> bool:
        return self._changed.get(_key(route), began) <= began

    def _note(self, known: dict[IPNetwork, dict[int, Route]], route: Route, present: bool) -> None:
        self._changed[_key(route)] = self._monotonic()
        if present:
            known.setdefault(route.dst, {})[route.priority] = route
            return
        by_priority = known.get(route.dst, {})
        by_priority.pop(route.priority, None)
        if not by_priority:
            known.pop(route.dst, None)


def is_learned(route: Route) -> bool:
    """Whether a route is a host route towards another node: BIRD's, or into the overlay."""
    return (
        (route.proto == RouteProto.BIRD or is_overlay(route))
        and route.table == MAIN_TABLE
        and route.dst.prefixlen == route.dst.max_prefixlen
        and not route.ifname.startswith(INTERFACE_PREFIX)
    )


def _key(route: Route) -> Key:
    return route.dst, route.priority
