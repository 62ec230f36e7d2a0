"""STATUS: could ADD be served now? Asks everything that ADD would need, and changes nothing.

Code 50 says no. Code 51 says that besides what runs already may suffer: the rules that an agent
once programmed are gone, and with them the policy of workloads that are still there.
"""

from __future__ import annotations

from cni_plugin import endpoint
from cni_plugin.annotations import wanted_addresses
from cni_plugin.errors import Impaired, NotReady, Refusal
from cni_plugin.ports import Ports
from cni_plugin.types import NetConf
from ipam.settings import NotReady as Locked
from libtortie.errors import TortieError

NO_AGENT = (
    "no agent has programmed this node's packet filter, and a pod without policy is not "
    "started: is tortie-node running?"
)

AGENT_AWAY = (
    "no agent listens on this node: a pod that starts now has no policy, and no network before one "
    "does: is tortie-node running?"
)
AWAY_SECONDS = 5.0
"""How long an agent may take to start again before it counts as away."""
_PAUSE = 0.1

LOCKED = "the datastore is locked (ClusterInformation: datastoreReady is false)"


def require_usable(ports: Ports, conf: NetConf) -> None:
    """Raises `NotReady`, or `Impaired`, naming what ADD would fail for."""
    if not ports.policy.ready():
        raise Impaired(NO_AGENT) if _has_workloads(ports) else NotReady(NO_AGENT)
    try:
        if ports.delegate is not None:
            ports.delegate.status()
        else:
            ports.ipam.rehearse(wanted_addresses({}, {}, conf))
    except Refusal:
        raise
    except Locked as error:
        raise NotReady(LOCKED) from error
    except TortieError as error:
        raise NotReady(f"no address could be assigned: {error}") from error
    try:
        ports.identify.require_answers()
    except TortieError as error:
        raise NotReady(f"the Kubernetes API cannot be used: {error}") from error
    _require_agent(ports)


def _require_agent(ports: Ports) -> None:
    """The fallback attaches a pod, but nobody is there to give it its policy."""
    end = ports.monotonic() + AWAY_SECONDS
    while not ports.agent_listens():
        if ports.monotonic() >= end:
            raise NotReady(AGENT_AWAY)
        ports.sleep(_PAUSE)


def _has_workloads(ports: Ports) -> bool:
    """Whether a veth of ours is on this node whose endpoint is stored."""
    try:
        stored = {one.spec.interface_name for one in endpoint.of_node(ports.store, ports.node)}
        return any(link.name in stored for link in ports.kernel.links())
    except TortieError:
        return False
