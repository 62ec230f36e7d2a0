"""From ripe verdicts to effects: the last question to the API, the order, what went wrong.

A ripe verdict is still only an opinion of lists. Before an address is freed, or a removed node's
block given up, the API is asked by name; only its "not found" (or another UID) lets it go. An
effect that fails leaves its subject alone, with the reason; the next pass tries again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from libtortie.errors import TortieError, first_line
from libtortie.kube.objects import KubeNode, Pod
from libtortie.kube.port import KubeReader
from libtortie.model.keys import IPNetwork

from . import gc_effects, gc_nobodys, gc_vms
from .gc_addresses import Life, owner_of, pod_life, pod_of
from .gc_claims import Claim, Flaw
from .gc_cluster import ask, kube_name, names_in
from .gc_effects import BATCH, Means
from .gc_handles import HandleState
from .gc_inventory import Allocated, Inventory
from .gc_pods import Names, pod_facts
from .gc_verdicts import Outcome, Subject, Unknown, Verdict, kept
from .ownership import is_pod
from .vm_handles import VMHandle

S = TypeVar("S", bound=Subject)
Due = Verdict[Subject]

CHANGED = "it changed after it was judged"


def apply(means: Means, inventory: Inventory, verdicts: Sequence[Due]) -> tuple[Due, ...]:
    """Do what is ripe; a verdict that could not be carried out becomes KEEP with the reason.

    Addresses first, then handles, then claims: a block may be empty by then.
    """
    due = [one for one in verdicts if one.outcome is Outcome.FREE]
    holders: dict[str, list[tuple[Due, Allocated]]] = {}
    loose: dict[IPNetwork, list[tuple[Due, Allocated]]] = {}
    done: list[Due] = []
    for one in due:
        if isinstance(one.subject, VMHandle):
            done.append(free_vm(means, one, one.subject))
        elif isinstance(one.subject, Allocated) and one.subject.nobodys:
            loose.setdefault(one.subject.piece.cidr, []).append((one, one.subject))
        elif isinstance(one.subject, Allocated):
            holders.setdefault(one.subject.handle_id, []).append((one, one.subject))
    names = names_in(inventory)
    for handle_id, judged in holders.items():
        done += _free(means, inventory, names, handle_id, judged)
    for cidr, nobodys in loose.items():
        done += _free_nobodys(means, cidr, nobodys, inventory.cooldown or 0)
    states = [(one, one.subject) for one in due if isinstance(one.subject, HandleState)]
    for start in range(0, len(states), BATCH):
        done += _mend(means, states[start : start + BATCH])
    done += [_tidy(means, inventory, o, o.subject) for o in due if isinstance(o.subject, Claim)]
    by_key = {one.subject.key: one for one in done}
    return tuple(by_key.get(one.subject.key, one) for one in verdicts)


def free_vm(means: Means, verdict: Verdict[S], handle: VMHandle) -> Verdict[S]:
    """Free a VM's addresses if that is the verdict."""
    if verdict.outcome is not Outcome.FREE:
        return verdict
    try:
        means.go_on()
        life = gc_vms.confirm(means.kube, handle)
        if life.lives is not False:
            return _spared(verdict, life)
        return verdict if gc_effects.release_vm(means, handle) else kept(verdict, CHANGED)
    except TortieError as error:
        return _failed(verdict, error)


def _free(
    means: Means,
    inventory: Inventory,
    names: Names,
    handle_id: str,
    judged: list[tuple[Due, Allocated]],
) -> list[Due]:
    """Free those of a handle's addresses that the API, asked by name, does not speak for."""
    done: list[Due] = []
    certain: list[tuple[Due, Allocated]] = []
    for verdict, found in judged:
        life = _pod_now(means, inventory, names, found)
        if life.lives is False:
            certain.append((verdict, found))
        else:
            done.append(_spared(verdict, life))
    if not certain:
        return done
    try:
        freed = gc_effects.release(means, handle_id, [found.piece for _, found in certain])
    except TortieError as error:
        return done + [_failed(verdict, error) for verdict, _ in certain]
    return done + [v if found.piece.address in freed else kept(v, CHANGED) for v, found in certain]


def _free_nobodys(
    means: Means, cidr: IPNetwork, judged: list[tuple[Due, Allocated]], rested: int
) -> list[Due]:
    """Free a block's addresses of nobody. There is no name by which the API could be asked."""
    try:
        freed = gc_nobodys.release(means, cidr, [found.piece for _, found in judged], rested)
    except TortieError as error:
        return [_failed(verdict, error) for verdict, _ in judged]
    return [v if found.piece.address in freed else kept(v, CHANGED) for v, found in judged]


def _pod_now(means: Means, inventory: Inventory, names: Names, found: Allocated) -> Life:
    """What the API says of an address's pod, or of a tunnel's node, when asked by name."""
    owner, kube = owner_of(found), means.kube
    if means.stopped():
        return Life(None, "told to stop")
    if not is_pod(owner):
        return _node_now(kube, inventory, owner.get("node", ""))
    namespace, name = pod_of(owner)
    pod = ask(kube, Pod, name, namespace)
    if isinstance(pod, Unknown):
        return Life(None, pod.reason)
    pods = {} if pod is None else {(namespace, name): pod_facts(pod, names)}
    return pod_life(owner, found.piece.address, pods)


def _node_now(kube: KubeReader | None, inventory: Inventory, node: str) -> Life:
    """Whether the API has a node; the datastore's word is compared by the commit."""
    if kube is None:
        return Life(False, "")
    stored = inventory.nodes.get(node)
    name = (kube_name(stored) if stored else "") or node
    found = ask(kube, KubeNode, name)
    if isinstance(found, Unknown):
        return Life(None, found.reason)
    return Life(found is not None, f"node {name} exists" if found else "")


def _mend(means: Means, judged: Sequence[tuple[Due, HandleState]]) -> list[Due]:
    """Mend handles together; where that fails, each for itself."""
    try:
        mended = gc_effects.mend_handles(means, [state for _, state in judged])
    except TortieError as error:
        if len(judged) == 1:
            return [_failed(judged[0][0], error)]
        return [one for pair in judged for one in _mend(means, [pair])]
    return [v if state.handle_id in mended else kept(v, CHANGED) for v, state in judged]


def _tidy(means: Means, inventory: Inventory, verdict: Due, claim: Claim) -> Due:
    if claim.flaw is Flaw.LOST_NODE:
        life = _node_now(means.kube, inventory, claim.node)
        if life.lives is not False:
            return _spared(verdict, life)
    try:
        return verdict if gc_effects.tidy(means, claim) else kept(verdict, CHANGED)
    except TortieError as error:
        return _failed(verdict, error)


def _spared(verdict: Verdict[S], life: Life) -> Verdict[S]:
    return kept(verdict, life.reason, unknown=life.lives is None)


def _failed(verdict: Verdict[S], error: TortieError) -> Verdict[S]:
    return kept(verdict, f"it could not be freed: {first_line(error)}", unknown=True)
