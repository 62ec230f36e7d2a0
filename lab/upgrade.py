"""`lab upgrade`: agents and controllers are replaced while a VM migrates again and again.

Two versions stand side by side on every node. An upgrade begins at a random moment of a migration:
node by node, in random order, the other version is installed, the agent is told to stop (SIGTERM),
and the new one is started when it has ended, as a rollout does; then the controllers, one after
the other, so that the lease changes hands. Migrations go on until it is over. Where the versions
differ the rollout waits at each node for a whole migration, with the new executable beside the old
agent, and for another one with the node's new agent among old ones. Probes from three places and a
connection from each run all the while, and the same migrations without an upgrade come in between:
what they lose is what an upgrade may.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

from cni_plugin.bundle import Bundle
from lab import clock, control, names
from lab.children import Child
from lab.cluster import Process, bring_up, in_api, make_way, meshed, start_agent, until
from lab.cutover import report_from_json
from lab.datastore import KUBERNETES, settings
from lab.interrupts import interruptible, uninterrupted
from lab.measure import agent_log, await_echo, guest_ips, start_probes, start_streams
from lab.nodes import in_netns
from lab.objects import LabVMI
from lab.probes import series_from_json
from lab.processes import Recorded, in_namespaces, namespace_inodes, spawn
from lab.results import conclude
from lab.state import CHECKOUT, StateDir, lab_lock
from lab.stream import StreamReport
from lab.teardown import tear_down
from lab.tools import LabError
from lab.topology import Topology
from lab.upgrade_rows import (
    NETWORK_MS,
    Restart,
    Stretch,
    Window,
    allowance,
    network_ms,
    rows_of,
    strays,
)
from lab.versions import PREFIX, pack, put_in_use, version_of
from libtortie.errors import NotFound
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.leases import Lease

NODES = 3
CONVERGENCE = "1s"
VM = "upgraded"
BLACKOUT_MS = 50.0
QUIET_S = 0.5
LATEST_S = 3.0
"""Before this has passed since its beginning, in seconds, a migration has ended."""
STOP_S = 120.0
LEASE = "tortie-controllers"
LEASE_NAMESPACE = "kube-system"
CONTROLLERS = ("controllers a", "controllers b")
ELECTION = ("lease-duration=4s", "renew-deadline=3s", "retry-period=500ms")
TOLD_MS = (-8000.0, 8000.0)
UNTOLD = frozenset({"start_up", "apply_recovered", "watch_found"})
GRACE = "5s"
"""Of the collector: short, so that it judges while VMs move."""


@dataclass(slots=True)
class Scene:
    """The lab, both versions, and which of them is in use."""

    state: StateDir
    topology: Topology
    bundles: tuple[Bundle, Bundle]
    random: random.Random
    drain: float | None
    paced: bool = False
    """A rollout lets migrations pass at each of its steps."""
    current: int = 0
    moves: int = 0
    """Migrations that are over."""
    places: dict[str, str] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)

    @property
    def bundle(self) -> Bundle:
        """The version in use."""
        return self.bundles[self.current]


def run_upgrades(
    state: StateDir, out: Path, runs: int, seed: int, *, old: Path, drain: float | None
) -> bool:
    """So many upgrades to and fro; True when none of them has cost anything."""
    found: list[Stretch] = []
    with lab_lock(), interruptible():
        make_way(state)
        try:
            topology = bring_up(state, NODES, CONVERGENCE, print, datastore=KUBERNETES)
            bundles = (
                pack(state.bundles / "old", "0.0.1+old", old),
                pack(state.bundles / "new", "0.0.2+new", CHECKOUT),
            )
            scene = Scene(
                state, topology, bundles, random.Random(seed), drain, paced=old != CHECKOUT
            )
            _prepare(scene)
            with _connections(scene) as streams:
                for number in range(runs):
                    found.append(_stretch(scene, streams, upgrades=False))
                    found.append(_stretch(scene, streams, upgrades=True))
                    _tell(number, runs, scene, found)
        finally:
            with uninterrupted():
                tear_down(state)
    figures = {"seed": seed, "stretches": [asdict(one) for one in found]}
    return conclude(out, rows_of(found), figures, print)


def _tell(number: int, runs: int, scene: Scene, found: Sequence[Stretch]) -> None:
    stretch = found[-1]
    away = {one.node: f"{one.away_ms:.0f} ms" for one in stretch.restarts}
    lost = strays(stretch, allowance([one for one in found if not one.upgraded]))
    print(
        f"{number + 1}/{runs} to {scene.bundle.name}: {len(stretch.windows)} migrations,"
        f" agents away {away}, extra probes lost {lost}",
        flush=True,
    )
    if any(lost.values()):
        print("\n".join(_story(scene, stretch)), flush=True)


def _story(scene: Scene, stretch: Stretch) -> Iterator[str]:
    """What agents did around each cut-over that cost more than it should, for who looks for why."""
    log = tuple(agent_log(scene.state, scene.topology, stretch.windows[0].unplugged_ns))
    for window, late in zip(stretch.windows, network_ms(stretch), strict=True):
        if late <= NETWORK_MS:
            continue
        yield f"  a cut-over cost {late:.0f} ms; agents, in ms after the guest appeared:"
        for one in log:
            after = clock.ms(one.t_ns - window.plugged_ns)
            if TOLD_MS[0] <= after <= TOLD_MS[1] and one.event not in UNTOLD:
                told = ("endpoint", "endpoints", "from", "to", "reason")
                what = " ".join(str(one.fields[key]) for key in told if key in one.fields)
                yield f"  {after:9.0f} {one.node} {one.event} {what}"


# -- before -------------------------------------------------------------------------------------


def _prepare(scene: Scene) -> None:
    """Agents and controllers of the first version, a VM, and clients in three places."""
    state = scene.state
    for node in scene.topology.nodes:
        if scene.drain is not None:
            path = state.node(node.name, "etc") / "node.yaml"
            config = yaml.safe_load(path.read_text())
            path.write_text(yaml.safe_dump({**config, "drain_seconds": scene.drain}))
        _install(scene, node)
        _restart_agent(scene, node)
    for name in CONTROLLERS:
        child = _start_controllers(scene, name)
        until(
            lambda: bool(_lease(scene).spec.holder_identity),
            f"{name} does not lead; see log/{_log_of(name)}",
            child=child,
        )
    control.create_vm(VM, scene.topology.nodes[0].name)
    scene.addresses = guest_ips(control.await_vm(VM))
    scene.places = {names.EXT: names.netns(names.EXT)}
    for node in scene.topology.nodes[1:]:
        pod = f"client-{node.name}"
        control.create_pod(pod, node.name)
        scene.places[pod] = names.pod_netns(pod, control.await_pod(pod).metadata.uid)


@contextmanager
def _connections(scene: Scene) -> Iterator[dict[str, Child]]:
    streams: dict[str, Child] = {}
    try:
        for place, netns in scene.places.items():
            for address in scene.addresses.values():
                await_echo(address, netns)
            for version, stream in start_streams(scene.state, scene.addresses, netns).items():
                streams[names.prober(place, version)] = stream
        yield streams
    finally:
        for stream in streams.values():
            stream.close()


# -- one stretch --------------------------------------------------------------------------------


def _stretch(scene: Scene, streams: dict[str, Child], *, upgrades: bool) -> Stretch:
    """A migration, or as many as an upgrade takes. Raises `LabError` when one fails."""
    leader, birds = _lease(scene), _birds(scene)
    windows: list[Window] = []
    moment = scene.random.uniform(0, LATEST_S)
    with start_probes(scene.state, scene.addresses, scene.places) as probes:
        threading.Event().wait(QUIET_S)
        rollout = _Rollout(scene, moment)
        if upgrades:
            rollout.start()
        try:
            windows.append(_migrate(scene))
            while rollout.is_alive():
                windows.append(_migrate(scene))
        finally:
            rollout.wanted = False
            if upgrades:
                rollout.join()
        if rollout.failure is not None:
            raise rollout.failure
        threading.Event().wait(QUIET_S)
        series = series_from_json(probes.ask()["series"])
    return Stretch(
        windows=tuple(windows),
        lost_at={place: one.lost_at for place, one in series.items()},
        sent={place: one.sent for place, one in series.items()},
        survived={
            place: StreamReport(**stream.ask()).survived for place, stream in streams.items()
        },
        restarts=tuple(rollout.restarts),
        leaders=_lease(scene).spec.lease_transitions - leader.spec.lease_transitions,
        bird_lived=_birds(scene) == birds,
        address_kept=guest_ips(control.get(LabVMI, VM)) == scene.addresses,
        moments={"began_s": moment} if upgrades else {},
    )


def _migrate(scene: Scene) -> Window:
    """To the next node."""
    nodes = [node.name for node in scene.topology.nodes]
    here = control.get(LabVMI, VM).status.node_name
    target = nodes[(nodes.index(here) + 1) % len(nodes)]
    job = control.create_migration(VM, target, {names.ANNOTATION_BLACKOUT: f"{BLACKOUT_MS:g}"})
    over = control.await_migration(job.metadata.name, lambda _: None)
    if over.status.phase != "Succeeded":
        why = over.status.migration_state.failure_reason
        raise LabError(f"the migration from {here} to {target}: {over.status.phase} {why}")
    report = report_from_json(over.metadata.annotations[names.ANNOTATION_CUTOVER])
    scene.moves += 1
    return Window(report.unplugged_ns, report.plugged_ns)


class _Rollout(threading.Thread):
    """An upgrade of everything, from a moment on; `failure` is what stopped it."""

    def __init__(self, scene: Scene, moment: float) -> None:
        super().__init__(name="rollout")
        self._scene, self._moment = scene, moment
        self.restarts: list[Restart] = []
        self.wanted = True
        """False: no migration comes any more."""
        self.failure: Exception | None = None

    def run(self) -> None:
        """The thread's body."""
        try:
            threading.Event().wait(self._moment)
            scene = self._scene
            scene.current = 1 - scene.current
            nodes = list(scene.topology.nodes)
            scene.random.shuffle(nodes)
            for node in nodes:
                _install(scene, node)
                self._let_pass()
                self.restarts.append(_restart_agent(scene, node))
                self._let_pass()
            for name in CONTROLLERS:
                _replace_controllers(scene, name)
            until(lambda: meshed(scene.state, NODES), "not every BGP session is established")
        except Exception as error:  # told by whoever waits for the end
            self.failure = error

    def _let_pass(self) -> None:
        """Wait for the end of a migration that begins from now on, where that is wanted."""
        if self._scene.paced:
            enough = self._scene.moves + 2
            over = "no migration ends while two versions are in use"
            until(lambda: self._scene.moves >= enough or not self.wanted, over, STOP_S)


