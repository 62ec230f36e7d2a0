"""`tortie-node`: start the parts, wire them, wait for a signal or a failure, stop them.

A stop leaves the kernel and BIRD as they are: workloads run on, and so do their routes. The next
start picks up where this one left off. A failed thread ends the process with `CRASHED`, for its
keeper to start the next at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from cni_plugin.calls import CallMetrics
from cni_plugin.frame import Request, Response
from felix_shim.accepted_config import accept
from felix_shim.bird_daemon import BgpSources, bgp_sources, bird_runner
from felix_shim.chores import Identity
from felix_shim.cluster import followed
from felix_shim.cni_parts import Opened, be_worker, server
from felix_shim.cni_server import CNIServer, take_lock
from felix_shim.cni_workers import Worker, Workers, fork_workers, number_of
from felix_shim.collector import Collector, DeletedVMs
from felix_shim.config import NodeConfig, load_config
from felix_shim.courtesy import Courtesy
from felix_shim.crew import Crew
from felix_shim.datastore_id import init_datastore, open_remembered
from felix_shim.departure import Departure
from felix_shim.drivers.announcements import Announcements
from felix_shim.drivers.nftables import Nftables
from felix_shim.drivers.routetable import RouteTable
from felix_shim.drivers.status_files import StatusFiles
from felix_shim.drivers.sysctls import NodeSettings, Wires, ensure_gateways
from felix_shim.events import Event, Instance, Migration
from felix_shim.inbox import Inbox
from felix_shim.keeper import CRASHED, REFUSED, Past, keep, spare_collector
from felix_shim.kube_events import NodeEvents
from felix_shim.lanes import ThreadLane, at_once
from felix_shim.model import Endpoint
from felix_shim.monitor import Monitor
from felix_shim.node import register
from felix_shim.outlets import LANES, POLITE, Outlets
from felix_shim.overlay_layer import Layer, block_sources
from felix_shim.own_addresses import OwnAddresses
from felix_shim.owners import RETRY, SETTLE_SECONDS, OwnerKeeper
from felix_shim.peering import Peering, start_peering
from felix_shim.plugin_kubeconfig import KubeconfigKeeper
from felix_shim.pod_labels import start_pod_labels
from felix_shim.policy import PolicySet
from felix_shim.policy_source import policy_kinds, start_policy_sources
from felix_shim.proxy_keeper import ProxyKeeper, proxy_command
from felix_shim.reconciler import Reconciler
from felix_shim.rim import Clocks, Rim
from felix_shim.sources import KernelSource, KubeSource, StoreSource
from felix_shim.startup import StartUp
from felix_shim.state import Memory, StateFile, boot_id
from felix_shim.telling import keep_history, tell_condition, tell_events
from felix_shim.watchdog import Watchdog
from felix_shim.world import World
from ipam.annals import Annals
from ipam.attempts import DEFAULT_RETRY, Attempts
from ipam.client import IPAMClient
from ipam.gc import Means
from libtortie.complaint import Complaint
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput, TortieError, Unavailable, first_line
from libtortie.jsonlog import JsonLog, bridge_logging, open_log
from libtortie.kube.client import HttpKubeClient
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.tunnel import NetlinkTunnels
from libtortie.signals import set_on

DEFAULT_CONFIG = "/etc/tortie/node.yaml"
DEFAULT_PROXY_CONFIG = "/etc/tortie/migration-proxy.yaml"
SWITCH_INTERVAL = 0.0005
"""Seconds. Python's default of 5 ms would let a busy thread hold up a sign of a VM for as long."""
STOP_SECONDS = 20.0
OPEN_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What everything else is built from."""

    config: NodeConfig
    start_up: StartUp
    store: Datastore
    kube: HttpKubeClient | None
    kernel: NetlinkKernel
    tunnels: NetlinkTunnels
    log: JsonLog
    crew: Crew
    monitor: Monitor
    annals: Annals | None = None
    workers: tuple[Worker, ...] = ()

    @property
    def node(self) -> str:
        """The node's name."""
        return self.config.node


