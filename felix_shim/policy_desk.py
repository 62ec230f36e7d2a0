"""What the reconciler hears of policy, kept for the lane that makes rules of it.

The reconciler's thread only puts events in, which costs next to nothing; the policy lane takes
them out when it is about to program the kernel, and keeps the book. So a list of 10,000 endpoints
holds up no sign of a VM, and the rules of a job have all that was heard before it was given.

What cannot be read is named in the log once, and never lets more pass: see `policy_book.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_interface, ip_network

from felix_shim.events import InSync, Listed, Seen, Stored, Unstored, Vanished
from felix_shim.kube_desk import KubeDesk
from felix_shim.model import Endpoint
from felix_shim.policy import EndpointPolicy, PolicySet, compile_endpoint, policy_set
from felix_shim.policy_blame import Question, RuleRefused, refused
from felix_shim.policy_book import Closed, PolicyBook, PolicyRules, Ways
from felix_shim.policy_compile import sets_of
from felix_shim.policy_order import BUILT_IN_TIERS
from felix_shim.policy_sets import Elements, literal
from felix_shim.rules import Chain, SetKey
from felix_shim.surroundings import NOTHING_AROUND, NodeRules, Surroundings
from felix_shim.unreadable_sets import Unreadable
from libtortie.datastore.port import Record
from libtortie.errors import InvalidInput
from libtortie.jsonlog import Log
from libtortie.model.keys import Key, Kind, ResourceKey, Scope
from libtortie.model.names import ORCHESTRATOR_K8S
from libtortie.model.policy import (
    LABEL_NAMESPACE,
    LABEL_ORCHESTRATOR,
    LABEL_SERVICE_ACCOUNT,
    UNREADABLE,
    IPNetwork,
    Item,
    NamedPort,
    PolicyId,
    Profile,
    TierRank,
)
from libtortie.model.policy_spec import protocol_number
from libtortie.model.policy_wire import (
    labelled_item,
    own_labels,
    read_host_end,
    read_host_endpoint,
    read_network_set,
    read_policy,
    read_profile,
    unreadable_policy,
)
from libtortie.model.resources import EndpointPort, Resource, Tier, WorkloadEndpoint

NO_API = "spec: matches by service need the Kubernetes API, which this agent has not"
Change = Stored | Unstored | Listed | Seen | Vanished | InSync
_SELECTED = (Kind.NETWORK_SET, Kind.GLOBAL_NETWORK_SET, Kind.HOST_ENDPOINT)
"""Administrators' own, which rules select: one that is lost would open what denies it."""
MOST_ASKED = 8
"""Refused policies that are asked about by themselves at a time."""
Check = Callable[[Mapping[str, Chain], Mapping[SetKey, Elements]], str]
"""Why the kernel would refuse chains and sets; empty when it takes them."""


