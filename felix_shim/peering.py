"""What an agent needs to hand connections over, put together: table, certificate, both sides.

Without a certificate, or on a kernel whose connection table cannot be reached, there is none of
it: connections then live through a migration as far as the target's rules let them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from felix_shim.config import NodeConfig
from felix_shim.crew import Crew
from felix_shim.desired import speaks_of, status_name
from felix_shim.drivers.newcomers import Newcomers
from felix_shim.drivers.status_files import StatusFiles
from felix_shim.events import CutOver
from felix_shim.exchange import Exchange, Wish
from felix_shim.hand_over import HandOver
from felix_shim.herald import Addressee, Herald, Tidings
from felix_shim.model import Endpoint
from felix_shim.peer_credentials import Credentials
from felix_shim.peers import Link, PeerServer, dial
from libtortie.errors import KernelError, TortieError, first_line
from libtortie.jsonlog import Log
from libtortie.linux.conntrack import Conntrack
from libtortie.metrics import Gauge, Metric, Readings
from libtortie.model.ipam import IPAddress


@dataclass(frozen=True, slots=True)
class Peering:
    """The outlets of the reconciler, and what the scraper gets to see."""

    exchange: Callable[[Exchange], None] | None = None
    tell: Callable[[Mapping[Addressee, Tidings]], None] | None = None
    welcome: Callable[[tuple[Endpoint, ...]], None] | None = None
    metrics: tuple[Metric, ...] = ()


def start_peering(
    config: NodeConfig,
    addresses: tuple[IPAddress, ...],
    crew: Crew,
    log: Log,
    post: Callable[[CutOver], None],
) -> Peering:
    """Open the tables and start the threads; `post` gets what other nodes say of their VMs.

    `addresses` are this node's: a peer comes by the one of the family it has.
    """
    table = open_table(addresses, log)
    if table is None:
        return Peering()
    newcomers = Newcomers(table, _known(StatusFiles(config.status_dir)), log)
    files = config.peer_files
    if files is None:
        log.info("peers_off", reason="no peer_cert_file: migrating VMs' connections are not copied")
        return Peering(welcome=newcomers.welcome)
    credentials = Credentials(files, config.node, log, time.time)

    def call(wish: Wish) -> Link:
        return dial(wish.source, str(wish.source_address), config.peer_port, credentials)

    hand_over = HandOver(Conntrack(), call, crew.spawn, log, time.monotonic)

    def call_owner(tidings: Tidings) -> Link:
        return dial(tidings.node, str(tidings.node_address), config.peer_port, credentials)

    herald = Herald(call_owner, crew.spawn, log, time.monotonic)

    def notice(node: str, uid: str, addresses: tuple[IPAddress, ...]) -> None:
        post(CutOver(node, uid, addresses))

    answer, port = hand_over.answer, config.peer_port
    servers = [
        PeerServer(str(one), port, credentials, answer, crew.spawn, log, notice=notice)
        for one in addresses
    ]
    crew.start("hand-over", hand_over.run, hand_over.stop)
    crew.start("herald", herald.run, herald.stop)
    for one, server in zip(addresses, servers, strict=True):
        crew.start(f"peers-ipv{one.version}", server.run, server.stop)

    def refused() -> float:
        return float(sum(server.refused for server in servers))

    shown = peer_metrics(credentials.seconds_left, refused)
    return Peering(hand_over.want, herald.want, newcomers.welcome, (*hand_over.metrics(), *shown))


def peer_metrics(
    seconds_left: Callable[[], float], refused: Callable[[], float]
) -> tuple[Metric, ...]:
    """Of this node's certificate, and of who was refused."""
    return (
        Gauge(
            "tortie_peer_certificate_left_seconds",
            "How long the certificate for other agents is still good.",
            seconds_left,
        ),
        Readings(
            "tortie_peer_refusals_total",
            "Connections of other agents, or of others, that were refused.",
            (),
            lambda: {(): refused()},
            "counter",
        ),
    )


def open_table(addresses: tuple[IPAddress, ...], log: Log) -> Conntrack | None:
    """The connection table, if this kernel lets it be read."""
    try:
        table = Conntrack()
        table.flows(addresses)
    except (TortieError, OSError) as error:
        log.error("conntrack_unavailable", reason=first_line(error))
        return None
    return table


def _known(files: StatusFiles) -> Callable[[Endpoint], bool]:
    def is_known(endpoint: Endpoint) -> bool:
        try:
            return speaks_of(files.body(status_name(endpoint)), endpoint)
        except KernelError:
            return False

    return is_known
