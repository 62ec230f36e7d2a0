"""The connection of a command, as its options and the environment have it."""

from __future__ import annotations

import logging
import os

import click

from libtortie.client_config import Surroundings, client_config
from libtortie.connection import Connection
from tortiectl.cli import REQUEST_TIMEOUT, Globals

__all__ = ["Connection", "connect"]


def connect(ctx: click.Context, config: str) -> Connection:
    """The connection of a command, closed when its context is. Raises `InvalidInput`."""
    options = ctx.find_object(Globals) or Globals()
    level = {"panic": "CRITICAL", "fatal": "CRITICAL"}.get(options.log_level, options.log_level)
    logging.basicConfig(level=level.upper(), format="%(levelname)s: %(message)s")
    around = Surroundings(os.environ)
    seconds = options.request_timeout
    found = client_config(config, options.context, around)
    if seconds is None:
        connection = Connection(found, patience=REQUEST_TIMEOUT)
    else:
        connection = Connection(found, api_seconds=seconds, call_seconds=seconds, patience=seconds)
    ctx.call_on_close(connection.close)
    return connection
