"""Errors that cross a port, named once.

Adapters (datastore backends, the Kubernetes client, the kernel adapter) translate whatever
their library raises into one of these; nothing above an adapter sees a foreign exception.
"""

from __future__ import annotations

from collections.abc import Sequence


class TortieError(Exception):
    """Every error of ours; its text names the thing and, where there is one, the fix."""


class NotFound(TortieError):
    """The named object does not exist."""


class AlreadyExists(TortieError):
    """A create met an object of the same name."""


class Conflict(TortieError):
    """The object changed since it was read: read again and decide again."""


class Unavailable(TortieError):
    """No answer in time, or an answer that says "later". Retrying may help."""


class Closed(Unavailable):
    """This process closed the datastore: no retry can help."""


class Unauthorized(TortieError):
    """The credentials are missing, expired, or lack the verb (HTTP 401 or 403)."""


class Malformed(TortieError):
    """Stored or received bytes are not what their kind promises."""


class Compacted(TortieError):
    """The history asked for is gone (etcd compaction, HTTP 410): list again, then watch."""


class PartialCommit(TortieError):
    """A commit on a store without transactions stopped in the middle.

    `done` is the number of operations that were applied, in order, before `__cause__`.
    """

    def __init__(self, done: int, message: str) -> None:
        super().__init__(message)
        self.done = done


class InvalidInput(TortieError):
    """A person or program gave us something we refuse: bad netconf, CNI_ARGS, resource, flag."""


class NoFreeAddresses(TortieError):
    """No eligible pool has an address left; the text says what was tried."""


class OwnerMismatch(TortieError):
    """The address belongs to another owner; the text names both."""


class MigrationRefused(TortieError):
    """A migration target that may not have the VM's address; the text says why."""


class KernelError(TortieError):
    """The kernel refused a netlink request or a sysctl; the text names both."""


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's text, or its class name."""
    lines: Sequence[str] = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
