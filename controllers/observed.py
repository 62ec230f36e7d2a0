"""What the collector shows of itself while it runs: metrics, and probes of what it depends on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from controllers.candidate import Candidate
from controllers.health import Course
from controllers.output import Plain
from libtortie.complaint import Complaint
from libtortie.connection import Connection
from libtortie.metrics import Metric
from libtortie.model.keys import Kind, ResourceKey
from libtortie.probing import Prober, answers, api_answers
from libtortie.serving import Server
from libtortie.serving_access import Place
from libtortie.serving_pages import PROBES, Health, pages

PROBED = ResourceKey(Kind.CLUSTER_INFORMATION, "default")
"""What the datastore is asked for to see whether it answers."""


@contextmanager
def observed(
    place: Place,
    metrics: Callable[[], Sequence[Metric]],
    health: Callable[[Sequence[Prober]], Health],
    at: Connection,
) -> Iterator[None]:
    """Serve both, if that is asked for; a port that is taken stops nothing.

    Raises `InvalidInput` for files that let nobody in.
    """
    if not place.port:
        yield
        return
    probers = _probers(at)
    server = Server(
        place,
        pages(metrics, health(probers)),
        serving=lambda _: None,
        trouble=Complaint(Plain(), "metrics").about,
        open=PROBES,
    )
    server.check()
    front = threading.Thread(target=server.run, name="metrics")
    looking = [threading.Thread(target=one.run, name=one.name, daemon=True) for one in probers]
    for thread in (front, *looking):
        thread.start()
    try:
        yield
    finally:
        for one in probers:
            one.stop()  # one that hangs is not waited for
        server.stop()
        front.join()


def _probers(at: Connection) -> list[Prober]:
    store, kube = at.store, at.kube
    found = [Prober("datastore", lambda: answers(lambda: store.get(PROBED)))]
    if kube is not None:
        found.append(Prober("api", lambda: api_answers(kube)))
    return found


def health_of(
    course: Course,
    stop: threading.Event,
    candidate: Candidate | None,
    probers: Sequence[Prober],
) -> Health:
    """Of a leader, of one that waits to be one (it has no passes to make), or without election."""

    def live() -> dict[str, str]:
        election = {} if candidate is None else {"election": candidate.stalled()}
        return {"loop": course.stalled(), **election}

    def ready() -> dict[str, str]:
        found = {**{one.name: one.wrong() for one in probers}, **live()}
        works = candidate is None or candidate.leads()
        found["pass"] = course.wrong if works else ""
        found["stop"] = "stopping" if stop.is_set() else ""
        if candidate is not None and not found["election"]:
            found["election"] = candidate.trouble
        return found

    return Health(live, ready)
