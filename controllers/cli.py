"""`tortie-controllers`: the cluster-wide controllers, one command each.

Datastore and API are found as by `tortiectl`. Exit status: 0 done or told to stop (SIGTERM,
SIGINT), 1 an error, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial

from controllers.candidate import Candidate
from controllers.command_line import build_parser
from controllers.elect_options import candidate_of, check_election
from controllers.gc import Collector, Settings
from controllers.health import Course
from controllers.leadership import LedStore, work_in_terms
from controllers.metrics import PassMetrics
from controllers.observed import health_of, observed
from controllers.output import complain, drop_output, note, say, say_if_possible
from controllers.page.problems import LastPass
from controllers.page.read import Source
from controllers.page.serve import page_at
from controllers.places import METRICS, PAGE, place_of
from ipam.annals import Annals
from ipam.gc import Means
from libtortie.client_config import Surroundings, client_config
from libtortie.connection import Connection
from libtortie.errors import InvalidInput, TortieError
from libtortie.history import Direct
from libtortie.serving_access import Place
from libtortie.signals import set_on

WHO = "tortie-controllers"
API_SECONDS = 30.0
"""Longest wait for one page of a list."""
PAGE_API_SECONDS = 10.0
"""The same for who looks at the page meanwhile."""


def main(args: Sequence[str] | None = None) -> None:
    """Run, and exit."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run; the exit status."""
    parser = build_parser()
    options = parser.parse_args(args)
    page = place_of(parser, options, PAGE)
    stop = threading.Event()
    if options.command == "page":
        set_on(stop, signal.SIGTERM, signal.SIGINT)
        return _page(page, options, stop)
    metrics = place_of(parser, options, METRICS)
    try:
        check_election(options)
    except InvalidInput as error:
        parser.error(str(error))
    set_on(stop, signal.SIGTERM, signal.SIGINT)
    return _gc(page, metrics, options, stop)


def _page(place: Place, options: argparse.Namespace, stop: threading.Event) -> int:
    """Serve the page and nothing else, until told to stop; the exit status."""
    try:
        with _paged(place, options, None):
            stop.wait()
    except TortieError as error:
        complain(str(error))
        return 1
    return 0


def _gc(page: Place, metrics: Place, options: argparse.Namespace, stop: threading.Event) -> int:
    """Collect until told to stop; the exit status."""
    passes = LastPass() if page.port else None
    try:
        with (
            _connected(options, API_SECONDS) as at,
            candidate_of(at.config.kube, options, note, complain) as candidate,
            _paged(page, options, passes),
        ):
            return 0 if _collect(at, options, stop, candidate, metrics, passes=passes) else 1
    except TortieError as error:
        complain(str(error))
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        complain(f"output: {error.strerror or error}")
    return 1


def _collect(
    at: Connection,
    options: argparse.Namespace,
    stop: threading.Event,
    candidate: Candidate | None,
    place: Place,
    *,
    passes: LastPass | None,
) -> bool:
    """Collect, as leader if there is an election; whether all went well."""
    metrics, course = PassMetrics(), Course()
    gauges = (candidate.gauge(),) if candidate else ()

    def work(over: threading.Event) -> bool:
        try:
            collector = _collector(
                at, options, over, metrics=metrics, course=course, candidate=candidate
            )
            collector.passes = passes
            return collector.run()
        finally:
            course.leave()

    health = partial(health_of, course, stop, candidate)
    with observed(place, lambda: (*metrics.all(), *gauges), health, at):
        return work(stop) if candidate is None else work_in_terms(candidate, stop, work)


def _collector(
    at: Connection,
    options: argparse.Namespace,
    stop: threading.Event,
    *,
    metrics: PassMetrics,
    course: Course,
    candidate: Candidate | None,
) -> Collector:
    if at.kube is None:
        complain("no Kubernetes API is configured: addresses of pods and VMs are kept")

    def pause(seconds: float) -> None:
        stop.wait(seconds)

    store = at.store if candidate is None else LedStore(at.store, candidate.leads)
    history = Direct(store, f"{WHO} {uuid.uuid4().hex}")

    def stopped() -> bool:
        return stop.is_set() or not (candidate is None or candidate.leads())

    means = Means(
        store,
        at.kube,
        lambda: datetime.now(UTC),
        sleep=pause,
        stopped=stopped,
        annals=Annals(WHO, lambda: datetime.now(UTC), history.write),
    )
    settings = Settings(
        grace=options.grace,
        period=options.grace / 2 if options.period is None else options.period,
        once=options.once,
        dry_run=options.dry_run,
        trust_empty=options.trust_empty_lists,
        json=options.output == "json",
    )
    told = say if settings.once else say_if_possible
    return Collector(means, settings, stop, told, complain, metrics, course, history=history)


@contextmanager
def _paged(place: Place, options: argparse.Namespace, passes: LastPass | None) -> Iterator[None]:
    """The page, if it is to be anywhere, over a connection of its own: whoever looks at it does
    not make the collector wait."""
    if not place.port:
        yield
        return
    with (
        _connected(options, PAGE_API_SECONDS) as at,
        page_at(place, Source(at.store, at.kube), passes, complain),
    ):
        yield


@contextmanager
def _connected(options: argparse.Namespace, api_seconds: float) -> Iterator[Connection]:
    config = client_config(options.config or "", "", Surroundings(os.environ))
    with closing(Connection(config, api_seconds=api_seconds)) as at:
        yield at


if __name__ == "__main__":
    main()
