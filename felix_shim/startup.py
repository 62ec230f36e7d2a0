"""What a node writes when it starts, in Calico's order; every step may be repeated.

Identity of the cluster → this node's Node → labels of its blocks' claims → default pools →
version and type → tiers → configurations → the node's files. Nodes may start at once, and be
killed anywhere: each step looks at what is stored, and writes only if that is still so.

While `datastoreReady` is false only this node's own records are written; nothing is made for the
cluster until somebody unlocks it. The agent does not wait for that: `run` sees to what is left.

Fatal is only an address another node has, or none to be found, and another name than what runs
here was started under. A stored object that cannot be
read, a right that is missing: named in the log, and the next step follows.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from felix_shim import defaults
from felix_shim.addresses import (
    NodeAddress,
    NodeAddress6,
    Outside,
    find_address,
    find_address6,
    interfaces,
    uplink_mtu,
)
from felix_shim.claims import label_claims
from felix_shim.config import NONE, NodeConfig
from felix_shim.ensure import ensure
from felix_shim.kube_node import ClusterFacts, cluster_facts, internal_ips
from felix_shim.node import (
    AddressTakenError,
    NodeFacts,
    RenamedError,
    claim,
    register,
    require_same_name,
    write_files,
)
from felix_shim.overlay_mtu import stored_mtu
from libtortie.datastore.port import Check, Datastore, Record
from libtortie.errors import (
    Conflict,
    InvalidInput,
    Malformed,
    NotFound,
    PartialCommit,
    TortieError,
    Unauthorized,
    Unavailable,
    first_line,
)
from libtortie.jsonlog import Log
from libtortie.kube.port import KubeReader
from libtortie.linux.port import IPNetwork, Kernel
from libtortie.model.ipam import IPAddress, IPAMConfig
from libtortie.model.keys import IPAMConfigKey, Key, Kind, ResourceKey, Resources
from libtortie.model.resources import (
    BGPConfiguration,
    ClusterInformation,
    FelixConfiguration,
    FelixConfigurationSpec,
    IPAMConfiguration,
    IPPool,
    ObjectMeta,
    Resource,
    Tier,
)

T = TypeVar("T", bound=Resource)

RETRY_SECONDS = 1.0
UNLOCK_SECONDS = 5.0
_REPEATED = (Unavailable, Conflict, PartialCommit)


class HeldBackError(TortieError):
    """A step that must wait: the text says for what."""


def new_guid() -> str:
    """32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(slots=True)
