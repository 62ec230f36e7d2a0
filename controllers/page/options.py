"""The page's options on the command line."""

from __future__ import annotations

import argparse

from libtortie.errors import InvalidInput
from libtortie.serving_access import Place

PORT = 9093
PREFIX = "--page-"
FIELDS = (
    ("host", "ADDRESS", "where to listen (default: loopback; others need one of the next two)"),
    ("token-file", "FILE", "who has one of its tokens may read (a browser's user: as password)"),
    ("client-ca-file", "FILE", "whose certificate is of this CA (PEM) may read"),
    ("cert-file", "FILE", "serve HTTPS with this certificate (PEM)"),
    ("key-file", "FILE", "its key"),
)


def add_options(command: argparse.ArgumentParser, *, port: int = 0) -> None:
    """The options of where the page is and who may read it; `port` 0: no page by default."""
    default = f"default {port}" if port else "default: no page"
    command.add_argument(
        f"{PREFIX}port",
        type=_port,
        default=port,
        metavar="PORT",
        help=f"serve a read-only page about the cluster at this port ({default})",
    )
    for name, meta, text in FIELDS:
        command.add_argument(f"{PREFIX}{name}", default="", metavar=meta, help=text)


def place_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Place | None:
    """Where the page is to be, None for nowhere; a wrong command line ends the program."""
    names = [name.replace("-", "_") for name, _, _ in FIELDS]
    given = {name: getattr(options, f"page_{name}") for name in names}
    if not options.page_port:
        for name, value in given.items():
            if value:
                parser.error(f"{PREFIX}{name.replace('_', '-')} needs {PREFIX}port: give both")
        return None
    place = Place(options.page_port, **given)
    try:
        place.check(PREFIX)
    except InvalidInput as error:
        parser.error(str(error))
    return place


def _port(value: str) -> int:
    port = int(value) if value.isascii() and value.isdecimal() and len(value) < 6 else 0
    if not 0 < port < 1 << 16:
        raise argparse.ArgumentTypeError(f"{value!r} is no port: 1 to 65535")
    return port