@dataclass(frozen=True, slots=True)
class Hands:
    """The threads that act for the reconciler."""

    lanes: Mapping[str, ThreadLane]
    owners: OwnerKeeper
    sniffers: Announcements
    kernel: KernelSource
    bgp: BgpSources
    events: NodeEvents | None
    peering: Peering


@click.command(name="tortie-node")
@click.option(
    "--config", "path", default="", help=f"Configuration file (default {DEFAULT_CONFIG})."
)
@click.option(
    "--init-datastore",
    "init",
    is_flag=True,
    help="Make this node's SQLite file, or accept the one that is there, in place of the one this "
    "node remembers; then exit.",
)
@click.option(
    "--migration-proxy",
    "proxy",
    is_flag=True,
    help=f"Run this node's migration proxy too (by default with {DEFAULT_PROXY_CONFIG}).",
)
@click.option(
    "--keeper/--no-keeper",
    "kept",
    default=True,
    help="Stay behind the agent, and start the next at once when it dies (the default).",
)
def main(path: str, init: bool, proxy: bool, kept: bool) -> None:
    """The node agent: serves CNI, programs policy and routes, follows live migrations."""
    past = keep() if kept and not init else Past()  # each agent reads its configuration anew
    try:
        config = load_config(path or DEFAULT_CONFIG, required=bool(path), environ=os.environ)
        if proxy and not config.migration_proxy:
            config = config.model_copy(update={"migration_proxy": DEFAULT_PROXY_CONFIG})
        if init:
            click.echo(_init_datastore(config))
            return
        log = open_log(config.log_file, config.log_level, config.node, config.log_limits)
    except InvalidInput as error:
        raise click.ClickException(str(error)) from error
    sys.exit(run(config, log, past))


def _init_datastore(config: NodeConfig) -> str:
    """The one file, with no agent running meanwhile. Raises `ClickException`."""
    try:
        with take_lock(Path(config.run_dir) / "agent.lock"):
            return init_datastore(config.datastore(config.node), config.datastore_id_file)
    except (TortieError, OSError) as error:
        raise click.ClickException(str(error)) from error


def run(config: NodeConfig, log: JsonLog, past: Past) -> int:
    """The process's life; returns its exit status."""
    count = number_of(config.cni_workers, len(os.sched_getaffinity(0)))
    workers = fork_workers(count, partial(be_worker, config))
    sys.setswitchinterval(SWITCH_INTERVAL)
    crew = Crew(log)
    monitor = Monitor(config, log, crew)
    accept(config.state_dir, config.digest, config.unknown_keys, log)
    set_on(crew.over, signal.SIGTERM, signal.SIGINT, again=crew.hurry)
    bridge_logging(log)
    try:
        with ExitStack() as stack:
            parts = _open_parts(monitor, stack, past)
            if parts is not None:
                _live(replace(parts, workers=workers))
    except (TortieError, OSError) as error:
        log.error("agent_failed", reason=f"{type(error).__name__}: {first_line(error)}")
        return CRASHED if monitor.serving else REFUSED
    except Exception as error:
        log.error("agent_failed", reason=repr(error), traceback=traceback.format_exc())
        return CRASHED
    log.info("agent_stopped", failed=crew.failed)
    return CRASHED if crew.failed else 0


def _open_parts(monitor: Monitor, stack: ExitStack, past: Past) -> Parts | None:
    """Lock, kernel, API client, datastore, the node's start; None when the end came first."""
    config, log, crew = monitor.config, monitor.log, monitor.crew
    stack.enter_context(take_lock(Path(config.run_dir) / "agent.lock"))
    monitor.telemetry.serve(past.metric())
    monitor.begin()
    kernel = NetlinkKernel()
    stack.callback(kernel.close)
    tunnels = NetlinkTunnels()
    stack.callback(tunnels.close)
    kube = _open_kube(config)
    if kube is not None:
        stack.callback(kube.close)
    _keep_kubeconfig(monitor)
    store = _open_store(config, log, crew)
    if store is None:
        return None
    stack.callback(store.close)
    monitor.depends_on(store, kube)
    start_up = StartUp(config, kernel, store, kube, log, crew.over)
    if not start_up.begin():
        return None
    facts = start_up.facts()
    told = {"ip": facts.address, "link": facts.link} if facts.address is not None else {}
    if facts.address6 is not None:
        told |= {"ip6": facts.address6, "link6": facts.link6}
    log.info("agent_started", **told, kube=kube is not None, **past.fields())
    return Parts(config, start_up, store, kube, kernel, tunnels, log, crew, monitor)