# -- what is replaced ---------------------------------------------------------------------------


def _install(scene: Scene, node: names.LabNode) -> None:
    """The version in use, beside the agent of the other one."""
    put_in_use(scene.state, node, scene.bundle, settings(scene.state, KUBERNETES))


def _restart_agent(scene: Scene, node: names.LabNode) -> Restart:
    """Stop, start, as a rollout does; returns when the new one serves."""
    state = scene.state
    old = _alive(state, f"agent of {node.name}")
    began = time.monotonic()
    _end(state, old)
    ended = time.monotonic()
    child = start_agent(state, node.name, f"{PREFIX}/bin/tortie-node")
    until(
        (state.node(node.name, "run") / "cni.sock").exists,
        f"the agent of {node.name} does not serve CNI; see log/agent-{node.name}.log",
        child=child,
    )
    served = time.monotonic()
    (new,) = _alive(state, f"agent of {node.name}")
    found = version_of(new.pid)
    if found != scene.bundle.name:
        raise LabError(f"the agent of {node.name} is of {found or 'no version'}")
    return Restart(node.name, found, 1000 * (ended - began), 1000 * (served - ended))


def _replace_controllers(scene: Scene, name: str) -> None:
    """The next one is ended when somebody leads again."""
    _end(scene.state, _alive(scene.state, name))
    child = _start_controllers(scene, name)
    before = _lease(scene).spec.renew_time

    def led() -> bool:
        spec = _lease(scene).spec
        return bool(spec.holder_identity) and spec.renew_time != before

    until(led, f"no controller leads; see log/{_log_of(name)}", child=child)


