"""Make a node's block affinities findable by the node, whoever stored them.

In Kubernetes a node finds its affinities by labels, which Calico's releases before v3.32 did not
write: a node that changes over from one would forget its blocks and claim new ones. Writing a
value again adds its labels. It must never change what an affinity says.
"""

from __future__ import annotations

from libtortie.datastore.port import Datastore, Update
from libtortie.model.keys import Affinities, AffinityKey


def label_claims(store: Datastore, node: str) -> int:
    """Rewrite this node's affinities that its own list lacks; returns how many there were.

    Raises `Conflict` when one changed or went meanwhile (then repeat), and what the store raises.
    """
    shown = set(store.names(Affinities(node)))
    hidden = [
        record
        for record in store.list(Affinities()).records
        if isinstance(record.key, AffinityKey)
        and record.key.node == node
        and record.key not in shown
    ]
    for record in hidden:
        store.commit([Update(record.key, record.value, record.revision)])
    return len(hidden)
