"""Pods, VMs, migrations, operators, faults and the collector in any order, against the model.

Hypothesis draws and shrinks; `make soak-ipam` plays the same steps a million times. CI draws
the same 2,000 each time: what is new is found by the soak.
"""

from __future__ import annotations

import os
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.fakes.ipam_model import Cluster
from tests.fakes.ipam_steps import OF_OPERATORS, OF_PODS, OF_VMS, TROUBLES, Step

SOAK = bool(os.environ.get("TORTIE_SOAK"))
EXAMPLES = 2000 if SOAK else 20
STEPS = 50

numbers = st.integers(0, 20)
nths = st.integers(1, 16)
others = st.builds(
    Step, st.sampled_from([*OF_PODS, *OF_VMS, *OF_OPERATORS]), numbers, numbers, numbers
)


def steps(*verbs: str) -> st.SearchStrategy[Step]:
    """Steps of these kinds, some of them with trouble, some with another node's in the middle."""
    plain = st.builds(
        Step,
        st.sampled_from(verbs),
        numbers,
        numbers,
        numbers,
        st.sampled_from([one for one in TROUBLES if one != "interlope"]),
        nths,
    )
    crossed = st.builds(
        Step,
        st.sampled_from(verbs),
        numbers,
        numbers,
        numbers,
        st.just("interlope"),
        nths,
        others,
    )
    return st.one_of(plain, plain, crossed)


class Life(RuleBasedStateMachine):
    """One cluster's life; every step compares store and model."""

    stepwise: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(stepwise=self.stepwise)

    @rule(step=steps(*OF_PODS))
    def pod(self, step: Step) -> None:
        self.cluster.take(step)

    @rule(step=steps("assign", "start"))
    def fill(self, step: Step) -> None:
        self.cluster.take(step)

    @rule(step=steps(*OF_VMS))
    def vm(self, step: Step) -> None:
        self.cluster.take(step)

    @rule(step=steps("migrate", "promote", "leave"))
    def migration(self, step: Step) -> None:
        self.cluster.take(step)

    @rule(step=steps(*OF_OPERATORS))
    def operator(self, step: Step) -> None:
        self.cluster.take(step)

    @rule(step=steps("collect"))
    def collector(self, step: Step) -> None:
        self.cluster.take(step)

    @rule(step=steps("wait", "jump"))
    def clock(self, step: Step) -> None:
        self.cluster.take(step)

    def teardown(self) -> None:
        self.cluster.finish()


class LifeWithoutTransactions(Life):
    """The same where a commit may stop half way."""

    stepwise = True


BUDGET = settings(
    max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, derandomize=not SOAK
)
TestLife = Life.TestCase
TestLife.settings = BUDGET
TestLifeWithoutTransactions = LifeWithoutTransactions.TestCase
TestLifeWithoutTransactions.settings = BUDGET