class StartUp:
    """The steps, and what they need. `over` is set when the agent is to end."""

    config: NodeConfig
    kernel: Kernel
    store: Datastore
    kube: KubeReader | None
    log: Log
    over: threading.Event
    outside: Outside = field(default_factory=Outside)
    guid: Callable[[], str] = new_guid
    complete: bool = False
    _address: NodeAddress | None = None
    _address6: NodeAddress6 | None = None
    _cluster: ClusterFacts | None = None
    _silence: str = ""
    _later: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _done: set[str] = field(default_factory=set)
    _complaints: dict[str, str] = field(default_factory=dict)

    # -- the agent's side --------------------------------------------------------------------

    def begin(self) -> bool:
        """Everything once, waiting as long as the store is away; False when the end came first.

        A node that was here before does not ask the API now: an agent that was killed in the
        middle of a migration must listen at once, and `run` sees to the rest.
        Raises `InvalidInput` for an address that another node has, or that cannot be found, and for
        another name than what runs here knows.
        """
        while not self.over.is_set():
            try:
                self.address()
                self.address6()
                self._later = self.kube is not None and self._was_here()
                self.attempt()
            except _REPEATED as error:
                self._complain("begin", error)
                self.over.wait(RETRY_SECONDS)
            else:
                return True
        return False

    def run(self) -> None:
        """A thread's body: what `begin` had to leave, until it is done or `stop`."""
        pause = 0.0 if self._later else UNLOCK_SECONDS
        self._later = False
        while not self.complete and not self._stop.wait(pause):
            pause = UNLOCK_SECONDS
            try:
                self.attempt()
            except _REPEATED as error:
                self._complain("run", error)

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stop.set()

    def address(self) -> NodeAddress | None:
        """This node's IPv4 address, chosen once, if the configuration wants one. Raises as
        `find_address`."""
        if self._address is None and self.config.ip != NONE:
            outside = self.outside
            if self.kube is not None:
                outside = replace(outside, internal_ips=self._internal_ips)
            self._address = find_address(self.kernel, self.config.ip, outside)
        return self._address

    def address6(self) -> NodeAddress6 | None:
        """The same for IPv6, if the configuration wants one."""
        if self._address6 is None and self.config.ip6 != NONE:
            outside = self.outside
            if self.kube is not None:
                outside = replace(outside, internal_ips=self._internal_ips)
            self._address6 = find_address6(self.kernel, self.config.ip6, outside)
        return self._address6

    def own(self) -> tuple[IPAddress, ...]:
        """By which addresses other nodes know this one, IPv4 first; at least one."""
        return tuple(one.address.ip for one in (self.address(), self.address6()) if one)

    def uplinks(self) -> tuple[str, ...]:
        """The links that carry this node's traffic."""
        named = tuple(name for name in self.config.uplinks if name)
        links = [one.link for one in (self.address(), self.address6()) if one]
        return named or tuple(dict.fromkeys(link for link in links if link))

    def facts(self) -> NodeFacts:
        """What this node says about itself."""
        chosen, chosen6 = self.address(), self.address6()
        return NodeFacts(
            name=self.config.node,
            address=chosen.address if chosen is not None else None,
            link=chosen.link if chosen is not None else "",
            address6=chosen6.address if chosen6 is not None else None,
            link6=chosen6.link if chosen6 is not None else "",
            as_number=self.config.as_number,
            interfaces=interfaces(self.kernel),
            kube_node=self.config.kube_node,
        )

    def attempt(self) -> bool:
        """All steps in order, those done before left out; True when nothing is left for later."""
        self._silence = ""
        whole = [self._step(name, step) for name, step in self._steps()]
        self.complete = all(whole)
        return self.complete

    # -- steps -------------------------------------------------------------------------------

    def _steps(self) -> tuple[tuple[str, Callable[[], bool]], ...]:
        return (
            ("name", self._name),
            ("cluster identity", self._identity),
            ("node", self._node),
            ("claims", self._claims),
            ("IPv4 pool", lambda: self._pool(4)),
            ("IPv6 pool", lambda: self._pool(6)),
            ("cluster information", self._cluster_information),
            ("tiers", self._tiers),
            ("FelixConfiguration", self._felix),
            ("BGPConfiguration", self._bgp),
            ("IPAMConfiguration", self._ipam),
            ("files", self._files),
        )

    def _step(self, name: str, step: Callable[[], bool]) -> bool:
        """One step, if it was not done before; False when it must be done later."""
        if name in self._done:
            return True
        try:
            if step():
                self.log.info("start_up", step=name)
        except _REPEATED:
            raise
        except HeldBackError as error:
            if not self._later:
                self._complain(name, error)
            return False
        except (AddressTakenError, RenamedError):
            raise
        except OSError as error:
            self._complain(name, error)
            return False
        except TortieError as error:
            self._complain(name, error)
        self._done.add(name)
        return True

    def _complain(self, name: str, error: Exception) -> None:
        """Once, until it is another complaint."""
        reason = f"{type(error).__name__}: {first_line(error)}"
        if self._complaints.get(name) == reason:
            return
        self._complaints[name] = reason
        waits = isinstance(error, (HeldBackError, *_REPEATED))
        if waits:
            self.log.warning("start_up_waits", step=name, reason=reason)
        else:
            self.log.error("start_up_failed", step=name, reason=reason)

    def _name(self) -> bool:
        require_same_name(self.store, Path(self.config.nodename_file), self.config.node)
        return False

    def _identity(self) -> bool:
        """A cluster has a GUID before it has a node."""
        guid = self.guid()
        return self._ensure_cluster(lambda stored: defaults.plan_cluster(stored, guid=guid))

    def _cluster_information(self) -> bool:
        types = [one.strip() for one in self.config.cluster_type.split(",")]
        types += self._installers().types
        if self.config.datastore_type == "kubernetes":
            types.append("kdd")
        guid, version = self.guid(), self.config.calico_version
        return self._ensure_cluster(
            lambda stored: defaults.plan_cluster(stored, guid=guid, version=version, types=types)
        )

    def _ensure_cluster(
        self, plan: Callable[[ClusterInformation | None], ClusterInformation]
    ) -> bool:
        return ensure(self.store, defaults.CLUSTER, ClusterInformation, plan)

    def _node(self) -> bool:
        for name in self.store.list(Resources(Kind.NODE)).malformed:
            self.log.error("stored_value_unreadable", reason=name)
        if not self.config.ip_check:
            return register(self.store, self.facts())
        return claim(self.store, self.facts(), self.over.wait)

    def _claims(self) -> bool:
        """Elsewhere than in Kubernetes there are no labels, and every affinity would be read."""
        if self.config.datastore_type != "kubernetes":
            return False
        self._unlocked()
        return label_claims(self.store, self.config.node) > 0

    def _pool(self, version: int) -> bool:
        """The default pool of a family, only if there is none of any kind."""
        config = self.config.default_pools.ipv4 if version == 4 else self.config.default_pools.ipv6
        if config.cidr == NONE or self._has_pool(version):
            return False
        self._unlocked()
        cidr = self._cidr(version, config.cidr)
        if cidr is None:
            return False
        made = defaults.pool(cidr, config)

        def plan(stored: IPPool | None) -> IPPool | None:
            return made if stored is None and not self._has_pool(version) else None

        return ensure(self.store, made.key, IPPool, plan, self._unlocked)

    def _has_pool(self, version: int) -> bool:
        """Whether a pool of the family is stored; one that cannot be read might be."""
        listing = self.store.list(Resources(Kind.IP_POOL))
        if listing.malformed:
            raise Malformed(f"no default pool beside what cannot be read: {listing.malformed[0]}")
        cidrs = [one.value.spec.cidr for one in listing.records if isinstance(one.value, IPPool)]
        return any((":" in cidr) == (version == 6) for cidr in cidrs)

    def _cidr(self, version: int, configured: str) -> IPNetwork | None:
        """The default pool's range; None when the family needs none. Raises `InvalidInput`."""
        if configured:
            return defaults.usable_cidr(configured, version)
        if not (self._has_ipv6() if version == 6 else self.config.ip != NONE):
            return None
        if found := defaults.usable_cidr(self._installers().pod_cidrs, version):
            return found
        if version == 6:
            return defaults.random_ipv6_cidr(uuid.uuid4().bytes)
        free = defaults.free_ipv4_cidr(self.kernel.routes())
        if free is None:
            raise InvalidInput("every private /16 overlaps a route; set default_pools.ipv4.cidr")
        return free

    def _has_ipv6(self) -> bool:
        try:
            return self.kernel.read_sysctl("net/ipv6/conf/all/disable_ipv6") == "0"
        except NotFound:
            return False

    def _tiers(self) -> bool:
        written = [self._create(tier.key, Tier, tier) for tier in defaults.tiers()]
        return any(written)

    def _felix(self) -> bool:
        written = ensure(
            self.store, defaults.FELIX, FelixConfiguration, defaults.plan_felix, self._unlocked
        )
        if self.config.datastore_type != "etcdv3":
            return written
        name = f"node.{self.config.node}"
        spec = FelixConfigurationSpec.model_validate({"defaultEndpointToHostAction": "Return"})
        own = FelixConfiguration(metadata=ObjectMeta(name=name), spec=spec)
        return self._create(own.key, FelixConfiguration, own) or written

    def _bgp(self) -> bool:
        return self._create(defaults.BGP, BGPConfiguration, defaults.bgp_configuration())

    def _ipam(self) -> bool:
        """The resource, agreeing with the record as long as that is what it was."""
        record = self._read(IPAMConfigKey())
        held = record.value if record is not None and isinstance(record.value, IPAMConfig) else None
        made = defaults.ipam_configuration(held)
        revision = record.revision if record is not None else None

        def checks() -> tuple[Check, ...]:
            return (*self._unlocked(), Check(IPAMConfigKey(), revision))

        return ensure(
            self.store,
            defaults.IPAM,
            IPAMConfiguration,
            lambda stored: made if stored is None else None,
            checks,
        )

    def _files(self) -> bool:
        underlay = uplink_mtu(self.kernel, self.uplinks())
        mtu = stored_mtu(underlay, self.store, self.config.node)
        write_files(Path(self.config.nodename_file), self.config.node, self.config.mtu_file, mtu)
        return False

    # -- inside ------------------------------------------------------------------------------

    def _was_here(self) -> bool:
        """Whether an earlier start of this node came to its end."""
        try:
            self.store.get(ResourceKey(Kind.NODE, self.config.node))
        except (NotFound, Malformed):
            return False
        return Path(self.config.nodename_file).exists()

    def _create(self, key: ResourceKey, model: type[T], made: T) -> bool:
        """Make something for the cluster unless it is there."""
        return ensure(
            self.store, key, model, lambda stored: made if stored is None else None, self._unlocked
        )

    def _unlocked(self) -> tuple[Check, ...]:
        """What must still hold when something is made for the cluster. Raises `HeldBackError`."""
        record = self._read(defaults.CLUSTER)
        value = record.value if record is not None else None
        if isinstance(value, ClusterInformation) and value.spec.datastore_ready is False:
            raise HeldBackError("the datastore is locked (ClusterInformation: datastoreReady)")
        return (Check(defaults.CLUSTER, record.revision if record is not None else None),)

    def _read(self, key: Key) -> Record | None:
        try:
            return self.store.get(key)
        except NotFound:
            return None

    def _installers(self) -> ClusterFacts:
        """What the API's ConfigMaps say. Raises `HeldBackError` while it is silent.

        A silent API is waited for once an attempt: the agent of a node full of VMs is starting.
        """
        if self._silence:
            raise HeldBackError(self._silence)
        if self._later:
            raise HeldBackError("the API is asked later")
        if self._cluster is None and self.kube is not None:
            try:
                self._cluster = cluster_facts(self.kube)
            except Unavailable as error:
                self._silence = first_line(error)
                raise HeldBackError(self._silence) from error
            except Unauthorized as error:
                self._complain("kubeadm", error)
                self._cluster = ClusterFacts()
        return self._cluster or ClusterFacts()

    def _internal_ips(self) -> tuple[IPAddress, ...]:
        if self.kube is None:
            raise InvalidInput("no API")
        return internal_ips(self.kube, self.config.kube_node)
