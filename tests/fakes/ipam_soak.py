"""A long run of the model: random operations until one goes wrong, or so many went well.

Every episode is a cluster of its own with a seed of its own; what fails says how to play that
episode again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback

from tests.fakes.ipam_model import Cluster
from tests.fakes.ipam_steps import TROUBLES, VERBS, Step

EPISODE = 500
"""Operations of one cluster."""
STEPWISE_EVERY = 4
"""One episode of so many is on a store without transactions."""
REPORT_SECONDS = 5.0


def draw(dice: random.Random, *, nested: bool = False) -> Step:
    """A step, and with some what another node does in the middle of it."""
    trouble = "" if nested else dice.choice(TROUBLES)
    return Step(
        verb=dice.choice(VERBS),
        node=dice.randrange(3),
        subject=dice.randrange(21),
        choice=dice.randrange(8),
        trouble=trouble,
        nth=dice.randint(1, 16),
        other=draw(dice, nested=True) if trouble == "interlope" else None,
    )


def play(seed: int, episode: int, count: int, *, verbose: bool = False) -> None:
    """One cluster's life. Raises `AssertionError` with what it was doing."""
    dice = random.Random(f"{seed}/{episode}")
    cluster = Cluster(stepwise=episode % STEPWISE_EVERY == STEPWISE_EVERY - 1)
    for number in range(count):
        step = draw(dice)
        if verbose:
            print(number, step, flush=True)
        try:
            cluster.take(step)
        except BaseException as error:
            error.add_note(f"in step {number}: {step}")
            raise
    cluster.finish()


def main() -> None:
    """As `make soak-ipam` calls it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--episode", type=int, help="play this one again, step by step")
    asked = parser.parse_args()
    if asked.episode is not None:
        play(asked.seed, asked.episode, EPISODE, verbose=True)
        return
    print(f"seed {asked.seed}", flush=True)
    began = told = time.monotonic()
    done = 0
    for episode in range(-(-asked.operations // EPISODE)):
        try:
            play(asked.seed, episode, EPISODE)
        except BaseException:
            traceback.print_exc()
            again = f"--seed {asked.seed} --episode {episode}"
            sys.exit(f"replay: python -m tests.fakes.ipam_soak {again}")
        done += EPISODE
        now = time.monotonic()
        if now - told >= REPORT_SECONDS or done >= asked.operations:
            told = now
            rate = done / (now - began)
            print(f"{done:,} of {asked.operations:,} operations, {rate:,.0f}/s", flush=True)


if __name__ == "__main__":
    main()
