"""`tortie-migration-proxy`: the daemon. Exit status: 0 told to stop and drained, 1 an error or
streams that had to be ended, 2 a wrong command line.

SIGTERM and SIGINT begin the drain, once: no new migrations, then the end of those there are, at
most `drain_seconds`. A second signal changes nothing. An unexpected exception in a thread of the
daemon's own ends it, for its supervisor to start it again; one in a stream ends that stream.
"""

from __future__ import annotations

import argparse
import fcntl
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, Any

from libtortie.complaint import Complaint
from libtortie.errors import InvalidInput, TortieError, first_line
from libtortie.jsonlog import JsonLog, open_log
from libtortie.linux.netlink import NetlinkKernel
from libtortie.metrics import Metric
from libtortie.metrics_server import MetricsServer
from libtortie.signals import set_on
from libtortie.wording import visible
from migration_proxy.config import DEFAULT_CONFIG, ProxyConfig, load_config
from migration_proxy.control import Control, ControlServer, health
from migration_proxy.manager import ProxyManager
from migration_proxy.tcp_sockets import Network
from migration_proxy.telemetry import PREFIX, Readings, Telemetry

LOOK_SECONDS = 1.0
REAP_SECONDS = 10.0
DYING_SECONDS = 10.0
"""How long a lock may be held by a child of a dead daemon that has yet to begin its own program."""
DISABLED_TLS = (
    "disable_tls is on: whoever is on the network between the nodes can read and change the memory "
    "of VMs; only the peer's address is checked"
)


