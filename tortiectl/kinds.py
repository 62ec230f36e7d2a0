"""Kinds as people type them: any case, singular, plural, calicoctl's and kubectl's short names."""

from __future__ import annotations

from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind
from libtortie.wording import meant

SHORT: dict[Kind, tuple[str, ...]] = {
    Kind.IP_POOL: ("ipp", "pool"),
    Kind.IP_RESERVATION: ("ipres", "reservation"),
    Kind.IPAM_CONFIGURATION: ("ipamconfig",),
    Kind.CLUSTER_INFORMATION: ("clusterinfo",),
    Kind.FELIX_CONFIGURATION: ("felixconfig", "fconfig"),
    Kind.BGP_CONFIGURATION: ("bgpconfig", "bconfig"),
    Kind.BGP_PEER: ("bgpp",),
    Kind.BGP_FILTER: ("bgpf",),
    Kind.NODE: ("no",),
    Kind.PROFILE: ("pro",),
    Kind.TIER: (),
    Kind.KUBE_CONTROLLERS_CONFIGURATION: ("kcc", "kubecontrollersconfig"),
    Kind.HOST_ENDPOINT: ("hep",),
    Kind.GLOBAL_NETWORK_POLICY: ("gnp",),
    Kind.GLOBAL_NETWORK_SET: ("globalnetset",),
    Kind.WORKLOAD_ENDPOINT: ("wep",),
    Kind.NETWORK_POLICY: ("np", "policy", "pol"),
    Kind.NETWORK_SET: ("netset",),
    Kind.STAGED_NETWORK_POLICY: ("snp",),
    Kind.STAGED_GLOBAL_NETWORK_POLICY: ("sgnp",),
    Kind.STAGED_KUBERNETES_NETWORK_POLICY: ("sknp",),
    Kind.CALICO_NODE_STATUS: ("caliconodestat",),
}
"""Singular short names; each may have an `s` (`policy`: `policies`)."""


def names_of(kind: Kind) -> tuple[str, ...]:
    """Everything, in lower case, that names a kind."""
    short = SHORT[kind]
    return (kind.lower(), kind.plural, *short, *(_plural(name) for name in short))


def parse_kind(text: str) -> Kind:
    """The kind a word names. Raises `InvalidInput` with the one probably meant, or all."""
    word = text.lower()
    found = _BY_NAME.get(word)
    if found is None:
        hint = meant(word, _BY_NAME) or f"; known are {', '.join(k.plural for k in Kind)}"
        raise InvalidInput(f"resource type '{text}' is not known{hint}")
    return found


def _plural(name: str) -> str:
    return name[:-1] + "ies" if name.endswith("policy") else name + "s"


_BY_NAME = {name: kind for kind in Kind for name in names_of(kind)}
