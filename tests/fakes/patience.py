"""Default deadlines of programs, lengthened in a process of the tests'.

A machine that stands still for some seconds must not look like a server that is away. Whoever
tests a deadline names it; everybody else waits long, which costs nothing when the answer comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from libtortie.connection import Connection
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import Timing
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.kube.client import HttpKubeClient
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.netns import Netns

PATIENCE = 90.0
"""Seconds."""
CALM = Timing(
    call=PATIENCE,
    attempt=10.0,
    silence=PATIENCE,
    patience=PATIENCE,
    keepalive=PATIENCE,
    keepalive_answer=PATIENCE,
)
"""No call, watch or connection to etcd is given up because somebody was stopped for a while."""

_DEFAULTS: tuple[tuple[Callable[..., None], str, object], ...] = (
    (HttpKubeClient.__init__, "timeout", PATIENCE),
    (SqliteDatastore.__init__, "timeout", PATIENCE),
    (EtcdDatastore.__init__, "timing", CALM),
    (Connection.__init__, "api_seconds", PATIENCE),
    (Netns.__init__, "deadline", PATIENCE),
    (NetlinkKernel.__init__, "deadline", PATIENCE),
)


@contextmanager
def patience() -> Iterator[None]:
    """Long defaults meanwhile."""
    with ExitStack() as stack:
        for function, name, value in _DEFAULTS:
            stack.callback(_set_default, function, name, _set_default(function, name, value))
        yield


def be_patient() -> None:
    """Long defaults from now on: for processes that a test starts."""
    for function, name, value in _DEFAULTS:
        _set_default(function, name, value)


def _set_default(function: Any, name: str, value: object) -> object:
    """Set a keyword's default; the one it had."""
    defaults: dict[str, object] = function.__kwdefaults__
    was = defaults[name]
    function.__kwdefaults__ = {**defaults, name: value}
    return was
