"""What Multus does with a pod's networks: the cluster's at the interface that the runtime asks for,
then each of the pod's at `net1`, `net2` …

Read in its source (`multus.go`): an interface that is there already is refused before anybody is
called; a delegate that fails has all of them deleted, itself first, and its error is the answer;
DEL goes backwards by what ADD saved, tries all and tells the errors together; a second DEL finds
nothing saved and goes by the pod. Wishes (`ips`, `mac`) of an element are capability arguments.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.libcni import JSON, Attachment, PluginError, Runtime


@dataclass(frozen=True, slots=True)
class Delegate:
    """A network of a pod; `wishes` are its element of the pod's annotation."""

    network: JSON
    wishes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Multus:
    """Delegates by the runtime's libcni; `saved` is its directory of what ADD did."""

    runtime: Runtime
    saved: dict[str, tuple[Delegate, ...]] = field(default_factory=dict)

    def add(self, one: Attachment, delegates: Sequence[Delegate]) -> list[JSON]:
        """ADD: every delegate's result, the runtime's first. Raises `PluginError`."""
        self.saved[one.container] = tuple(delegates)
        results = []
        for number, delegate in enumerate(delegates):
            each = named(one, number, delegate)
            try:
                _require_free(each)
                results.append(self.runtime.add(delegate.network, each))
            except PluginError:
                self._delete(one, delegates[: number + 1])
                raise
        return results

    def check(self, one: Attachment) -> None:
        """CHECK of every delegate."""
        for number, delegate in enumerate(self.saved[one.container]):
            self.runtime.check(delegate.network, named(one, number, delegate))

    def delete(self, one: Attachment, of_the_pod: Sequence[Delegate] = ()) -> None:
        """DEL. Raises `PluginError`, the first of them, when all were tried."""
        errors = self._delete(one, self.saved.get(one.container, tuple(of_the_pod)))
        if errors:
            raise errors[0]
        self.saved.pop(one.container, None)

    def _delete(self, one: Attachment, delegates: Sequence[Delegate]) -> list[PluginError]:
        errors = []
        for number, delegate in reversed(list(enumerate(delegates))):
            try:
                self.runtime.delete(delegate.network, named(one, number, delegate))
            except PluginError as error:
                errors.append(error)
        return errors


def named(one: Attachment, number: int, delegate: Delegate) -> Attachment:
    """The attachment of a delegate."""
    ifname = one.ifname if number == 0 else f"net{number}"
    return Attachment(one.container, one.netns, ifname, one.args, delegate.wishes)


def _require_free(one: Attachment) -> None:
    space = one.netns.rpartition("/")[2]
    command = ["ip", "-n", space, "link", "show", one.ifname]
    if subprocess.run(command, check=False, capture_output=True).returncode == 0:
        raise PluginError("multus", "ADD", {"msg": f"interface name {one.ifname} already exists"})
