"""Whether a VM's addresses are still its own. A VM that is stopped keeps them; a deleted one not.

A handle's addresses are doubtful when every VM (or VMI without a VM) that its owners name is gone,
by UID, and no owner is a living pod. `opine` is pure; `observe` asks the API, and only about whom
the handles name. What is not known is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from libtortie.kube.objects import KubeObject, Pod
from libtortie.kube.port import KubeReader
from libtortie.model.ipam import Owner

from .gc_addresses import Life, pod_of
from .gc_cluster import NO_API, ask, complete
from .gc_pods import PodName
from .gc_verdicts import Opinion, Span, Unknown, blind, doubt, good
from .ownership import is_pod
from .vm_handles import Reference, VMHandle, references

Place = tuple[type[KubeObject], str]
"""What one list is of: a kind in a namespace."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the API said about VMs and their pods.

    `lists` has, for each place that was asked, UIDs by name if the list is complete. `pods` has
    the UID of a pod that has not finished, None for one that is gone or has.
    """

    span: Span
    lists: Mapping[Place, Mapping[str, str] | Unknown] = field(default_factory=dict)
    pods: Mapping[PodName, str | Unknown | None] = field(default_factory=dict)


def opine(handle: VMHandle, seen: Observation) -> Opinion[VMHandle]:
    """What one observation says of a VM's handle."""
    named = references(handle)
    if not named:
        return good(handle, "nothing says which VM it is of")
    lives = [_object_life(reference, seen) for reference in named]
    lives += [_pod_life(owner, seen) for owner in handle.owners if is_pod(owner)]
    for one in lives:
        if one.lives:
            return good(handle, one.reason)
    for one in lives:
        if one.lives is None:
            return blind(handle, one.reason)
    return doubt(handle, "; ".join(one.reason for one in lives))


def observe(
    kube: KubeReader | None,
    handles: tuple[VMHandle, ...],
    monotonic: Callable[[], float],
    *,
    stranger: Unknown | None = None,
) -> Observation:
    """Ask the API about whom these handles name; never raises for what it answers.

    A `stranger` (another cluster's API) is not asked.
    """
    began = monotonic()
    named = [(handle, references(handle)) for handle in handles]
    places = {(one.kind, one.namespace): None for _, found in named for one in found}
    lists = {place: stranger or _uids(kube, *place) for place in places}
    seen = Observation(Span(began, began), lists)
    pods: dict[PodName, str | Unknown | None] = {}
    for handle, found in named:
        if found and not any(_object_life(one, seen).lives for one in found):
            for key in {pod_of(owner) for owner in handle.owners if is_pod(owner)} - set(pods):
                pods[key] = stranger or _pod_uid(kube, *key)
    return replace(seen, span=Span(began, monotonic()), pods=pods)


def confirm(kube: KubeReader | None, handle: VMHandle) -> Life:
    """Ask for each VM by its name, once more: a list that came empty by mistake frees nothing."""
    for reference in references(handle):
        life = _lookup(kube, reference)
        if life.lives is not False:
            return life
    return Life(False, "")


def _lookup(kube: KubeReader | None, wanted: Reference) -> Life:
    found = ask(kube, wanted.kind, wanted.name, wanted.namespace)
    if isinstance(found, Unknown):
        return Life(None, found.reason)
    if found is None or (wanted.uid and found.metadata.uid != wanted.uid):
        return Life(False, f"{wanted} is gone")
    return Life(True, f"{wanted} exists")


def _object_life(wanted: Reference, seen: Observation) -> Life:
    listed = seen.lists.get((wanted.kind, wanted.namespace), Unknown("not listed"))
    if isinstance(listed, Unknown):
        return Life(None, f"{wanted.kind.api.plural} in {wanted.namespace}: {listed.reason}")
    found = listed.get(wanted.name)
    if found is None:
        return Life(False, f"{wanted} is gone")
    if wanted.uid and found != wanted.uid:
        return Life(False, f"{wanted} is gone, that name's is now {found}")
    return Life(True, f"{wanted} exists")


def _pod_life(owner: Owner, seen: Observation) -> Life:
    key = pod_of(owner)
    name = f"pod {key[0]}/{key[1]}"
    found = seen.pods.get(key, Unknown("not looked up"))
    if isinstance(found, Unknown):
        return Life(None, f"{name}: {found.reason}")
    if found is None or found != owner.get("pod-uid", found):
        return Life(False, f"{name} is gone")
    return Life(True, f"{name} lives")


def _uids(
    kube: KubeReader | None, kind: type[KubeObject], namespace: str
) -> Mapping[str, str] | Unknown:
    """UIDs by name, if the list is complete."""
    objects = NO_API if kube is None else complete(kube, kind, namespace)
    if isinstance(objects, Unknown):
        return objects
    return {one.metadata.name: one.metadata.uid for one in objects}


def _pod_uid(kube: KubeReader | None, namespace: str, name: str) -> str | Unknown | None:
    found = ask(kube, Pod, name, namespace)
    if isinstance(found, Unknown):
        return found
    return None if found is None or found.finished else found.metadata.uid
