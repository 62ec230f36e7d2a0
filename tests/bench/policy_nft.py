"""What the `nft` program takes for the changes of the policy benchmark, on the rules it left."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import count as counting

from felix_shim.drivers.nftables_text import render_delta
from felix_shim.policy import EndpointPolicy, PolicySet
from libtortie.linux.netns import Netns
from tests.bench.policy_world import Size, local_interface
from tests.fakes.node_process import DEADLINE

_SET = re.compile(r"^\tset (s4-\S+?)(-\d+) \{\n(.*?)\n\t\}", re.MULTILINE | re.DOTALL)
_WAY = re.compile(r"^\t\tgoto (ci-\S+)", re.MULTILINE)


@dataclass(slots=True)
class NftPeer:
    """One process for each change: what a program without netlink messages of its own does."""

    namespace: str
    size: Size
    _sets: list[str] = field(init=False)
    _crowd: str = field(init=False)
    _tag: str = field(init=False)
    _way: str = field(init=False)

    def __post_init__(self) -> None:
        text = self._nft("list table inet tortie")
        found = {name: len(body) for name, _, body in _SET.findall(text)}
        self._tag = _SET.findall(text)[0][1]
        self._sets = sorted(found)
        self._crowd = max(found, key=lambda name: found[name])
        self._way = _WAY.findall(text)[0]

    def measure(self, count: int) -> dict[str, list[float]]:
        """Milliseconds of each change, by its kind."""
        fresh = (str(ip_address("10.250.0.1") + number) for number in counting())
        few = [name for name in self._sets if name != self._crowd]
        found: dict[str, list[float]] = {"endpoint": [], "label": [], "added": []}
        for number in range(count):
            found["endpoint"].append(self._timed(self._endpoint(number)))
            one, other = few[number % len(few)], few[(number + 1) % len(few)]
            address = next(fresh)
            self._timed(self._elements("add", one, address))
            moved = self._elements("delete", one, address) + self._elements("add", other, address)
            found["label"].append(self._timed(moved))
            address = next(fresh)
            both = self._elements("add", self._crowd, address) + self._elements("add", one, address)
            found["added"].append(self._timed(both))
        return found

    def _endpoint(self, number: int) -> str:
        address = ip_address("10.251.0.1") + number
        name = local_interface(1_000_000 + number)
        endpoint = EndpointPolicy(name, "02:00:00:00:00:01", (address,), ingress=self._way)
        return render_delta(PolicySet(), PolicySet((endpoint,)), self._tag)

    def _elements(self, verb: str, name: str, *addresses: str) -> str:
        return f"{verb} element inet tortie {name}{self._tag} {{ {', '.join(addresses)} }}\n"

    def _timed(self, text: str) -> float:
        """Milliseconds of a whole process; the namespace is entered before."""

        def work() -> float:
            began = time.monotonic()
            self._run(["nft", "-f", "-"], text)
            return (time.monotonic() - began) * 1000

        return Netns(deadline=DEADLINE).call(f"/run/netns/{self.namespace}", work)

    def _nft(self, command: str) -> str:
        def work() -> str:
            return self._run(["nft", *command.split()])

        return Netns(deadline=DEADLINE).call(f"/run/netns/{self.namespace}", work)

    def _run(self, command: Iterable[str], text: str = "") -> str:
        done = subprocess.run([*command], input=text, text=True, check=True, capture_output=True)
        return done.stdout
