"""Calico's policy resources → the values of `policy.py`, checked as Calico checks them.

The store keeps these kinds as they are written, so that what another program stored is still
there to be named when it is wrong. Here they are read: `read_policy` and its like never raise,
for a policy that cannot be obeyed still says whom it is about, and they must be closed.
`problems_of` tells what is wrong, with the fields' paths. A field of a rule that is not known
might restrict it, so it is wrong, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from pydantic import ValidationError

from libtortie.errors import InvalidInput
from libtortie.model.felix_values import felix_problems
from libtortie.model.field_errors import lines_of, summary
from libtortie.model.fields import network_of
from libtortie.model.keys import Kind
from libtortie.model.plain_ip import plain_address
from libtortie.model.policy import (
    DEFAULT_TIER,
    LABEL_NAMESPACE,
    LABEL_ORCHESTRATOR,
    LABEL_SERVICE_ACCOUNT,
    NAMESPACE_PREFIX,
    NAMESPACE_PROFILE,
    SERVICE_ACCOUNT_PREFIX,
    UNREADABLE,
    Entity,
    HostEnd,
    Icmp,
    Item,
    NamedPort,
    Policy,
    PolicyId,
    PolicyRule,
    Profile,
)
from libtortie.model.policy_spec import (
    INTERFACE,
    EntityWire,
    HostEndpointSpecWire,
    IcmpWire,
    NetworkSetSpecWire,
    PolicySpecWire,
    ProfileSpecWire,
    RuleWire,
    ServiceAccountsWire,
    outer_selector,
)
from libtortie.model.resources import Resource, Wire
from libtortie.model.selector_text import (
    both,
    in_namespace,
    of_namespaces,
    prefixed,
)

_GLOBALS = ("namespaceSelector", "doNotTrack", "preDNAT", "applyOnForward")
_ONLY_GLOBAL = "only a GlobalNetworkPolicy has it"
_SPECS: dict[Kind, type[Wire]] = {
    Kind.NETWORK_POLICY: PolicySpecWire,
    Kind.GLOBAL_NETWORK_POLICY: PolicySpecWire,
    Kind.PROFILE: ProfileSpecWire,
    Kind.NETWORK_SET: NetworkSetSpecWire,
    Kind.GLOBAL_NETWORK_SET: NetworkSetSpecWire,
    Kind.HOST_ENDPOINT: HostEndpointSpecWire,
}


def problems_of(resource: Resource) -> tuple[str, ...]:
    """What is wrong with a resource's spec, as `spec.ingress.0.protocol: why` each."""
    kind, spec = Kind(resource.kind), _spec(resource)
    if kind is Kind.FELIX_CONFIGURATION:
        return tuple(felix_problems(spec))
    model = _SPECS.get(kind)
    if model is None:
        return ()
    found: tuple[str, ...] = ()
    try:
        model.model_validate(spec)
    except ValidationError as error:
        found = lines_of(error)
    if kind is Kind.NETWORK_POLICY:
        return (*found, *(f"spec.{field}: {_ONLY_GLOBAL}" for field in _GLOBALS if spec.get(field)))
    if kind is Kind.GLOBAL_NETWORK_POLICY:
        return (*found, *_forwarding_problems(spec), *_homeless_services(spec))
    return (*found, *_homeless_services(spec)) if kind is Kind.PROFILE else found


def problem_of(resource: Resource) -> str:
    """The same on one line that is never long; empty: nothing."""
    return summary(problems_of(resource))


def _forwarding_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    """Told of whatever else is wrong with the policy."""
    untracked, early = spec.get("doNotTrack"), spec.get("preDNAT")
    if untracked and early:
        yield "spec.preDNAT: excludes doNotTrack"
    for field in ("doNotTrack", "preDNAT"):
        if spec.get(field) and not spec.get("applyOnForward"):
            yield f"spec.{field}: needs applyOnForward"
    types = spec.get("types")
    if early and (spec.get("egress") or (isinstance(types, list) and "Egress" in types)):
        yield "spec.preDNAT: has no egress"


