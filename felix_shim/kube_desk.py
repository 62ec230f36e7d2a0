"""What the Kubernetes API says of policy, put into the book.

What the API itself says counts; what the datastore has of the same namespace, account or
NetworkPolicy is a copy that Calico's controllers make, and may be old.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from felix_shim.events import Instance, InSync, Migration, Seen, Vanished
from felix_shim.kube_entries import PEERS, PolicyObject, entry_of, owner_of
from felix_shim.kube_policy import PREFIX
from felix_shim.policy_book import PolicyBook
from libtortie.model.keys import Kind
from libtortie.model.policy import Item, Policy, PolicyId, Profile

Told = Seen | Vanished | InSync


@dataclass(slots=True)
class KubeDesk:
    """See the module. `followed`: there is an API whose NetworkPolicies are known."""

    book: PolicyBook
    followed: bool = False
    _names: defaultdict[type, set[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    _profiles: dict[str, Profile] = field(default_factory=dict)
    _copies: dict[str, Profile] = field(default_factory=dict)

    # -- of the API ------------------------------------------------------------------------------

    def take(self, told: Told) -> None:
        """An object is there, or gone, or all of a kind have been told of."""
        match told:
            case Seen(found) if not isinstance(found, Migration | Instance):
                self._names[type(found)].add((found.metadata.namespace, found.metadata.name))
                self._put(found)
            case Vanished(found):
                self._gone(type(found), found.metadata.namespace, found.metadata.name)
            case InSync(kind, delivered):
                for namespace, name in self._names[kind] - delivered:
                    self._gone(kind, namespace, name)

    def _put(self, found: PolicyObject) -> None:
        entry = entry_of(found)
        if isinstance(entry, Policy):
            self.book.put_policy(entry)
        elif isinstance(entry, Item):
            meta = found.metadata
            self.book.put_peer(PEERS[type(found)], meta.namespace, meta.name, entry)
        else:
            self._profiles[entry.name] = entry
            self._choose(entry.name)

    def _gone(self, kind: type, namespace: str, name: str) -> None:
        self._names[kind].discard((namespace, name))
        if kind in PEERS:
            self.book.remove_peer(PEERS[kind], namespace, name)
            return
        owner = owner_of(kind, namespace, name)
        if isinstance(owner, PolicyId):
            self.book.remove_policy(owner)
        else:
            self._profiles.pop(owner, None)
            self._choose(owner)

    # -- of the datastore ------------------------------------------------------------------------

    def put_copy(self, profile: Profile) -> None:
        """The datastore has a profile of this name."""
        self._copies[profile.name] = profile
        self._choose(profile.name)

    def remove_copy(self, name: str) -> None:
        """It has it no more."""
        self._copies.pop(name, None)
        self._choose(name)

    def is_copy(self, policy: PolicyId) -> bool:
        """Whether a stored policy is the copy of one that the API says itself."""
        of_calico = policy.kind == Kind.NETWORK_POLICY and policy.name.startswith(PREFIX)
        return self.followed and of_calico

    def _choose(self, name: str) -> None:
        profile = self._profiles.get(name) or self._copies.get(name)
        if profile is None:
            self.book.remove_profile(name)
        else:
            self.book.put_profile(profile)