@dataclass(slots=True)
class PolicyDesk:
    """See the module. `feed` is the reconciler's; everything else is the lane's.

    `kube`: Kubernetes' own policies are heard of from its API.
    """

    node: str
    log: Log
    kube: bool = False
    book: PolicyBook = field(default_factory=PolicyBook)
    _of_kube: KubeDesk = field(init=False)
    _changes: deque[Change] = field(default_factory=deque)
    _known: dict[Scope, set[Key]] = field(default_factory=dict)
    _closed: frozenset[Closed] = frozenset()
    _announced: frozenset[Closed] = frozenset()
    """Of these `closings` has told. Policy may know a pod before the reconciler does."""
    _node_rules: NodeRules = field(default_factory=NodeRules)
    _compiled: dict[Key, tuple[Endpoint, Ways, EndpointPolicy]] = field(default_factory=dict)
    _closings: list[tuple[Endpoint, str]] = field(default_factory=list)
    _asked: int = 0

    def __post_init__(self) -> None:
        self._of_kube = KubeDesk(self.book, self.kube)

    def feed(self, change: Change) -> None:
        """Something was heard."""
        self._changes.append(change)

    def rules(
        self, endpoints: Iterable[tuple[Key, Endpoint]], around: Surroundings = NOTHING_AROUND
    ) -> PolicySet:
        """The rules of these endpoints, and of the node itself, made of all that was heard."""
        while self._changes:
            self._take(self._changes.popleft())
        self.book.log_as(around.settings.log_prefix)
        found = self.book.rules()
        endpoints = tuple(endpoints)
        self._tell(found, dict(endpoints))
        closed = Ways()
        wanted = [(key, one, found.ways.get(key, closed)) for key, one in endpoints]
        self._compiled = {key: self._endpoint_rules(key, one, way) for key, one, way in wanted}
        return policy_set(
            (rules for _, _, rules in self._compiled.values()),
            endpoint_to_host=around.settings.endpoint_to_host,
            rules=self._node_rules.added_to(found, around),
        )

    def closings(self) -> list[tuple[Endpoint, str]]:
        """Endpoints that have been closed since this was last asked, and by what."""
        found, self._closings = self._closings, []
        return found

    def blame(self, check: Check, error: RuleRefused) -> bool:
        """After the kernel refused the rules: close those whose policies are at fault.

        True when there are any: then rules without them are worth another attempt.
        """
        chains = self.book.own_chains()
        question = self._question(check, chains)
        suspects = [owner for owner, own in chains.items() if error.chain in own]
        found = refused(tuple(chains), question, suspects)
        for owner, problem in found.items():
            self.log.error("policy_refused", policy=owner, reason=problem)
            self.book.refuse(owner, problem)
        return bool(found)

    def reconsider(self, check: Check) -> None:
        """Ask again about those whose rules were refused: the cause may not have been theirs.

        All at once, then about some of them by turns: each question takes the lane's time.
        """
        refusals = self.book.refusals
        if not refusals:
            return
        chains = self.book.own_chains()
        question = self._question(check, chains)
        unused = [one for one in refusals if one not in chains]
        asked = [one for one in refusals if one in chains]
        if asked and question(asked):
            place = self._asked % len(asked)
            asked = [*asked[place:], *asked[:place]][:MOST_ASKED]
            self._asked += len(asked)
            asked = [one for one in asked if not question((one,))]
        for owner in (*unused, *asked):
            self.log.info("policy_taken_again", policy=owner)
            self.book.forgive(owner)

    # -- inside ------------------------------------------------------------------------------

    def _question(
        self, check: Check, chains: Mapping[PolicyId, Mapping[str, Chain]]
    ) -> Question[PolicyId]:
        sets = self.book.rules().sets

        def question(owners: Sequence[PolicyId]) -> str:
            asked = {name: chain for one in owners for name, chain in chains[one].items()}
            return check(asked, {key: _found(key, sets) for key in wanted_sets(asked)})

        return question

    def _endpoint_rules(
        self, key: Key, endpoint: Endpoint, ways: Ways
    ) -> tuple[Endpoint, Ways, EndpointPolicy]:
        """What an endpoint's rules are made of, and they; the same value when that is."""
        known = self._compiled.get(key)
        if known is not None and known[0] is endpoint and known[1] == ways:
            return known
        return endpoint, ways, compile_endpoint(endpoint, ways)

    def _take(self, change: Change) -> None:
        if isinstance(change, Seen | Vanished | InSync):
            self._of_kube.take(change)
            return
        known = self._known.setdefault(change.scope, set())
        match change:
            case Stored(_, record):
                known.add(record.key)
                self._put(record)
            case Unstored(_, key):
                known.discard(key)
                self._remove(key)
            case Listed(_, records, unreadable, broken):
                present = {record.key for record in records} | set(broken)
                for key in known - present if not unreadable else ():
                    self._remove(key)
                known |= present
                if not unreadable:
                    known &= present
                for record in records:
                    self._put(record)
                for key in broken:
                    self._unreadable(key)

    def _put(self, record: Record) -> None:
        match record.key, record.value:
            case ResourceKey(), WorkloadEndpoint() as endpoint:
                self._endpoint(record.key, endpoint)
            case ResourceKey(), Tier() as tier:
                self.book.put_tier(rank_of(tier))
            case ResourceKey(kind), Resource() as resource:
                self._resource(kind, record.key, resource)

    def _resource(self, kind: Kind, key: Key, resource: Resource) -> None:
        match kind:
            case Kind.NETWORK_POLICY | Kind.GLOBAL_NETWORK_POLICY:
                policy = read_policy(resource)
                if policy.needs_api and not self.kube:
                    policy = replace(policy, problem=NO_API)
                if not self._of_kube.is_copy(policy.id):
                    self.book.put_policy(policy)
            case Kind.PROFILE:
                self._of_kube.put_copy(read_profile(resource))
            case Kind.NETWORK_SET | Kind.GLOBAL_NETWORK_SET:
                self._item(key, resource, read_network_set)
            case Kind.HOST_ENDPOINT:
                self._host(key, resource)

    def _item(self, key: Key, resource: Resource, read: Callable[[Resource], Item]) -> Item:
        """What selectors see of it; whoever might use one that cannot be read is closed."""
        try:
            item = read(resource)
        except InvalidInput as error:
            self.log.error("policy_resource_refused", reason=error)
            item = labelled_item(resource)
            self.book.put_unreadable(key, Unreadable(str(error), item))
            return item
        self.book.put_item(key, item)
        return item

    def _unreadable(self, key: Key) -> None:
        """Something is stored of which nothing can be read but its key."""
        match key:
            case ResourceKey(Kind.NETWORK_POLICY | Kind.GLOBAL_NETWORK_POLICY as kind, name, space):
                policy = unreadable_policy(PolicyId(name, space, kind.value))
                if not self._of_kube.is_copy(policy.id):
                    self.book.put_policy(policy)
            case ResourceKey(Kind.PROFILE, name):
                self._of_kube.put_copy(Profile(name, problem=UNREADABLE))
            case ResourceKey(Kind.TIER, name):
                self.book.put_tier(TierRank(name, problem=f"Tier {name}: {UNREADABLE}"))
            case ResourceKey(kind, name, space) if kind in _SELECTED:
                problem = f"{PolicyId(name, space, kind.value)}: {UNREADABLE}"
                self.book.put_unreadable(key, Unreadable(problem))

    def _host(self, key: Key, resource: Resource) -> None:
        """A host endpoint of any node; one of this node is policed, readable or not."""
        item = self._item(key, resource, read_host_endpoint)
        end = read_host_end(resource)
        if end.node == self.node:
            self.book.put_host(key, end, item)
        else:
            self.book.remove_local(key)

    def _remove(self, key: Key) -> None:
        match key:
            case ResourceKey(Kind.TIER, name):
                self.book.remove_tier(name)
            case ResourceKey(Kind.PROFILE, name):
                self._of_kube.remove_copy(name)
            case ResourceKey(Kind.NETWORK_POLICY | Kind.GLOBAL_NETWORK_POLICY as kind, name, space):
                self.book.remove_policy(PolicyId(name, space, kind.value))
            case _:
                self.book.remove_item(key)
                self.book.remove_local(key)

    def _endpoint(self, key: Key, endpoint: WorkloadEndpoint) -> None:
        """An endpoint of any node; one whose addresses cannot be read is in no set."""
        item = item_of(endpoint)
        self.book.put_item(key, item)
        if endpoint.spec.node == self.node:
            self.book.put_local(key, item)
        else:
            self.book.remove_local(key)

    def _tell(self, found: PolicyRules, endpoints: Mapping[Key, Endpoint]) -> None:
        """Name what closes endpoints, once."""
        closed = frozenset(found.closed)
        for one in sorted(closed - self._closed, key=str):
            self.log.error(
                "policy_rule_fails_closed" if one.partly else "policy_closes_endpoint",
                endpoint=one.endpoint,
                policy=one.policy,
                reason=one.problem,
            )
        here = frozenset(one for one in closed if one.endpoint in endpoints)
        for one in sorted(here - self._announced, key=str):
            text = f"{one.policy} cannot be obeyed: {one.problem}; nothing new passes"
            text += " by that rule" if one.partly else ""
            self._closings.append((endpoints[one.endpoint], text))
        self._closed, self._announced = closed, here


