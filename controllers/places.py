"""Where something is served and who may read it, on the command line: `--page-…`, `--metrics-…`."""

from __future__ import annotations

import argparse

from libtortie.errors import InvalidInput
from libtortie.serving_access import Place

PAGE, METRICS = "page", "metrics"
PAGE_PORT = 9093
"""Where the page is when it is all there is."""
FIELDS = (
    ("host", "ADDRESS", "where that port is (default: loopback; others need one of the next two)"),
    ("token-file", "FILE", "who has one of its tokens may read (a browser's user: as password)"),
    ("client-ca-file", "FILE", "whose certificate is of this CA (PEM) may read"),
    ("cert-file", "FILE", "serve HTTPS with this certificate (PEM)"),
    ("key-file", "FILE", "its key"),
)


def add_place(command: argparse.ArgumentParser, name: str, text: str, *, port: int = 0) -> None:
    """The options of what is served; `port` 0: nothing by default."""
    default = f"default {port}" if port else "default: none"
    command.add_argument(
        f"--{name}-port",
        type=_port,
        default=port,
        metavar="PORT",
        help=f"serve {text} at this port ({default})",
    )
    for option, meta, help_text in FIELDS:
        command.add_argument(f"--{name}-{option}", default="", metavar=meta, help=help_text)


def place_of(parser: argparse.ArgumentParser, options: argparse.Namespace, name: str) -> Place:
    """Where it is to be, port 0 for nowhere; a wrong command line ends the program."""
    port = getattr(options, f"{name}_port")
    if port and getattr(options, "once", False):
        parser.error(f"--{name}-port is of what runs on: leave out --once")
    given = {}
    for option, _, _ in FIELDS:
        field = option.replace("-", "_")
        given[field] = getattr(options, f"{name}_{field}")
        if given[field] and not port:
            parser.error(f"--{name}-{option} needs --{name}-port: give both")
    place = Place(port, **given)
    try:
        place.check(f"--{name}-")
    except InvalidInput as error:
        parser.error(str(error))
    return place


def _port(value: str) -> int:
    port = int(value) if value.isascii() and value.isdecimal() and len(value) < 6 else 0
    if not 0 < port < 1 << 16:
        raise argparse.ArgumentTypeError(f"{value!r} is no port: 1 to 65535")
    return port