def _open_store(config: NodeConfig, log: JsonLog, crew: Crew) -> Datastore | None:
    """The datastore, waited for as long as it is merely unavailable."""
    wanted = config.datastore(config.node)
    while not crew.over.is_set():
        try:
            return open_remembered(wanted, config.datastore_id_file)
        except Unavailable as error:
            log.warning("datastore_unavailable", reason=first_line(error))
            crew.over.wait(OPEN_RETRY_SECONDS)
    return None


def _keep_kubeconfig(monitor: Monitor) -> None:
    """The plugin's kubeconfig, from now on: its fallback serves while the datastore is away."""
    config, api = monitor.config, monitor.config.kube()
    if config.cni_kubeconfig and api is not None:
        keeper = KubeconfigKeeper(Path(config.cni_kubeconfig), api, monitor.log)
        monitor.crew.start("cni-kubeconfig", keeper.run, keeper.stop)
        monitor.telemetry.serve(keeper.metric())


def _open_kube(config: NodeConfig) -> HttpKubeClient | None:
    found = config.kube()
    return None if found is None else HttpKubeClient(found)


def _live(parts: Parts) -> None:
    """Start every thread in dependency order, serve until the end, stop in reverse."""
    crew, log, monitor = parts.crew, parts.log, parts.monitor
    inbox = Inbox(monitor.telemetry.waited)
    courtesy = Courtesy()
    lanes = {
        name: ThreadLane(name, inbox.post, courtesy.give_way if name in POLITE else at_once)
        for name in LANES
    }
    for name, lane in lanes.items():
        crew.start(f"lane-{name}", lane.run, lane.stop)
    watchdog = Watchdog(lanes, log)
    crew.start("watchdog", watchdog.run, watchdog.stop)
    telemetry = monitor.telemetry
    annals = keep_history(parts.config, parts.store, crew, log, _now, telemetry=telemetry)
    ipam = IPAMClient(parts.store, parts.node, now=_now, annals=annals)
    promoting = ipam.with_retry(RETRY)
    owners = OwnerKeeper(promoting.promote, log, time.monotonic, SETTLE_SECONDS)
    sniffers = Announcements(inbox.post, log)
    of_kernel = courtesy.in_bursts("kernel", inbox.post)
    kernel = KernelSource(parts.kernel, of_kernel, time.monotonic)
    bgp = bgp_sources(parts.config, parts.kube, inbox.post, log)
    events = tell_events(parts.config, parts.kube, crew, log, _now)
    peering = start_peering(parts.config, parts.start_up.own(), crew, log, inbox.post)
    telemetry.serve(*peering.metrics)
    parts = replace(parts, annals=annals)
    hands = Hands(lanes, owners, sniffers, kernel, bgp, events, peering)
    outlets = _outlets(parts, hands, courtesy)
    reconciler = _reconciler(parts, outlets, inbox)
    monitor.show(inbox, reconciler.world.roster, owners)
    crew.start("start-up", parts.start_up.run, parts.start_up.stop)
    crew.start("owners", owners.run, owners.stop)
    crew.start("announcements", sniffers.run, sniffers.stop)
    crew.start("kernel", kernel.run, parts.kernel.close)
    crew.start("reconciler", reconciler.run, inbox.close)
    bgp.start(crew)
    own = _own_addresses(parts, ipam)
    crew.start("own-addresses", own.run, own.stop)
    labels = start_pod_labels(parts.config, parts.store, parts.kube, crew, log)
    of_api = parts.config.datastore_type == "kubernetes"
    blocks = block_sources(parts.store, inbox.post, log, of_api=of_api)
    for source in (
        *_followers(parts, inbox, courtesy, (own.notice, labels, *(one.notice for one in blocks))),
        *blocks,
    ):
        crew.start(f"follow-{source.name}", source.run, source.stop)
    if parts.kube is not None:
        start_policy_sources(parts.config, parts.kube, crew, inbox.post, log)
    try:
        _serve(parts, ipam, reconciler, courtesy)
    finally:
        left = crew.dismiss(STOP_SECONDS)
        if left:
            log.error("threads_left", threads=left)


