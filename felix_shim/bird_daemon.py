"""The agent's BIRD, as its configuration wants it: supervised, somebody else's, or none; and the
threads that ask for what its configuration depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cni_plugin.durable import replace_file
from felix_shim.bgp import render_bird
from felix_shim.bgp_model import BirdInput
from felix_shim.bird_links import PeeringAddresses, peering_addresses
from felix_shim.bird_passwords import PasswordSource
from felix_shim.bird_services import ServiceSource
from felix_shim.bird_sweep import Sweeper
from felix_shim.config import NodeConfig
from felix_shim.crew import Crew
from felix_shim.drivers.bird import CONFIG_MODE, Bird
from felix_shim.events import Event
from felix_shim.export_watch import ExportWatch
from felix_shim.sources import RaisesSource
from libtortie.errors import KernelError, TortieError, Unavailable
from libtortie.jsonlog import Log
from libtortie.kube.port import KubeClient
from libtortie.linux.port import Kernel
from libtortie.metrics import Gauge, Metric, Readings
from libtortie.model.ipam import IPAddress

SCRAPE_SECONDS = 2.0
"""How long a scrape waits for BIRD."""


def bird_of(config: NodeConfig, *, deadline: float = 5.0) -> Bird:
    """The node's BIRD, by its files."""
    run_dir = Path(config.run_dir)
    return Bird(
        run_dir / "bird.conf",
        config.bird_socket,
        run_dir / "bird.pid",
        binary=config.bird.binary,
        deadline=deadline,
    )


def bird_runner(config: NodeConfig, kernel: Kernel, log: Log) -> Callable[[BirdInput], None] | None:
    """What sees that BIRD runs with an input; none where there is no BIRD."""
    if config.bird.mode == "off":
        return None
    bird = bird_of(config)
    sweeper = Sweeper(kernel, Path(config.run_dir) / "bird-metrics.json")
    links = PeeringAddresses(kernel, Path(config.run_dir) / "bird-links.json")
    log_file = str(Path(config.log_file).with_name("bird.log")) if config.log_file else ""

    def ensure(wanted: BirdInput) -> None:
        if not wanted.complete and bird.alive():
            return  # its sessions go on as they are until all is known that they need
        text = render_bird(replace(wanted, log_file=log_file))
        if config.bird.mode == "external" and not bird.alive():
            replace_file(Path(config.run_dir) / "bird.conf", text.encode(), CONFIG_MODE)
            raise Unavailable(f"no BIRD answers on {config.bird_socket} (mode external)")
        metrics = {4: wanted.priorities.bird, 6: wanted.priorities6.bird}
        sweeper.note(metrics)
        peering = peering_addresses(wanted.peers)
        refused = links.give(peering)
        bird.ensure(text)
        links.take_back(peering)
        if count := sweeper.sweep(metrics):
            log.info("bird_routes_swept", routes=count, metrics=metrics)
        if refused:
            raise KernelError(refused)

    return ensure


def raises_source(
    config: NodeConfig, post: Callable[[Event], None], log: Log
) -> RaisesSource | None:
    """What asks BIRD for other nodes' routes; none where there is no BIRD."""
    if config.bird.mode == "off":
        return None
    bird = bird_of(config)

    def ask(
        addresses: frozenset[IPAddress],
    ) -> tuple[Mapping[IPAddress, str], frozenset[IPAddress]]:
        return bird.elevated_elsewhere(addresses), bird.announced_elsewhere(addresses)

    return RaisesSource(ask, bird.alive, post, log)


def bird_metrics(config: NodeConfig) -> tuple[Metric, ...]:
    """Whether BIRD answers, and its sessions; none where there is no BIRD."""
    if config.bird.mode == "off":
        return ()
    bird = bird_of(config, deadline=SCRAPE_SECONDS)

    def sessions() -> Mapping[tuple[str, ...], float]:
        found = Counter(one.fsm for one in bird.sessions() if one.kind == "BGP")
        return {(state,): float(found[state]) for state in {*found, "established"}}

    def alive() -> float:
        try:
            return float(bird.alive())
        except TortieError:
            return 0.0

    return (
        Gauge("tortie_bird_up", "Whether BIRD answers on its control socket.", alive),
        Readings(
            "tortie_bgp_sessions",
            "BGP sessions that BIRD has, by their state; none while it does not answer.",
            ("state",),
            sessions,
        ),
    )


def export_watch(
    config: NodeConfig, told: Callable[[object, float, float, float], None]
) -> ExportWatch | None:
    """What sees when BIRD has a raised route; none where there is no BIRD."""
    if config.bird.mode == "off":
        return None
    return ExportWatch(bird_of(config, deadline=SCRAPE_SECONDS).raised_here, told)


@dataclass(frozen=True, slots=True)
class BgpSources:
    """The threads that ask for what BGP needs; None where there is nobody to ask."""

    raises: RaisesSource | None = None
    passwords: PasswordSource | None = None
    services: ServiceSource | None = None

    def start(self, crew: Crew) -> None:
        """Start those that there are."""
        if self.raises is not None:
            crew.start("bird", self.raises.run, self.raises.stop)
        if self.passwords is not None:
            crew.start("bgp-passwords", self.passwords.run, self.passwords.stop)
        if self.services is not None:
            crew.start("bgp-services", self.services.run_services, self.services.stop)
            crew.start("bgp-endpoints", self.services.run_slices, self.services.stop)

    def ask_raises(self, addresses: frozenset[IPAddress], urgent: bool) -> None:
        """Which of these addresses other nodes have raised matters from now on."""
        if self.raises is not None:
            self.raises.want(addresses, urgent)


def bgp_sources(
    config: NodeConfig, kube: KubeClient | None, post: Callable[[Event], None], log: Log
) -> BgpSources:
    """What a node with this configuration has of them."""
    raises = raises_source(config, post, log)
    if raises is None or kube is None:
        return BgpSources(raises)
    passwords = PasswordSource(kube, config.bird.secret_namespace, post, log)
    return BgpSources(raises, passwords, ServiceSource(kube, config.kube_node, post, log))
