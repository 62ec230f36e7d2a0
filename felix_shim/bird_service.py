"""`tortie-bird`: BIRD under a supervisor of its own, so that no agent's end takes it along.

For `bird.mode: external`. It waits for the configuration that the agent writes, runs BIRD in the
foreground and ends with it. Told to stop (SIGTERM, SIGINT) it lets BIRD end by a graceful restart:
peers and kernel keep the routes until the next one is there, which says so to its peers. What a
killed one left running is the next one's: no session ends. It never starts a second BIRD on one
control socket, and never writes a configuration.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import click

from felix_shim.bird_daemon import bird_of
from felix_shim.cni_server import take_lock
from felix_shim.config import NodeConfig, load_config
from felix_shim.drivers.bird import Bird
from libtortie.errors import InvalidInput, TortieError, first_line
from libtortie.jsonlog import JsonLog, open_log
from libtortie.signals import set_on
from libtortie.wording import NODE_FILE

LOOK_SECONDS = 0.2
"""Between two looks for a configuration."""
STOP_SECONDS = 10.0
"""For BIRD to end once it was told to; then it is ended."""


@click.command(name="tortie-bird")
@click.option("--config", "path", default="", help=f"The agent's (default {NODE_FILE}).")
def main(path: str) -> None:
    """Run BIRD for this node's agent, which has `bird.mode: external`."""
    try:
        config = load_config(path or NODE_FILE, required=bool(path), environ=os.environ)
        if config.bird.mode != "external":
            raise InvalidInput(
                f"bird.mode is {config.bird.mode}: the agent looks after BIRD itself; "
                "say external, or do without tortie-bird"
            )
        log = open_log("", config.log_level, config.node, config.log_limits)
    except InvalidInput as error:
        raise click.ClickException(str(error)) from error
    over = threading.Event()
    set_on(over, signal.SIGTERM, signal.SIGINT)
    sys.exit(run(config, log, over))


def run(config: NodeConfig, log: JsonLog, over: threading.Event) -> int:
    """The process's life, until BIRD ends or `over` is set; its exit status."""
    bird, run_dir = bird_of(config), Path(config.run_dir)
    try:
        with take_lock(run_dir / "bird.lock"):
            if bird.alive():
                if (found := _adopted(bird)) is not None:
                    return _supervise(bird, found, log, over)
                raise InvalidInput(
                    f"a BIRD answers on {config.bird_socket} already: end it with "
                    f"`birdc -s {config.bird_socket} graceful restart`"
                )
            while not bird.configured():
                if over.wait(LOOK_SECONDS):
                    return 0
            return _supervise(bird, bird.in_foreground(), log, over)
    except (TortieError, OSError) as error:
        log.error("bird_failed", reason=first_line(error))
        return 1


class _Process(Protocol):
    """BIRD's, whoever started it. `returncode`: how it ended, where that can be known."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def wait(self) -> object: ...

    def kill(self) -> None: ...


class _Adopted:
    """A process of somebody's who is gone. Raises OSError where there is none."""

    returncode = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def wait(self) -> None:
        """Until it has ended."""
        select.select([self._pidfd], [], [])

    def close(self) -> None:
        """Let it be."""
        os.close(self._pidfd)

    def kill(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _adopted(bird: Bird) -> _Adopted | None:
    """The BIRD that answers, if it is known which process that is.

    It is asked again once it is held: until then it may have ended, and its pid be another's.
    """
    pid = bird.in_the_foreground()
    if not pid:
        return None
    found = _Adopted(pid)
    if bird.in_the_foreground() == pid:
        return found
    found.close()
    return None


def _supervise(bird: Bird, process: _Process, log: JsonLog, over: threading.Event) -> int:
    adopted = isinstance(process, _Adopted)
    log.info("bird_adopted" if adopted else "bird_started", pid=process.pid)
    ended = threading.Event()
    threading.Thread(target=_await, args=(process, ended, over), daemon=True).start()
    over.wait()
    if ended.is_set():
        log.error("bird_ended", status=process.returncode)
        return 1
    try:
        bird.restart_gracefully()
    except TortieError as error:  # one that is just starting, or hangs
        log.warning("bird_not_told", reason=first_line(error))
    if not ended.wait(STOP_SECONDS):
        log.warning("bird_killed", pid=process.pid)
        process.kill()
        ended.wait()
    log.info("bird_stopped", status=process.returncode)
    return 0


def _await(process: _Process, ended: threading.Event, over: threading.Event) -> None:
    process.wait()
    ended.set()
    over.set()


if __name__ == "__main__":
    main()
