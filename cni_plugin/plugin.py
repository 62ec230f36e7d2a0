"""The CNI verbs over injected ports: one story per verb, each on one screen.

- ADD either completes or takes back what it did; killed half-way, its repeat completes it and
  DEL or GC cleans up. All steps are idempotent by attachment, so a repeat returns the same.
- DEL is keyed on the container id. What is missing is success; what belongs to a newer sandbox
  of the same pod is left alone.
- The lock is taken first, then the clock starts: waiting in a queue is nobody's failure.
"""

from __future__ import annotations

from contextlib import ExitStack

from cni_plugin import check, dataplane, detach, gc
from cni_plugin.attach import Allocations, Attaching
from cni_plugin.endpoint import Place, place_of
from cni_plugin.errors import InvalidConfig, InvalidEnvironment, NotReady, UnknownContainer
from cni_plugin.ports import Ports
from cni_plugin.skel import CmdArgs
from cni_plugin.types import Interface, NetConf, Result
from cni_plugin.undo import Undo
from libtortie.errors import NotFound, TortieError, Unavailable
from libtortie.linux.port import Link
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import ClusterInformation

__all__ = ["Plugin", "Ports"]

LOCK_SECONDS = 60.0
CLUSTER = ResourceKey(Kind.CLUSTER_INFORMATION, "default")
NO_AGENT = (
    "no agent has programmed this node's packet filter, and a pod without policy is not "
    "started: is tortie-node running?"
)


class Plugin:
    """`skel.PluginVerbs`."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def cmd_add(self, args: CmdArgs, conf: NetConf) -> Result:
        """Attach a sandbox (CNI spec, ADD)."""
        p = self._ports
        self._require_agent()
        self._require_sandbox(args, conf)
        workload = p.identify.workload(args, conf)
        place = place_of(args, p.node)
        with p.locks.hold(place.lock_key, LOCK_SECONDS), ExitStack() as stack:
            started = p.monotonic()
            undo = Undo(stack, p.monotonic, p.sleep, p.log)
            step = Attaching(p, args, conf, workload, place, undo)
            step.require_free_name()
            allocations = step.assign_addresses()
            ends = step.wire_veth(allocations)
            step.write_endpoint(allocations, ends)
            waited = step.await_policy()
            result = _result(args, allocations, ends)
            self._log_add(place, result, p.monotonic() - started, waited)
            undo.disarm()
        return result

    def cmd_del(self, args: CmdArgs, conf: NetConf) -> None:
        """Detach a sandbox (CNI spec, DEL). Missing things are success."""
        p = self._ports
        place = place_of(args, p.node)
        with p.locks.hold(place.lock_key, LOCK_SECONDS):
            started = p.monotonic()
            detach.tear_down(p, args, conf.name, place)
            self._log("cni_del", place, duration_ms=_ms(p.monotonic() - started))

    def cmd_check(self, args: CmdArgs, conf: NetConf) -> None:
        """Compare the attachment with what ADD made (CNI spec, CHECK). Raises `CheckFailed`."""
        place = place_of(args, self._ports.node)
        with self._ports.locks.hold(place.lock_key, LOCK_SECONDS):
            check.check(self._ports, place, args, conf)

    def cmd_status(self, conf: NetConf) -> None:
        """Whether ADD can be served now (CNI spec, STATUS). Raises `NotReady`."""
        del conf
        if not self._ports.policy.ready():
            raise NotReady(NO_AGENT)
        try:
            value = self._ports.store.get(CLUSTER).value
        except NotFound:
            return
        except TortieError as error:
            raise NotReady(f"the datastore cannot be used: {error}") from error
        if isinstance(value, ClusterInformation) and value.spec.datastore_ready is False:
            raise NotReady("the datastore is locked (ClusterInformation: datastoreReady is false)")

    def cmd_gc(self, conf: NetConf) -> None:
        """Take down every attachment of this network and node that is not listed as valid.

        An attachment being worked on, or just completed, is younger than the caller's list and
        stays. Every stale one is tried; the first error is raised at the end.
        """
        p = self._ports
        if conf.valid_attachments is None:
            raise InvalidConfig("cni.dev/valid-attachments: GC needs the list; it may be empty")
        self._require_agent()
        stale = [
            item
            for item in gc.find_stale(p.store, p.node, conf, p.now())
            if not p.locks.busy(place_of(item.args, p.node).lock_key)
        ]
        errors = [error for item in stale if (error := self._collect(item, conf)) is not None]
        orphans = gc.find_orphans(p.kernel.links(), p.store, p.node, conf)
        orphans = [link for link in orphans if not p.locks.busy(link.name)]
        errors += [e for link in orphans if (e := self._collect_link(link, conf)) is not None]
        count = len(stale) + len(orphans)
        p.log("cni_gc", network=conf.name, stale=count, failed=len(errors))
        if errors:
            raise errors[0]

    def _require_agent(self) -> None:
        if not self._ports.policy.ready():
            raise Unavailable(NO_AGENT)

    def _require_sandbox(self, args: CmdArgs, conf: NetConf) -> None:
        inode = self._ports.namespaces.inode(args.netns)
        if inode is None:
            raise UnknownContainer(f"CNI_NETNS {args.netns} is not a network namespace")
        if inode == self._ports.namespaces.inode(""):
            raise InvalidEnvironment(f"CNI_NETNS {args.netns} is the node's own namespace")
        if conf.prev_result is not None:
            raise InvalidConfig("prevResult: tortie must be the first plugin of its list")

    def _collect(self, item: gc.Stale, conf: NetConf) -> TortieError | None:
        p = self._ports
        place = place_of(item.args, p.node)
        try:
            with p.locks.hold(place.lock_key, LOCK_SECONDS):
                if gc.still_stale(p.store, place, item):
                    detach.tear_down(p, item.args, conf.name, place, item.vm)
                    self._log("cni_gc_collected", place)
        except TortieError as error:
            self._log("cni_gc_failed", place, error=str(error))
            return error
        return None

    def _collect_link(self, link: Link, conf: NetConf) -> TortieError | None:
        p = self._ports
        try:
            with p.locks.hold(link.name, LOCK_SECONDS):
                now = p.kernel.link(link.name)
                if now is not None and gc.find_orphans([now], p.store, p.node, conf):
                    detach.remove_link(p, now)
                    p.log("cni_gc_link_collected", interface=link.name, alias=now.alias)
        except TortieError as error:
            p.log("cni_gc_failed", interface=link.name, error=str(error))
            return error
        return None

    def _log_add(self, place: Place, result: Result, took: float, waited: float) -> None:
        self._log(
            "cni_add",
            place,
            duration_ms=_ms(took),
            policy_wait_ms=_ms(waited),
            address=",".join(str(address.ip) for address in result.addresses),
        )

    def _log(self, event: str, place: Place, **fields: object) -> None:
        self._ports.log(
            event,
            container_id=place.container_id,
            namespace=place.namespace,
            pod=place.pod,
            **fields,
        )


def _result(args: CmdArgs, allocations: Allocations, ends: tuple[Link, Link]) -> Result:
    host, pod = ends
    return Result(
        interfaces=(
            Interface(host.name, host.mac, host.mtu),
            Interface(args.ifname, pod.mac, pod.mtu, args.netns),
        ),
        addresses=tuple(dataplane.as_interface(allocation.address) for allocation in allocations),
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
