"""The agent's BIRD, as its configuration wants it: supervised, somebody else's, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from cni_plugin.durable import replace_file
from felix_shim.bgp import render_bird
from felix_shim.bgp_model import BirdInput
from felix_shim.bird_passwords import PasswordSource
from felix_shim.bird_sweep import Sweeper
from felix_shim.config import NodeConfig
from felix_shim.drivers.bird import CONFIG_MODE, Bird
from felix_shim.events import Event
from felix_shim.jsonlog import Log
from felix_shim.sources import RaisesSource
from libtortie.errors import Unavailable
from libtortie.kube.port import KubeReader
from libtortie.linux.port import Kernel
from libtortie.model.ipam import IPAddress


def _bird(config: NodeConfig) -> Bird:
    run_dir = Path(config.run_dir)
    return Bird(
        run_dir / "bird.conf",
        config.bird_socket,
        run_dir / "bird.pid",
        binary=config.bird.binary,
    )


def bird_runner(config: NodeConfig, kernel: Kernel, log: Log) -> Callable[[BirdInput], None] | None:
    """What sees that BIRD runs with an input; none where there is no BIRD."""
    if config.bird.mode == "off":
        return None
    bird = _bird(config)
    sweeper = Sweeper(kernel, Path(config.run_dir) / "bird-metrics.json")
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
        bird.ensure(text)
        if count := sweeper.sweep(metrics):
            log.info("bird_routes_swept", routes=count, metrics=metrics)

    return ensure


def raises_source(
    config: NodeConfig, post: Callable[[Event], None], log: Log
) -> RaisesSource | None:
    """What asks BIRD for other nodes' routes; none where there is no BIRD."""
    if config.bird.mode == "off":
        return None
    bird = _bird(config)

    def ask(
        addresses: frozenset[IPAddress],
    ) -> tuple[Mapping[IPAddress, str], frozenset[IPAddress]]:
        return bird.elevated_elsewhere(addresses), bird.announced_elsewhere(addresses)

    return RaisesSource(ask, bird.alive, post, log)


def password_source(
    config: NodeConfig, kube: KubeReader | None, post: Callable[[Event], None], log: Log
) -> PasswordSource | None:
    """What reads sessions' passwords; none where there is no BIRD, or no API to read them from."""
    if config.bird.mode == "off" or kube is None:
        return None
    return PasswordSource(kube, config.bird.secret_namespace, post, log)
