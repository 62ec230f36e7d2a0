"""The cluster of the policy benchmark: policies, endpoints of other nodes, and the node's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from libtortie.datastore.port import Datastore, Record
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.names import host_ifname
from libtortie.model.resources import parse_resource
from tests.fakes.agent_world import NAMESPACE, NODE, endpoint_record

POLICIES_OF_AN_APP = 10
_FIRST_REMOTE, _FIRST_LOCAL = int(ip_address("10.96.0.1")), int(ip_address("10.65.0.2"))


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is. Every policy selects an endpoint of the node, so all are in the kernel."""

    policies: int = 1_000
    remotes: int = 10_000

    @property
    def apps(self) -> int:
        """One local endpoint each, with ten policies."""
        return max(1, self.policies // POLICIES_OF_AN_APP)

    @property
    def roles(self) -> int:
        """Each is let in by two policies."""
        return max(10, self.policies // 20 * 10)

    def role(self, number: int) -> str:
        """A role that policies let in by name: those of the crowd's are not."""
        place = number % (self.roles // 10 * 9)
        return f"r{place // 9 * 10 + place % 9 + 1}"

    def policy(self, number: int) -> Record:
        """Lets one role in, of all the crowd every tenth one; each selects the pods of one app."""
        crowd = number % 10 == 0
        source = "crowd == 'yes'" if crowd else f"role == 'r{number % self.roles}'"
        rule = {
            "action": "Allow",
            "protocol": "TCP",
            "source": {"selector": source},
            "destination": {"ports": [8000 + number % 1000, "9000:9100"]},
        }
        body = {
            "apiVersion": "projectcalico.org/v3",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"p{number}", "namespace": NAMESPACE},
            "spec": {
                "order": number,
                "selector": f"app == 'a{number % self.apps}'",
                "types": ["Ingress"],
                "ingress": [rule],
            },
        }
        key = ResourceKey(Kind.NETWORK_POLICY, f"p{number}", NAMESPACE)
        return Record(key, parse_resource(Kind.NETWORK_POLICY, body), "1")

    def remote(self, number: int, role: int | None = None) -> Record:
        """An endpoint of another node, in the crowd and of one role."""
        return endpoint_record(
            f"remote-{number}",
            address=remote_address(number),
            node=f"other-{number // 100}",
            vm=False,
            labels={"crowd": "yes", "role": self.role(number if role is None else role)},
        )

    def local(self, number: int, app: int) -> Record:
        """An endpoint of this node."""
        return endpoint_record(
            f"local-{number}",
            address=str(ip_address(_FIRST_LOCAL + number)),
            node=NODE,
            vm=False,
            labels={"app": f"a{app}"},
        )

    def records(self) -> Iterator[Record]:
        """All of it."""
        yield from (self.policy(number) for number in range(self.policies))
        yield from (self.remote(number) for number in range(self.remotes))
        yield from (self.local(number, number) for number in range(self.apps))


def remote_address(number: int) -> str:
    """The address of an endpoint of another node."""
    return str(ip_address(_FIRST_REMOTE + number))


def local_interface(number: int) -> str:
    """The host's end of a local endpoint's veth."""
    return host_ifname(NAMESPACE, f"local-{number}")


def fill(store: Datastore, records: Iterator[Record]) -> None:
    """Store everything."""
    for record in records:
        store.create(record.key, record.value)