def _found(key: SetKey, sets: Mapping[SetKey, Elements]) -> Elements:
    """What is in a set; one that only the rules of who is closed look into is not kept."""
    return sets.get(key) or (literal(key) if key.kind.literal else Elements())


def wanted_sets(chains: Mapping[str, Chain]) -> frozenset[SetKey]:
    """The sets that these chains look into."""
    return frozenset().union(*(sets_of(chain) for chain in chains.values()))


def rank_of(tier: Tier) -> TierRank:
    """A stored tier's place; what is not said of a tier that is always there is as it always is."""
    name, spec = tier.metadata.name, tier.spec
    known = BUILT_IN_TIERS.get(name, TierRank(name))
    said = "default_action" in spec.model_fields_set
    passes = spec.default_action == "Pass" if said else known.passes
    return TierRank(name, known.order if spec.order is None else spec.order, passes)


def item_of(endpoint: WorkloadEndpoint) -> Item:
    """What selectors see of an endpoint. Addresses and ports that are none are left out."""
    spec, metadata = endpoint.spec, endpoint.metadata
    labels = own_labels(metadata.labels) | {
        LABEL_NAMESPACE: metadata.namespace,
        LABEL_ORCHESTRATOR: spec.orchestrator or ORCHESTRATOR_K8S,
    }
    if spec.service_account_name:
        labels[LABEL_SERVICE_ACCOUNT] = spec.service_account_name
    ports = tuple(_named_ports(spec.ports))
    return Item(
        tuple(sorted(labels.items())), spec.profiles, tuple(_hosts(spec.ip_networks)), ports
    )


def _hosts(texts: Iterable[str]) -> Iterator[IPNetwork]:
    for text in texts:
        with suppress(ValueError):
            yield ip_network(ip_interface(text).ip)


def _named_ports(ports: Iterable[EndpointPort]) -> Iterator[NamedPort]:
    for port in ports:
        with suppress(ValueError):
            number = protocol_number(port.protocol)
            if port.name and 0 < port.port < 1 << 16:
                yield NamedPort(port.name, number, port.port)
