"""The Profile of a CNI network: what an attachment without a pod may do where no policy decides.

As Calico's plugin has it: to everybody, and from those of the same network, whom the profile gives
a label. The first attachment makes it; it stays, and what others made of it is kept.
"""

from __future__ import annotations

from contextlib import suppress

from libtortie.datastore.port import Datastore
from libtortie.errors import AlreadyExists, InvalidInput, Malformed, NotFound
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import API_VERSION, Resource, parse_resource


def of_network(network: str) -> Resource:
    """The profile as it is made."""
    same = {"selector": f"has({network})"}
    return parse_resource(
        Kind.PROFILE,
        {
            "apiVersion": API_VERSION,
            "kind": Kind.PROFILE.value,
            "metadata": {"name": network},
            "spec": {
                "ingress": [{"action": "Allow", "source": same}],
                "egress": [{"action": "Allow"}],
                "labelsToApply": {network: ""},
            },
        },
    )


def ensure(store: Datastore, network: str) -> None:
    """See that the network has a profile. Raises what the store raises."""
    key = ResourceKey(Kind.PROFILE, network)
    try:
        store.get(key)
        return
    except NotFound:
        pass
    except Malformed:
        return  # somebody's; the agent names it, and who is closed by it
    # Another attachment may have been first. Kubernetes has no such profile, and no attachments
    # without a pod: the endpoint is refused with that reason.
    with suppress(AlreadyExists, InvalidInput):
        store.create(key, of_network(network))