def _homeless_services(spec: Mapping[str, Any]) -> Iterator[str]:
    """Services of no namespace, where there is none that they could be in by default."""
    for way, side in (("ingress", "source"), ("egress", "destination")):
        rules = spec.get(way)
        for number, rule in enumerate(rules if isinstance(rules, list | tuple) else ()):
            end = rule.get(side) if isinstance(rule, Mapping) else None
            services = end.get("services") if isinstance(end, Mapping) else None
            if isinstance(services, Mapping) and not services.get("namespace"):
                yield f"spec.{way}.{number}.{side}.services.namespace: is missing"


def read_policy(resource: Resource) -> Policy:
    """The policy that a NetworkPolicy or GlobalNetworkPolicy is."""
    namespace = resource.metadata.namespace if Kind(resource.kind).namespaced else ""
    policy_id = PolicyId(resource.metadata.name, namespace, resource.kind)
    if problem := problem_of(resource):
        return _refused(policy_id, _spec(resource), problem)
    spec = PolicySpecWire.model_validate(_spec(resource))
    types = spec.types or _default_types(spec)
    return Policy(
        id=policy_id,
        selector=_subject(spec, namespace),
        tier=spec.tier or DEFAULT_TIER,
        order=spec.order,
        ingress=_rules(spec.ingress, namespace) if "Ingress" in types else None,
        egress=_rules(spec.egress, namespace) if "Egress" in types else None,
        untracked=spec.do_not_track,
        pre_dnat=spec.pre_dnat,
        forwarded=spec.apply_on_forward,
    )


def read_profile(resource: Resource) -> Profile:
    """The profile that a resource is; one that is wrong gives no labels and allows nothing."""
    if problem := problem_of(resource):
        return Profile(resource.metadata.name, problem=problem)
    spec = ProfileSpecWire.model_validate(_spec(resource))
    return Profile(
        resource.metadata.name,
        tuple(sorted(spec.labels_to_apply.items())),
        _rules(spec.ingress, ""),
        _rules(spec.egress, ""),
    )


def read_network_set(resource: Resource) -> Item:
    """The networks and labels of a NetworkSet or GlobalNetworkSet. Raises `InvalidInput`."""
    _require_readable(resource)
    spec = NetworkSetSpecWire.model_validate(_spec(resource))
    nets = tuple(ip_network(text, strict=False) for text in spec.nets)
    return replace(labelled_item(resource), nets=nets)


def labelled_item(resource: Resource) -> Item:
    """What selectors go by of a set of networks or a host endpoint, however wrong its spec is.

    Its labels do not make it a pod, nor one of a namespace that it is not in.
    """
    labels = dict(resource.metadata.labels)
    profiles: tuple[str, ...] = ()
    for claim in (LABEL_NAMESPACE, LABEL_ORCHESTRATOR):
        labels.pop(claim, None)
    if Kind(resource.kind).namespaced:
        labels = own_labels(labels) | {LABEL_NAMESPACE: resource.metadata.namespace}
        profiles = (f"{NAMESPACE_PROFILE}{resource.metadata.namespace}",)
    return Item(tuple(sorted(labels.items())), profiles)


def _require_readable(resource: Resource) -> None:
    if problem := problem_of(resource):
        meta = resource.metadata
        owner = PolicyId(meta.name, meta.namespace, resource.kind)
        raise InvalidInput(f"{owner}: {problem}")


def read_host_endpoint(resource: Resource) -> Item:
    """What selectors see of a HostEndpoint. Raises `InvalidInput`."""
    _require_readable(resource)
    spec = HostEndpointSpecWire.model_validate(_spec(resource))
    return replace(
        labelled_item(resource),
        profiles=spec.profiles,
        nets=tuple(ip_network(text) for text in spec.expected_ips),
        ports=tuple(NamedPort(port.name, port.protocol, port.port) for port in spec.ports),
    )


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that an owner in a namespace may give, who must not choose what its namespace
    and its account are: neither those labels nor the ones inherited from them."""
    claims = (NAMESPACE_PREFIX, SERVICE_ACCOUNT_PREFIX)
    return {
        name: value
        for name, value in labels.items()
        if not name.startswith(claims) and name != LABEL_SERVICE_ACCOUNT
    }


def read_host_end(resource: Resource) -> HostEnd:
    """Which node's which link a HostEndpoint is. Never raises: what is wrong is its `problem`."""
    name, spec = resource.metadata.name, _spec(resource)
    if problem := problem_of(resource):
        link, node = spec.get("interfaceName"), spec.get("node")
        known = isinstance(link, str) and INTERFACE.fullmatch(link)
        return HostEnd(
            name,
            node if isinstance(node, str) else "",
            str(link) if known else "",
            frozenset(_readable_addresses(spec.get("expectedIPs"))),
            problem=problem,
        )
    wire = HostEndpointSpecWire.model_validate(spec)
    addresses = frozenset(ip_address(text) for text in wire.expected_ips)
    return HostEnd(name, wire.node, wire.interface_name, addresses, wire.profiles)