def _own_addresses(parts: Parts, ipam: IPAMClient) -> OwnAddresses:
    attempts = Attempts(parts.store, DEFAULT_RETRY, time.monotonic, time.sleep)
    pod_cidr = parts.config.use_pod_cidr
    return OwnAddresses(parts.store, ipam, attempts, parts.node, parts.log, pod_cidr)


def _collect_addresses(parts: Parts, kube: HttpKubeClient) -> None:
    """Free what stopped VMs leave behind, on threads that nobody waits for."""
    means = Means(parts.store, kube, _now, annals=parts.annals)
    collector = Collector(means, parts.node, parts.log, parts.config.vm_gone_grace_seconds)
    deleted = DeletedVMs(kube, collector.nudge, parts.log)
    parts.crew.start("collector", collector.run, collector.stop)
    parts.crew.start("follow-VirtualMachine", deleted.run, deleted.stop)


def _serve(parts: Parts, ipam: IPAMClient, reconciler: Reconciler, courtesy: Courtesy) -> None:
    """Answer CNI requests from the moment that policy is in the kernel, until the end."""
    crew, log = parts.crew, parts.log
    while not reconciler.rules_ready:
        if crew.over.wait(0.01):
            return
    calls = CallMetrics()
    workers = Workers(parts.workers, log, calls.observe, courtesy.count)
    own = (*calls.all(), *workers.metrics(), *courtesy.metrics(), *reconciler.metrics())
    parts.monitor.telemetry.serve(*own)
    serve = server(
        parts.config,
        Opened(parts.store, parts.kube, parts.kernel, ipam),
        log.event,
        calls.observe,
        table_ready=lambda: reconciler.rules_ready,
        at_rest=courtesy.at_rest,
    )

    def answer(request: Request) -> Response:
        with courtesy.request():
            return serve(request)

    workers.begin(crew.start)
    cni = CNIServer(parts.config.cni_socket, answer, crew.spawn, log, pass_on=workers.take)
    cni.open()
    crew.start("cni", cni.run)
    parts.monitor.serves(cni)
    log.info("cni_serving", socket=parts.config.cni_socket)
    condition = tell_condition(parts.config, parts.kube, crew, log, _now)
    if parts.kube is not None:
        _collect_addresses(parts, parts.kube)
    proxy = _keep_proxy(parts)
    spare_collector()
    crew.over.wait()
    if condition is not None and not crew.failed:
        condition.leave()
    roster, patience = reconciler.world.roster, parts.config.drain_seconds
    departure = Departure(roster, patience, crew.in_haste, log, time.monotonic)
    departure.leave(cni.stop, proxy.stop if proxy is not None else None, reconciler.leave)


def _keep_proxy(parts: Parts) -> ProxyKeeper | None:
    """The migration proxy, if it was asked for."""
    config, crew = parts.config, parts.crew
    if not config.migration_proxy:
        return None
    control = Path(config.run_dir) / "migration-proxy.sock"
    command = proxy_command(config.migration_proxy, control, parts.node)
    keeper = ProxyKeeper(command, control, parts.log, lambda: crew.failed, crew.hurry.is_set)
    crew.start("migration-proxy", keeper.run, keeper.stop)
    return keeper


