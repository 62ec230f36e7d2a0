"""Looks at all that can happen up to a bound, or at random histories by seed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lab.simulate import verdicts
from lab.simulate.kubevirt import Label
from lab.simulate.protocol import Protocol, Restless, Step
from lab.simulate.values import Budget, World

Trace = tuple[Label, ...]
_WEIGHTS = {"fail": 0.1, "cancel": 0.1, "forget": 0.3, "look": 0.5, "own": 0.5, "reset": 0.1}
"""How likely a step is against others: a random history must neither end at once nor idle."""

_DEATHS = 0.15
LENGTH = 120
Tell = Callable[[str], None]


def _silent(_: str) -> None:
    """Tells nobody."""


@dataclass
class Found:
    """A fault, and the shortest history known that leads to it."""

    verdict: str
    trace: Trace
    world: World


@dataclass
class Search:
    """`seen` counts different clusters, `steps` those looked at again as well."""

    protocol: Protocol
    seen: int = 0
    steps: int = 0
    complete: bool = True
    _rested: dict[bool, set[World]] = field(default_factory=lambda: {True: set(), False: set()})

    def exhaust(self, budget: Budget, *, most: int | None = None) -> Found | None:
        """Every history within the budget, breadth first; the first fault.

        After `most` different clusters it stops; `complete` tells.
        """
        first = self.protocol.beginning(budget)
        parents: dict[World, tuple[World, Label] | None] = {first: None}
        queue = deque([first])
        while queue:
            world = queue.popleft()
            found = self._rest(world)
            if found is not None:
                return self._told(found, parents, world)
            for step in self.protocol.steps(world):
                wrong = self._gap(step)
                for label, after in self.protocol.endings(world, step):
                    self.steps += 1
                    if after in parents:
                        continue
                    parents[after] = (world, label)
                    wrong = wrong or verdicts.of_step(world, label, after, self.protocol.product)
                    if wrong is not None:
                        return self._told(Found(wrong, (), after), parents, after)
                    queue.append(after)
            self.seen = len(parents)
            if most is not None and self.seen > most:
                self.complete = False
                return None
        return None

    def wander(
        self, budget: Budget, seed: int, *, length: int = LENGTH, tell: Tell = _silent
    ) -> Found | None:
        """One random history of at most `length` steps, then rest; `tell` hears each step."""
        dice = random.Random(seed)
        world = self.protocol.beginning(budget)
        trace: list[Label] = []
        for _ in range(length):
            steps = list(self.protocol.steps(world))
            if not steps:
                break
            step = dice.choices(steps, [_WEIGHTS.get(str(one.label[0]), 1.0) for one in steps])[0]
            endings = list(self.protocol.endings(world, step))
            died = len(endings) > 1 and dice.random() < _DEATHS
            label, after = dice.choice(endings[1:]) if died else endings[0]
            self.steps += 1
            trace.append(label)
            tell(" ".join(map(str, label)))
            wrong = self._gap(step) or verdicts.of_step(world, label, after, self.protocol.product)
            if wrong is not None:
                return Found(wrong, tuple(trace), after)
            world = after
        found = self._rest(world)
        if found is not None:
            found.trace = (*trace, *found.trace)
        return found

    def _gap(self, step: Step) -> str | None:
        return None if step.agent is None else verdicts.of_gap(step.stages, step.agent)

    def _rest(self, world: World) -> Found | None:
        """Whether a cluster comes to rest, and to the right one, silent and talkative."""
        for talkative in (False, True):
            if found := self._rest_once(world, talkative):
                return found
        return None

    def _rest_once(self, world: World, talkative: bool) -> Found | None:
        known = self._rested[talkative]
        before, trace, passed = world._replace(left=Budget(0, 0, 0)), [], []
        if before in known:
            return None
        try:
            for label, after in self.protocol.path_to_rest(before, talkative=talkative):
                trace.append(label)
                passed.append(before)
                wrong = verdicts.of_step(before, label, after, self.protocol.product)
                if wrong is not None:
                    return Found(wrong, (("rest",), *trace), after)
                if after in known:
                    known.update(passed)
                    return None
                before = after
        except Restless as error:
            return Found(str(error), (("rest",), *trace), before)
        wrong = verdicts.at_rest(before, self.protocol.site, self.protocol.product, heard=talkative)
        if wrong is not None:
            how = "talkative" if talkative else "silent"
            return Found(wrong, (("rest", how), *trace), before)
        known.update((*passed, before))
        return None

    @staticmethod
    def _told(
        found: Found, parents: dict[World, tuple[World, Label] | None], world: World
    ) -> Found:
        trace: list[Label] = []
        while (parent := parents[world]) is not None:
            world, label = parent
            trace.append(label)
        return Found(found.verdict, (*reversed(trace), *found.trace), found.world)
