"""`tortie-controllers`: the cluster-wide controllers, one command each.

Datastore and API are found as by `tortiectl`. Exit status: 0 done or told to stop (SIGTERM,
SIGINT), 1 an error, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from controllers.gc import Collector, Settings
from controllers.metrics import PassMetrics
from ipam.gc import CLUSTER_GRACE_SECONDS, Means
from libtortie.client_config import Surroundings, client_config
from libtortie.connection import Connection
from libtortie.errors import TortieError
from libtortie.metrics_server import MetricsServer
from libtortie.model.times import parse_duration
from libtortie.signals import set_on
from libtortie.wording import DEFAULT_CONFIG, visible

API_SECONDS = 30.0
"""Longest wait for one page of a list."""


def main(args: Sequence[str] | None = None) -> None:
    """Run, and exit."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run; the exit status."""
    parser = build_parser()
    options = parser.parse_args(args)
    if options.once and options.metrics_port:
        parser.error("--metrics-port is of what runs on: leave out --once")
    if options.metrics_host and not options.metrics_port:
        parser.error("--metrics-host is where --metrics-port is: give both")
    stop = threading.Event()
    set_on(stop, signal.SIGTERM, signal.SIGINT)
    try:
        at = Connection(
            client_config(options.config or "", "", Surroundings(os.environ)),
            api_seconds=API_SECONDS,
        )
        try:
            collector = _collector(at, options, stop)
            with _served(collector.metrics, options):
                return 0 if collector.run() else 1
        finally:
            at.close()
    except TortieError as error:
        _complain(str(error))
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        _complain(f"output: {error.strerror or error}")
    return 1


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="tortie-controllers", description="What runs once for the whole cluster."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    gc = commands.add_parser(
        "gc",
        help="free what IPAM has allocated and nobody uses",
        description="Free addresses, handles, affinities and blocks that nobody uses, after two "
        "observations a grace apart. Without --once it runs until SIGTERM.",
    )
    gc.add_argument(
        "-c",
        "--config",
        type=_text,
        metavar="FILE",
        help=f"where datastore and API are (default {DEFAULT_CONFIG}, environment, node.yaml)",
    )
    gc.add_argument(
        "--once",
        action="store_true",
        help="observe, and if anything is doubtful once more a grace later; then exit",
    )
    gc.add_argument(
        "--dry-run",
        action="store_true",
        help="explain each verdict and change nothing; with --once after one observation",
    )
    gc.add_argument(
        "--grace",
        type=_duration,
        default=CLUSTER_GRACE_SECONDS,
        metavar="DURATION",
        help="how long something must have been doubtful, e.g. 90s (default 15m)",
    )
    gc.add_argument(
        "--period",
        type=_duration,
        metavar="DURATION",
        help="longest time between passes (default half the grace)",
    )
    gc.add_argument(
        "--trust-empty-lists",
        action="store_true",
        help="the cluster really has no pods or nodes, or others than IPAM knows; otherwise such "
        "lists free nothing",
    )
    _add_metrics(gc)
    gc.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser


def _add_metrics(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--metrics-port",
        type=_port,
        default=0,
        metavar="PORT",
        help="serve Prometheus at /metrics of this port, without --once (default: no)",
    )
    command.add_argument(
        "--metrics-host",
        default="",
        metavar="ADDRESS",
        help="where that port is (default: all addresses)",
    )


def _collector(at: Connection, options: argparse.Namespace, stop: threading.Event) -> Collector:
    if at.kube is None:
        _complain("no Kubernetes API is configured: addresses of pods and VMs are kept")

    def pause(seconds: float) -> None:
        stop.wait(seconds)

    means = Means(
        at.store,
        at.kube,
        lambda: datetime.now(UTC),
        sleep=pause,
        stopped=stop.is_set,
    )
    settings = Settings(
        grace=options.grace,
        period=options.grace / 2 if options.period is None else options.period,
        once=options.once,
        dry_run=options.dry_run,
        trust_empty=options.trust_empty_lists,
        json=options.output == "json",
    )
    say = _say if settings.once else _say_if_possible
    return Collector(means, settings, stop, say, _complain)


@contextlib.contextmanager
def _served(metrics: PassMetrics, options: argparse.Namespace) -> Iterator[None]:
    """The metrics at their port, if one is asked for; a port that is taken stops nothing."""
    if not options.metrics_port:
        yield
        return
    told: list[str] = []

    def trouble(reason: str) -> None:
        if reason not in told:
            told[:] = [reason]
            _complain(f"metrics: {reason}")

    server = MetricsServer(
        options.metrics_host,
        options.metrics_port,
        metrics.all(),
        serving=lambda _: told.clear(),
        trouble=trouble,
    )
    thread = threading.Thread(target=server.run, name="metrics")
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join()


def _port(value: str) -> int:
    port = int(value) if value.isascii() and value.isdecimal() and len(value) < 6 else 0
    if not 0 < port < 1 << 16:
        raise argparse.ArgumentTypeError(f"{value!r} is no port: 1 to 65535")
    return port


def _text(value: str) -> str:
    if not value:
        raise argparse.ArgumentTypeError("is empty; leave it out or give a value")
    return value


def _duration(value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _say(line: Iterable[str]) -> None:
    """A line of the result, in pieces; what the output's encoding does not have is escaped."""
    if sys.stdout is None:  # the caller closed it
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    encoding = sys.stdout.encoding or "utf-8"
    for piece in line:
        sys.stdout.write(piece.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.write("\n")
    sys.stdout.flush()


def _say_if_possible(line: Iterable[str]) -> None:
    """The same for a daemon: a full disk must not stop it, a reader that went away may."""
    try:
        _say(line)
    except BrokenPipeError:
        raise
    except OSError:
        return


def _complain(line: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"Error: {visible(line)}\n")
            sys.stderr.flush()


def _drop_output() -> None:
    """Leave nothing for the interpreter to write, and complain about, as it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