def _reconciler(parts: Parts, outlets: Outlets, inbox: Inbox) -> Reconciler:
    state = StateFile(parts.config.state_file, boot_id())

    def recall(world: World) -> Memory:
        try:
            return state.load(time.monotonic(), world.settings)
        except (TortieError, OSError) as error:
            parts.log.error("state_unreadable", path=state.path, reason=first_line(error))
            return Memory()

    address, address6 = parts.start_up.address(), parts.start_up.address6()
    identity = Identity(
        node=parts.node,
        address=address.address if address is not None else None,
        kube=parts.kube is not None,
        uplinks=parts.start_up.uplinks(),
        kernel_raises=parts.config.bird.mode == "off",
        policy_kinds=frozenset(policy_kinds(parts.config)) if parts.kube else frozenset(),
        between_nodes=parts.config.ports_between_nodes,
        address6=address6.address if address6 is not None else None,
        router_id=parts.config.router_id,
        bfd=parts.config.bird.detection,
        secret_namespace=parts.config.bird.secret_namespace if parts.kube is not None else "",
    )
    clocks = Clocks(time.monotonic, time.time_ns)
    return Reconciler(identity, Rim(outlets, inbox, parts.log, clocks, recall))


def _outlets(parts: Parts, hands: Hands, courtesy: Courtesy) -> Outlets:
    config, bgp = parts.config, hands.bgp
    nft = Nftables()
    files = StatusFiles(config.status_dir)
    state = StateFile(config.state_file, boot_id())
    settings = NodeSettings(parts.kernel, tuple(parts.start_up.uplinks()))
    gateways = Complaint(parts.log, "ipv6_gateway_missing")

    def apply_policy(rules: PolicySet, wires: Wires) -> frozenset[str]:
        failed = settings.ensure(wires, rules.ipv6_interfaces)
        nft.apply(rules)
        gateways.about(ensure_gateways(parts.kernel, rules.ipv6_interfaces))
        return failed

    return Outlets(
        routes=RouteTable(parts.kernel, time.monotonic),
        lanes=hands.lanes,
        apply_policy=apply_policy,
        check_rules=nft.check,
        write_status=files.write,
        run_bird=bird_runner(config, parts.kernel, parts.log),
        want_passwords=bgp.passwords.want if bgp.passwords is not None else None,
        want_services=bgp.services.want if bgp.services is not None else None,
        save=lambda memory: state.save(memory, time.monotonic()),
        survey=hands.kernel.survey,
        register=lambda _: _register(parts),
        listen=hands.sniffers.watch,
        nudge=hands.sniffers.nudge,
        own=hands.owners.want,
        warn=hands.events.warn if hands.events is not None else _no_event,
        closed=hands.events.closed if hands.events is not None else None,
        ask_raises=bgp.ask_raises,
        lay_overlay=Layer(
            parts.kernel, parts.tunnels, parts.start_up.uplinks(), config.mtu_file, parts.log
        ).outlet(),
        exchange=hands.peering.exchange,
        tell=hands.peering.tell,
        welcome=hands.peering.welcome,
        press=courtesy.press,
    )


def _register(parts: Parts) -> None:
    register(parts.store, parts.start_up.facts())


def _no_event(endpoint: Endpoint, text: str) -> None:
    """Without an API there is the log alone."""


def _followers(
    parts: Parts, inbox: Inbox, courtesy: Courtesy, notices: tuple[Callable[[Event], None], ...]
) -> list[StoreSource | KubeSource]:
    def post(event: Event) -> None:
        inbox.post(event)
        for notice in notices:
            notice(event)

    of_api = parts.config.datastore_type == "kubernetes"
    sources: list[StoreSource | KubeSource] = [
        StoreSource(parts.store, scope, courtesy.in_bursts("store", post), parts.log, of_api)
        for scope in followed(parts.node)
    ]
    if parts.kube is not None:
        sources.append(KubeSource(parts.kube, Migration, inbox.post, parts.log))
        sources.append(KubeSource(parts.kube, Instance, inbox.post, parts.log))
    return sources


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    main()
