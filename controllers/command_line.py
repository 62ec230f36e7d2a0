"""The command line of `tortie-controllers`."""

from __future__ import annotations

import argparse

from controllers.elect_options import add_election
from controllers.places import METRICS, PAGE, PAGE_PORT, add_place
from ipam.gc import CLUSTER_GRACE_SECONDS
from libtortie.model.times import parse_duration
from libtortie.wording import DEFAULT_CONFIG

A_PAGE = "a read-only page about the cluster"
EXAMPLES = """\
examples:
  tortie-controllers gc --once --dry-run
  tortie-controllers gc --metrics-port 9092 --page-port 9093
  tortie-controllers page
  tortie-controllers page --page-host 0.0.0.0 --page-token-file /etc/tortie/page.tokens \\
      --page-cert-file /etc/tortie/page.crt --page-key-file /etc/tortie/page.key
"""


def build_parser() -> argparse.ArgumentParser:
    """All of it."""
    parser = argparse.ArgumentParser(
        prog="tortie-controllers",
        description="What runs once for the whole cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    page = commands.add_parser(
        "page",
        help=f"serve {A_PAGE}, and change nothing",
        description="Serve a read-only page: VMs, migrations, IPAM's use, problems. Runs until "
        "SIGTERM. `gc --page-port` serves the same beside the collector.",
    )
    _add_config(page)
    add_place(page, PAGE, A_PAGE, port=PAGE_PORT)
    gc = commands.add_parser(
        "gc",
        help="free what IPAM has allocated and nobody uses",
        description="Free addresses, handles, affinities and blocks that nobody uses, after two "
        "observations a grace apart. Without --once it runs until SIGTERM.",
    )
    _add_config(gc)
    _add_collecting(gc)
    add_place(gc, METRICS, "metrics for Prometheus, and probes,")
    add_place(gc, PAGE, A_PAGE)
    add_election(gc, _duration)
    gc.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-c",
        "--config",
        type=_text,
        metavar="FILE",
        help=f"where datastore and API are (default {DEFAULT_CONFIG}, environment, node.yaml)",
    )


def _add_collecting(gc: argparse.ArgumentParser) -> None:
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


def _text(value: str) -> str:
    if not value:
        raise argparse.ArgumentTypeError("is empty; leave it out or give a value")
    return value


def _duration(value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
