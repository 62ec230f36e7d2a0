"""`python -m lab.simulate`: replays a seed, wanders through many, or looks at everything."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import process_time

from lab.simulate.protocol import Protocol
from lab.simulate.scenarios import SCENARIOS, Scenario
from lab.simulate.search import Found, Search
from lab.simulate.values import World


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 where a fault was found."""
    options = _parser().parse_args(argv)
    names = options.scenario or list(SCENARIOS)
    faults = 0
    for name in names:
        scenario = SCENARIOS[name]
        if options.seed is not None:
            faults += _replay(scenario, options.seed)
        elif options.exhaust:
            faults += _exhaust(scenario, options.most)
        else:
            faults += _wander(scenario, range(options.first, options.first + options.runs))
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.simulate", description=__doc__)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    parser.add_argument("--seed", type=int, help="replay this random history, step by step")
    parser.add_argument("--runs", type=int, default=100, help="random histories of each scenario")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    parser.add_argument("--exhaust", action="store_true", help="every history within the bound")
    parser.add_argument("--most", type=int, help="stop after so many different clusters")
    return parser


def _replay(scenario: Scenario, seed: int) -> int:
    found = Search(Protocol(scenario.site)).wander(scenario.wide, seed, tell=print)
    print(f"{scenario.name}, seed {seed}: {found.verdict if found else 'no fault'}")
    if found is not None:
        print(_picture(found.world))
    return int(found is not None)


def _wander(scenario: Scenario, seeds: range) -> int:
    search, began, faults = Search(Protocol(scenario.site)), process_time(), 0
    for seed in seeds:
        found = search.wander(scenario.wide, seed)
        if found is not None:
            faults += 1
            print(
                f"{scenario.name}: {found.verdict}\n"
                f"  python -m lab.simulate --scenario {scenario.name} --seed {seed}"
            )
    took = process_time() - began
    print(f"{scenario.name}: {len(seeds)} histories, {search.steps} steps, {took:.0f} s of CPU")
    return faults


def _exhaust(scenario: Scenario, most: int | None) -> int:
    search, began = Search(Protocol(scenario.site)), process_time()
    found = search.exhaust(scenario.bound, most=most)
    whole = "all of them" if search.complete else "not all"
    took = process_time() - began
    print(f"{scenario.name}: {search.seen} clusters ({whole}), {took:.0f} s of CPU", flush=True)
    if found is not None:
        print(_story(found))
    return int(found is not None)


def _story(found: Found) -> str:
    steps = "".join(f"  {' '.join(map(str, label))}\n" for label in found.trace)
    return f"{found.verdict}\n{steps}{_picture(found.world)}"


def _picture(world: World) -> str:
    """The cluster in a few lines."""
    lines = [f"the VM runs in {world.vm}"]
    for pod in world.pods:
        state = "unknown to its agent" if pod.machine is None else pod.machine.state
        lines.append(f"{pod.name} on node{pod.node}: {state}")
    for number, node in enumerate(world.nodes):
        routes = ", ".join(f"{one.pod} {one.metric}" for one in sorted(node.kernel)) or "none"
        lines.append(f"node{number}: routes {routes}; heard {node.heard}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