def _start_controllers(scene: Scene, name: str) -> Process:
    command = [str(scene.bundle.source / "bin" / "tortie-controllers"), "gc", "--grace", GRACE]
    command += ["--leader-elect", f"--leader-elect-resource-namespace={LEASE_NAMESPACE}"]
    command += [f"--leader-elect-{option}" for option in ELECTION]
    return spawn(
        scene.state.ledger,
        name,
        in_netns(names.netns(names.API), command),
        log=scene.state.logs / _log_of(name),
        env={
            **os.environ,
            "DATASTORE_TYPE": KUBERNETES,
            "K8S_API_ENDPOINT": names.api_url(),
            "CALICO_API_GROUP": str(settings(scene.state, KUBERNETES)["calico_api_group"]),
        },
    )


def _log_of(name: str) -> str:
    return f"{name.replace(' ', '-')}.log"


def _alive(state: StateDir, name: str) -> tuple[Recorded, ...]:
    return tuple(one for one in state.ledger.alive() if one.name == name)


def _end(state: StateDir, processes: Sequence[Recorded]) -> None:
    """As systemd and kubelet do, but without their SIGKILL."""
    for one in processes:
        os.kill(one.pid, signal.SIGTERM)
    for one in processes:
        ended = f"{one.name} does not end"
        until(lambda one=one: one not in state.ledger.alive(), ended, STOP_S)  # type: ignore[misc]  # bound now


def _lease(scene: Scene) -> Lease:
    def work() -> Lease:
        client = HttpKubeClient(direct(names.api_url()))
        try:
            return client.get(Lease, LEASE, LEASE_NAMESPACE)
        except NotFound:
            return Lease()
        finally:
            client.close()

    return in_api(work)


def _birds(scene: Scene) -> frozenset[int]:
    """Processes of the nodes' BIRDs."""
    inside = in_namespaces(namespace_inodes(node.netns for node in scene.topology.nodes))
    return frozenset(pid for pid in inside if _program(pid) == "bird")


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