def _readable_addresses(texts: object) -> Iterator[IPv4Address | IPv6Address]:
    for text in texts if isinstance(texts, list | tuple) else ():
        with suppress(ValueError):
            yield plain_address(str(text))


def _spec(resource: Resource) -> dict[str, Any]:
    spec = resource.to_wire()["spec"]
    return spec if isinstance(spec, dict) else {}


def unreadable_policy(policy_id: PolicyId) -> Policy:
    """A policy of which nothing is known: it may be about all of its namespace, or about all."""
    return _refused(policy_id, {}, UNREADABLE)


def _refused(policy_id: PolicyId, spec: Mapping[str, Any], problem: str) -> Policy:
    """A policy that cannot be obeyed, about those it selects, or about all it might select."""
    own: dict[str, str] = {}
    for field in ("selector", "namespaceSelector", "serviceAccountSelector"):
        try:
            own[field] = outer_selector(spec.get(field) or "")
        except (ValueError, TypeError):
            own[field] = ""
    subject = PolicySpecWire.model_validate(own)
    tier = spec.get("tier")
    return Policy(
        id=policy_id,
        selector=_subject(subject, policy_id.namespace),
        tier=tier if isinstance(tier, str) and tier else DEFAULT_TIER,
        forwarded=spec.get("applyOnForward") not in (None, False),
        problem=problem,
    )


def _default_types(spec: PolicySpecWire) -> tuple[str, ...]:
    """Calico's: ingress, unless there are only egress rules."""
    if spec.egress:
        return ("Ingress", "Egress") if spec.ingress else ("Egress",)
    return ("Ingress",)


def _subject(spec: PolicySpecWire, namespace: str) -> str:
    accounts = spec.service_account_selector
    return (
        both(
            in_namespace(namespace) if namespace else "",
            of_namespaces(spec.namespace_selector) if spec.namespace_selector else "",
            prefixed(accounts, SERVICE_ACCOUNT_PREFIX) if accounts else "",
            spec.selector,
        )
        or "all()"
    )


def _rules(rules: Iterable[RuleWire], namespace: str) -> tuple[PolicyRule, ...]:
    return tuple(
        PolicyRule(
            action=rule.action,
            version=rule.ip_version,
            protocol=rule.protocol,
            not_protocol=rule.not_protocol,
            icmp=_icmp(rule.icmp),
            not_icmp=_icmp(rule.not_icmp),
            source=_entity(rule.source, namespace),
            destination=_entity(rule.destination, namespace),
        )
        for rule in rules
    )


def _icmp(wire: IcmpWire | None) -> Icmp | None:
    return None if wire is None or wire.type is None else Icmp(wire.type, wire.code)


def _entity(wire: EntityWire, namespace: str) -> Entity:
    """A rule of a namespaced policy is about its own namespace, unless it says which others."""
    if wire.services is not None:
        return Entity(service=f"{wire.services.namespace or namespace}/{wire.services.name}")
    own = both(_accounts(wire.service_accounts), wire.selector)
    where = ""
    if wire.namespace_selector:
        where = of_namespaces(wire.namespace_selector)
    elif namespace and (own or wire.not_selector):
        where = in_namespace(namespace)
    return Entity(
        nets=tuple(network_of(text) for text in wire.nets),
        not_nets=tuple(network_of(text) for text in wire.not_nets),
        selector=both(where, own) or None,
        not_selector=wire.not_selector or None,
        ports=wire.ports,
        not_ports=wire.not_ports,
    )


def _accounts(wire: ServiceAccountsWire | None) -> str:
    if wire is None:
        return ""
    names = ", ".join(f"'{name}'" for name in wire.names)
    return both(
        f"{LABEL_SERVICE_ACCOUNT} in {{ {names} }}" if names else "",
        prefixed(wire.selector, SERVICE_ACCOUNT_PREFIX) if wire.selector else "",
    )
