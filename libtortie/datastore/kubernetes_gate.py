"""The one door through which the Kubernetes datastore talks: closed with it, and clear about CRDs.

A kind that the server does not serve is `Unavailable`, never an empty store: a CRD may be
installed later, and blocks that cannot be seen are not absent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from libtortie.datastore.crd_names import Group
from libtortie.errors import Closed, Unavailable
from libtortie.kube import prepare
from libtortie.kube.lines import RawEvent
from libtortie.kube.port import NotServed
from libtortie.kube.raw import Carrier, RawObjects

_GROUP_V1, _GROUP_V3 = (group.value.partition("/")[0] for group in Group)


class Gate:
    """A `Carrier` in front of another."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.closed = threading.Event()

    @property
    def server(self) -> str:
        """The server's URL."""
        return self._carrier.server

    def require_open(self) -> None:
        """Raise `Closed` once the datastore is closed."""
        if self.closed.is_set():
            raise Closed("the datastore is closed")

    def send(self, request: prepare.Request) -> bytes:
        """As the carrier's."""
        self.require_open()
        with self._explained(request):
            return self._carrier.send(request)

    def events(
        self, request: prepare.Request, *, seconds: float, stop: threading.Event | None = None
    ) -> Iterator[RawEvent]:
        """As the carrier's."""
        with self._explained(request):
            yield from self._carrier.events(request, seconds=seconds, stop=stop)

    @contextmanager
    def _explained(self, request: prepare.Request) -> Iterator[None]:
        try:
            yield
        except NotServed as error:
            resource = request.subject.partition(" ")[0].partition("/")[0]
            if not resource:
                raise Unavailable(f"{self.server} is no Kubernetes API server: {error}") from error
            raise Unavailable(
                f"{self.server} does not serve {resource}: install Calico's "
                f"CustomResourceDefinition {resource}, or set calico_api_group to the group that "
                f"is installed ({' or '.join(Group)})"
            ) from error


def served_group(objects: RawObjects) -> Group:
    """Calico's choice where none is configured: v1, unless v3 alone is served.

    Raises `Unavailable` and the like: a server that does not answer says nothing about its groups.
    """
    groups = objects.groups()
    return Group.V3 if _GROUP_V3 in groups and _GROUP_V1 not in groups else Group.V1
