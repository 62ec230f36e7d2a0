"""A VM that wants no persistent address: by annotation of its own objects or its namespace. Pure.

An opt-out only: nothing here makes addresses persist where the cluster's setting says they don't.
"""

from __future__ import annotations

from collections.abc import Iterable

from cni_plugin.types import short
from libtortie.errors import InvalidInput
from libtortie.kube.objects import KubeObject, Namespace
from libtortie.model.ipam import Persistence

OPT_OUT = "tortie.io/address-persistence"
"""Annotation of a VM, its VMI or pod, or of a Namespace: `Disabled` or `Enabled`."""


def opted_out(of_vm: Iterable[KubeObject], space: Namespace) -> str:
    """Which object says that a VM's addresses do not persist; empty when none does.

    The VM's own objects count before its namespace, so one of its VMs can opt in again. Raises
    `InvalidInput` for a value that is neither, whatever the others say.
    """
    objects = (*of_vm, space)
    said = [(one, _wish(one)) for one in objects]
    own = [(one, wish) for one, wish in said[:-1] if wish is not None]
    for one, wish in own or said[-1:]:
        if wish is Persistence.DISABLED:
            return _text(one)
    return ""


def _wish(one: KubeObject) -> Persistence | None:
    text = one.metadata.annotations.get(OPT_OUT)
    if text is None:
        return None
    try:
        return Persistence(text)
    except ValueError:
        raise InvalidInput(
            f"{_text(one)}: annotation {OPT_OUT} is {short(text)}; want {' or '.join(Persistence)}"
        ) from None


def _text(one: KubeObject) -> str:
    meta = one.metadata
    return f"{one.api.kind} {f'{meta.namespace}/' if meta.namespace else ''}{meta.name}"
