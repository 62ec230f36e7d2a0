"""The CNI verbs over injected ports: one story per verb, each on one screen.

- ADD either completes or takes back what it did; killed half-way, its repeat completes it and
  DEL or GC cleans up. All steps are idempotent by attachment, so a repeat returns the same.
- DEL is keyed on the container id. What is missing is success; what belongs to a newer sandbox
  of the same pod is left alone.
- An ADD that its caller has given up makes nothing, for its DEL may be over already.
- Waiting for another call for the same pod is nobody's failure: it is not in a call's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cni_plugin import check, detach, gc, interfaces, readiness, status
from cni_plugin.attach import Attaching
from cni_plugin.caller import require_caller
from cni_plugin.calls import ENDPOINT, IDENTITY, IPAM, LOCK, POLICY, WIRING, note, phase
from cni_plugin.endpoint import Place, place_of
from cni_plugin.errors import InvalidEnvironment, UnknownContainer
from cni_plugin.ports import Ports
from cni_plugin.recall import recalled
from cni_plugin.skel import CmdArgs
from cni_plugin.types import NetConf, Result
from cni_plugin.undo import Undo
from libtortie.errors import TortieError, Unavailable
from libtortie.linux.port import Link

__all__ = ["Plugin", "Ports"]

LOCK_SECONDS = 60.0


@contextmanager
def locked(ports: Ports, key: str) -> Iterator[None]:
    """Hold an attachment's lock; waiting for it is a phase of its own."""
    with ExitStack() as stack:
        with phase(LOCK):
            stack.enter_context(ports.locks.hold(key, LOCK_SECONDS))
        yield


class Plugin:
    """`skel.PluginVerbs`."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def cmd_add(self, args: CmdArgs, conf: NetConf) -> Result:
        """Attach a sandbox (CNI spec, ADD)."""
        p = self._ports
        self._require_agent()
        readiness.require(conf.readiness_gates, p.reaches, p.monotonic, p.sleep)
        self._require_sandbox(args)
        with phase(IDENTITY):
            workload = p.identify.workload(args, conf)
        note(**workload.whose)
        place = place_of(args, p.node)
        with locked(p, place.lock_key), ExitStack() as stack:
            require_caller()
            workload = interfaces.seated(p, args, conf.name, workload)
            undo = Undo(stack, p.monotonic, p.sleep, p.log)
            step = Attaching(p, args, conf, workload, place, undo)
            step.require_readable_wishes()
            step.require_free_name()
            with phase(IPAM):
                got = step.assign_addresses()
            with phase(WIRING):
                ends = step.wire_veth(got)
            with phase(ENDPOINT):
                step.write_endpoint(got, ends)
            with phase(POLICY):
                step.await_policy()
            result = step.result(got, ends)
            undo.disarm()
        note(address=",".join(str(address.ip) for address in result.addresses))
        return result

    def cmd_del(self, args: CmdArgs, conf: NetConf) -> None:
        """Detach a sandbox (CNI spec, DEL). Missing things are success."""
        args = recalled(self._ports, args, conf.name)
        place = place_of(args, self._ports.node)
        with locked(self._ports, place.lock_key):
            detach.tear_down(self._ports, args, conf.name, place)

    def cmd_check(self, args: CmdArgs, conf: NetConf) -> None:
        """Compare the attachment with what ADD made (CNI spec, CHECK). Raises `CheckFailed`."""
        place = place_of(args, self._ports.node)
        with locked(self._ports, place.lock_key):
            check.check(self._ports, place, args, conf)

    def cmd_status(self, conf: NetConf) -> None:
        """Whether ADD can be served now (CNI spec, STATUS). Raises `NotReady`."""
        status.require_usable(self._ports, conf)

    def cmd_gc(self, conf: NetConf) -> None:
        """Take down every attachment of this network and node that is not listed as valid.

        Nobody's is stale without a list. An attachment being worked on is younger than the list
        and stays. Every stale one is tried; the first error is raised at the end, with the others.
        """
        p = self._ports
        if conf.valid_attachments is None:
            note(no_list=True)
            return
        self._require_agent()
        stale = [
            item
            for item in gc.find_stale(p.store, p.node, conf)
            if not p.locks.busy(place_of(item.args, p.node).lock_key)
        ]
        errors = [error for item in stale if (error := self._collect(item, conf)) is not None]
        orphans = gc.find_orphans(p.kernel.links(), p.store, p.node, conf)
        orphans = [link for link in orphans if not p.locks.busy(link.name)]
        errors += [e for link in orphans if (e := self._collect_link(link, conf)) is not None]
        if p.delegate is not None:
            try:
                p.delegate.collect()
            except TortieError as error:
                errors.append(error)
        note(stale=len(stale) + len(orphans), failed=len(errors))
        gc.raise_all(errors)

    def _require_agent(self) -> None:
        if not self._ports.policy.ready():
            raise Unavailable(status.NO_AGENT)

    def _require_sandbox(self, args: CmdArgs) -> None:
        inode = self._ports.namespaces.inode(args.netns)
        if inode is None:
            raise UnknownContainer(f"CNI_NETNS {args.netns} is not a network namespace")
        if inode == self._ports.namespaces.inode(""):
            raise InvalidEnvironment(f"CNI_NETNS {args.netns} is the node's own namespace")

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

    def _log(self, event: str, place: Place, **fields: object) -> None:
        self._ports.log(
            event,
            container_id=place.container_id,
            namespace=place.namespace,
            pod=place.pod,
            **fields,
        )