def main(args: Sequence[str] | None = None) -> None:
    """Run, and exit."""
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run until a signal; the exit status."""
    given = vars(build_parser().parse_args(args))
    over = threading.Event()
    set_on(over, signal.SIGTERM, signal.SIGINT)
    try:
        config = load_config(given.pop("config"), _flags(given))
        _raise_descriptors()
        log = open_log(config.log_file, config.log_level, config.node, config.log_limits)
        with closing(_take_lock(Path(f"{config.control_socket}.lock"))):
            return Daemon(config, log, over).run()
    except (TortieError, OSError) as error:
        sys.stderr.write(f"Error: {visible(first_line(error))}\n")
        return 1


class Daemon:
    """The threads around a `ProxyManager`; `over` is set by who wants the end."""

    def __init__(self, config: ProxyConfig, log: JsonLog, over: threading.Event) -> None:
        self._config, self._log, self._over = config, log, over
        self._drained = threading.Event()
        self._telemetry = Telemetry()
        self._manager = ProxyManager(config, _network(), log, self._telemetry)
        self._failed = False

    def run(self) -> int:
        """Serve; the exit status. Raises `InvalidInput`, OSError when it cannot begin."""
        for files in (self._manager.means.server, self._manager.means.client):
            if files is not None:
                files.current()
        if self._config.disable_tls:
            self._log.warning("tls_disabled", reason=DISABLED_TLS)
            sys.stderr.write(f"Warning: {DISABLED_TLS}\n")
        control = ControlServer(
            Path(self._config.control_socket), Control(self._manager), self._log
        )
        control.open()
        with ExitStack() as stack:
            self._start(stack, "control", control.run, control.stop)
            if self._config.metrics_port:
                page = self._page()
                self._start(stack, "metrics", page.run, page.stop)
            self._start(stack, "chores", self._chores, self._drained.set)
            self._log.info("serving", control_socket=self._config.control_socket)
            self._over.wait()
            drain = 0.0 if self._failed else self._config.drain_seconds
            self._log.info("draining", seconds=drain, migrations=len(self._manager.migrations()))
            drained = self._manager.shutdown(drain)
        self._log.info("stopped", drained=drained)
        return 0 if drained and not self._failed else 1

    def _start(
        self,
        stack: ExitStack,
        name: str,
        body: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        """Start a thread whose failure ends the daemon; the stack stops and joins it."""

        def guarded() -> None:
            try:
                body()
            except BaseException as error:  # whatever it is, it must end the process
                self._failed = True
                self._log.error("thread_failed", thread=name, reason=repr(error))
                self._over.set()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        stack.callback(thread.join, 10.0)
        stack.callback(stop)

    def _chores(self) -> None:
        """Measure speeds each second, and end what nobody uses; the drain waits for that, too."""
        reaped = time.monotonic()
        while not self._drained.wait(LOOK_SECONDS):
            now = time.monotonic()
            self._telemetry.speed.look(self._totals(), now)
            if now - reaped >= REAP_SECONDS:
                reaped = now
                self._manager.reap()

    def _totals(self) -> dict[tuple[str, ...], int]:
        return {
            (one.request.key, str(one.request.side)): sum(
                sum(listener.totals()) for listener in one.listeners
            )
            for one in self._manager.migrations()
        }

    def _page(self) -> MetricsServer:
        return MetricsServer(
            self._config.metrics_host,
            self._config.metrics_port,
            [*self._telemetry.metrics(), *self._readings()],
            serving=lambda port: self._log.info("metrics_serving", port=port),
            trouble=Complaint(self._log, "metrics_not_served").about,
            health=lambda: health(self._manager),
        )

    def _readings(self) -> tuple[Metric, ...]:
        labels = ("migration", "side")
        speed = self._telemetry.speed
        return (
            Readings(
                f"{PREFIX}_migration_bytes",
                "Bytes of each open migration, both ways.",
                labels,
                self._totals,
            ),
            Readings(
                f"{PREFIX}_migration_bytes_per_second",
                "Throughput of each open migration in the last second.",
                labels,
                lambda: {name: speed.of(*name) for name in self._totals()},
            ),
            Readings(
                f"{PREFIX}_open_streams",
                "Streams that are open now.",
                labels,
                lambda: {
                    (one.request.key, str(one.request.side)): sum(
                        len(listener.sessions()) for listener in one.listeners
                    )
                    for one in self._manager.migrations()
                },
            ),
        )


def _network() -> Network:
    kernel = NetlinkKernel()
    lock = threading.Lock()  # a netlink channel is one thread's at a time

    def links() -> list[str]:
        with lock:
            return [link.name for link in kernel.links()]

    def addresses(name: str) -> Sequence[Any]:
        with lock:
            return kernel.addresses(name)

    return Network(links, addresses)


def _raise_descriptors() -> None:
    """As many as this process may have: a plain stream takes six, the usual soft limit is 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # then the soft one has to do
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _take_lock(path: Path) -> IO[str]:
    """One daemon for each control socket. Raises `InvalidInput`, OSError."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    file = path.open("a+", encoding="ascii")
    end = time.monotonic() + DYING_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(0.05)
                continue
            file.close()
            raise InvalidInput(f"another tortie-migration-proxy holds {path}") from None
        return file


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="tortie-migration-proxy",
        description="Carries live migrations between nodes: unix sockets here, TLS between.",
    )
    add = parser.add_argument
    add("-c", "--config", default="", metavar="FILE", help=f"default {DEFAULT_CONFIG}")
    add("--listen", metavar="WHERE", help="an interface, a CIDR or an address for target listeners")
    add("--port-range", metavar="A-B", help="TCP ports of target listeners")
    add("--control-socket", metavar="PATH", help="where commands are taken")
    add("--node", metavar="NAME", help="this node's name, for the log")
    add("--metrics-port", type=int, metavar="PORT", help="for Prometheus and /healthz; 0: none")
    add("--log-level", choices=("debug", "info", "warning", "error"))
    add("--log-file", metavar="FILE", help="default: standard error")
    add(
        "--drain-seconds", type=float, metavar="S", help="how long migrations may end after SIGTERM"
    )
    add("--disable-tls", action="store_true", default=None, help="a bad idea: memory in the clear")
    return parser


def _flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, as keys of the configuration."""
    return {name: value for name, value in given.items() if value is not None}


if __name__ == "__main__":
    main()
