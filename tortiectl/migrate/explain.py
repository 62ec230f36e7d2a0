"""Why KubeVirt refuses a migration, in words that help. Pure."""

from __future__ import annotations

_KNOWN = (
    ("in-flight migration detected",
     "another migration of this VM is running; wait for it, or `tortiectl vm migrate VM --cancel`"),
    ("InterfaceNotLiveMigratable",
     "its interface on the pod network may not migrate; `tortiectl vm preflight VM` has the fix"),
    ("DisksNotLiveMigratable",
     "a disk is not shared between nodes; `tortiectl vm preflight VM` names all of them"),
    ("Cannot migrate VMI, Reason:",
     "KubeVirt names the first reason only; `tortiectl vm preflight VM` has all, with fixes"),
    ("finalized state", "its guest has ended: there is nothing to move"),
    ("does not exist", "a VM that does not run has no instance to move"),
    ("HTTP 403", "you need the right to create virtualmachineinstancemigrations"),
)  # fmt: skip


def explanation(refusal: str) -> str:
    """What a refusal's text means; empty for one that is not known."""
    return next((text for words, text in _KNOWN if words in refusal), "")


def verbatim(refusal: str) -> str:
    """KubeVirt's own words, without what our client and the API put before them."""
    _, found, words = refusal.partition("denied the request: ")
    return words if found else refusal
