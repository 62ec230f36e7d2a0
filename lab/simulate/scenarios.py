"""The named situations: what may happen in each, and up to which bound all of it is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from lab.simulate.values import PENDING, RUNNING, Budget, Site

LOCAL = (PENDING, "Scheduling", "Scheduled")
DECENTRALISED = ("WaitingForSync", "Synchronizing", *LOCAL)
HANDED_OFF = ("PreparingTarget", "TargetReady", RUNNING)


@dataclass(frozen=True)
class Scenario:
    """`bound` is exhausted, `wide` is for random histories: there is no end to those."""

    name: str
    about: str
    site: Site
    bound: Budget
    wide: Budget


def _wide(**changes: int) -> Budget:
    return Budget(jobs=3, crashes=2, ticks=6, losses=3, stale=1)._replace(**changes)


SCENARIOS = {
    one.name: one
    for one in (
        Scenario(
            "one-migration",
            "every order of one migration: heard or not, cancelled, failed, source pod gone early",
            Site(),
            Budget(ticks=0),
            _wide(jobs=1),
        ),
        Scenario(
            "convergence",
            "the same, while a convergence time passes at any moment",
            Site(),
            Budget(ticks=1),
            _wide(jobs=1),
        ),
        Scenario(
            "killed",
            "an agent is killed between any two changes, and starts again whenever it likes",
            Site(),
            Budget(ticks=0, crashes=1),
            _wide(crashes=4),
        ),
        Scenario(
            "lossy",
            "a BGP update is lost, repeated or overtaken, or a session ends",
            Site(),
            Budget(ticks=0, losses=1),
            _wide(losses=8),
        ),
        Scenario(
            "rollback",
            "the VM spoke on the target and is resumed on the source after all",
            Site(rollback=True),
            Budget(ticks=0),
            _wide(),
        ),
        Scenario(
            "called-failed",
            "the API calls a migration failed whose VM has arrived",
            Site(untold=True),
            Budget(ticks=0),
            _wide(jobs=1),
        ),
        Scenario(
            "back-to-back",
            "A to B to C, with everybody's news late",
            Site(nodes=3, block_node=None),
            Budget(jobs=2, ticks=0),
            _wide(jobs=4),
        ),
        Scenario(
            "ping-pong",
            "A to B to A and again, on two nodes",
            Site(rollback=True),
            Budget(jobs=2, ticks=0),
            _wide(jobs=5),
        ),
        Scenario(
            "overlapping",
            "a second migration begins while the first is live",
            Site(overlap=True),
            Budget(jobs=2, ticks=0),
            _wide(jobs=4),
        ),
        Scenario(
            "same-node",
            "the target pod is on its source's node",
            Site(same_node=True),
            Budget(ticks=0),
            _wide(),
        ),
        Scenario(
            "decentralised",
            "the target is another VMI of another cluster; phases WaitingForSync, Synchronizing",
            Site(early=DECENTRALISED, remote=True),
            Budget(ticks=0),
            _wide(jobs=1),
        ),
        Scenario(
            "every-phase",
            "all phases of KubeVirt, dual stack, a name over 63 characters, a network of a name",
            Site(
                families=2,
                early=LOCAL,
                late=HANDED_OFF,
                vmi_name="v" * 90,
                network="tenant-blue",
                prompt_tor=False,
            ),
            Budget(ticks=0),
            _wide(),
        ),
        Scenario(
            "forgetful",
            "state files are lost",
            Site(),
            Budget(ticks=0, crashes=1, amnesia=1),
            _wide(amnesia=3, crashes=3),
        ),
        Scenario(
            "forged",
            "a target pod sends the VM's frames before the VM is there",
            Site(),
            Budget(ticks=0, strays=1),
            _wide(strays=3),
        ),
    )
}
