"""`make bench-proxy`: the migration proxy beside socat, haproxy and iperf3, in turns, in one run.

All ways lead from a unix socket in one network namespace over TCP to one in another (iperf3's is
TCP alone), and carry incompressible bytes; each is first shown to deliver what it was given. A
figure is the median of several runs. Exit status 1 when a row is not met; nothing is left behind,
also when it is stopped. It takes about 10 minutes.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click

from lab.results import BenchRow, at_least, at_most, conclude
from tests.bench.proxy_site import SOURCE, TARGET, Site, awaited, said
from tests.bench.proxy_ways import Certificates, Way, haproxy, iperf3, ours, socat, status

CHECKED_BYTES = 64 << 20
MULTIFD, CROWD, CALLERS = 8, 64, 16
MOST_MIB = 64.0
LOOK_SECONDS = 0.05
SETTLE_SECONDS = 20.0

Speeds = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    bytes: int
    rounds: int
    sessions: int


def speed(site: Site, way: Way, streams: int, size: int) -> float:
    """MB/s from before the first connect to the end of the last stream."""
    with site.end(TARGET, "receive", way.exit, streams) as taker:
        said(taker)
        with site.end(SOURCE, "send", way.entrance, streams, size) as giver:
            began, ended = said(giver)["at"], said(taker)
    if ended["bytes"] != size // streams * streams:
        raise click.ClickException(f"{way.name}: {ended['bytes']} bytes came of {size}")
    return float(size / (ended["at"] - began) / 1e6)


def check(site: Site, way: Way, size: int) -> None:
    """Each byte that is given comes out. Raises `ClickException`."""
    with site.end(TARGET, "receive", way.exit, MULTIFD, "check") as taker:
        said(taker)
        with site.end(SOURCE, "send", way.entrance, MULTIFD, size, "check") as giver:
            given, taken = said(giver), said(taker)
    if given["sums"] != taken["sums"]:
        raise click.ClickException(f"{way.name}: other bytes came out than went in")


def in_turns(
    size: Size, runs: dict[str, Callable[[], float]], tell: Callable[[str], None]
) -> Speeds:
    """MB/s of each, in turns."""
    found: Speeds = {name: [] for name in runs}
    for _ in range(size.rounds):
        for name, run in runs.items():
            found[name].append(run())
            tell(f"{name}: {found[name][-1]:.0f} MB/s")
    return found


def plain(site: Site, size: Size, tell: Callable[[str], None]) -> tuple[list[BenchRow], Speeds]:
    """One stream without TLS."""
    with ours(site, "plain", None) as way, socat(site) as peer:
        ways = (way, peer)
        for each in ways:
            check(site, each, min(size.bytes, CHECKED_BYTES))
        runs = _runs(site, ways, 1, size.bytes)
        found = in_turns(size, runs | {"iperf3": lambda: iperf3(site, size.bytes)}, tell)
    rows = [
        _against(f"plain, 1 stream; {peer.name}", found, way.name, peer.name, 1.0),
        _against("plain, 1 stream; raw TCP of iperf3", found, way.name, "iperf3", 0.9),
    ]
    return rows, found


def secure(
    site: Site, size: Size, certificates: Certificates, tell: Callable[[str], None]
) -> tuple[list[BenchRow], dict[str, Speeds]]:
    """One stream and eight with TLS."""
    rows, found = [], {}
    with ours(site, "tls", certificates) as way, haproxy(site, certificates) as peer:
        for each in (way, peer):
            check(site, each, min(size.bytes, CHECKED_BYTES))
        for streams in (1, MULTIFD):
            what = f"TLS, {streams} stream{'s' if streams > 1 else ''}"
            tell(what)
            found[what] = in_turns(size, _runs(site, (way, peer), streams, size.bytes), tell)
            rows.append(_against(f"{what}; {peer.name}", found[what], way.name, peer.name, 1.0))
    return rows, found


def memory(
    site: Site, size: Size, name: str, certificates: Certificates | None
) -> tuple[BenchRow, dict[str, float]]:
    """How much more than idle the larger of our two daemons takes while 64 streams flow."""
    with ours(site, name, certificates) as way:
        idle = [_mib(process.pid) for process in way.processes]
        peaks = list(idle)
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_SECONDS):
                for number, process in enumerate(way.processes):
                    peaks[number] = max(peaks[number], _mib(process.pid))

        with _beside(look, over):
            speed(site, way, CROWD, size.bytes)
    more = max(peak - first for peak, first in zip(peaks, idle, strict=True))
    what = f"memory of a daemon over idle while {CROWD} streams flow, {name}"
    figures = {"idle_mib": max(idle), "peak_mib": max(peaks)}
    return at_most(what, more, None, "MiB", MOST_MIB), figures


def sessions(
    site: Site, size: Size, certificates: Certificates
) -> tuple[list[BenchRow], dict[str, Any]]:
    """What many short streams leave: descriptors and threads, of both daemons together."""
    with ours(site, "sessions", certificates) as way, site.end(TARGET, "echo", way.exit) as other:
        said(other)

        def calls(count: int) -> None:
            with site.end(SOURCE, "call", way.entrance, count, CALLERS) as caller:
                good = said(caller)["good"]
            if good != count:
                raise click.ClickException(f"{count - good} of {count} short sessions failed")
            awaited("no stream is left", lambda: not _streams(way))

        calls(min(CALLERS, size.sessions))  # what is made once is there now
        before = _held(way)
        calls(size.sessions)
        after = _settled(way, before)
    rows = [
        at_most(
            f"{size.sessions} short sessions: {what} left", after[what] - before[what], None, "", 0
        )
        for what in before
    ]
    return rows, {"before": before, "after": after}


def _runs(
    site: Site, ways: Sequence[Way], streams: int, size: int
) -> dict[str, Callable[[], float]]:
    def run(way: Way) -> Callable[[], float]:
        return lambda: speed(site, way, streams, size)

    return {way.name: run(way) for way in ways}


def _against(what: str, found: Speeds, who: str, peer: str, times: float) -> BenchRow:
    mine, other = (statistics.median(found[name]) for name in (who, peer))
    return at_least(what, mine, other, "MB/s", times * other)


@contextmanager
def _beside(body: Callable[[], None], over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _mib(pid: int) -> float:
    """A process's own memory: what it shares with others counts by its part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def _streams(way: Way) -> int:
    return sum(
        len(stream["connections"])
        for node in (SOURCE, TARGET)
        for migration in status(way, node)["migrations"]
        for stream in migration["streams"]
    )


def _held(way: Way) -> dict[str, int]:
    """Descriptors and threads of both daemons, while each answers one question."""
    both = [Path(f"/proc/{process.pid}") for process in way.processes]
    return {
        "descriptors": sum(status(way, node)["descriptors"] for node in (SOURCE, TARGET)),
        "threads": sum(len(list((each / "task").iterdir())) for each in both),
    }


def _settled(way: Way, before: dict[str, int]) -> dict[str, int]:
    """What is held once the last threads have gone, or after a while when they do not."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        held = _held(way)
        if all(held[what] <= before[what] for what in before) or time.monotonic() > end:
            return held


def measure(
    directory: Path, size: Size, tell: Callable[[str], None]
) -> tuple[list[BenchRow], dict[str, Any]]:
    """Everything; rows and each run's figures."""
    figures: dict[str, Any] = {"bytes": size.bytes}
    with Site(directory) as site:
        certificates = Certificates.made(directory)
        rows, figures["plain"] = plain(site, size, tell)
        more, found = secure(site, size, certificates, tell)
        rows, figures = rows + more, figures | found
        for name, pair in (("TLS", certificates), ("plain", None)):
            row, figures[f"memory, {name}"] = memory(site, size, f"{name} crowd", pair)
            rows.append(row)
        tell("memory is measured")
        more, figures["sessions"] = sessions(site, size, certificates)
    return rows + more, figures


def _leave(number: int, _: object) -> NoReturn:
    """Unwind: whatever was begun is ended."""
    sys.exit(128 + number)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/proxy.json"))
@click.option("--mib", type=click.IntRange(1), default=4096, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--sessions", type=click.IntRange(1), default=10_000, show_default=True)
def main(out: Path, mib: int, rounds: int, sessions: int) -> None:
    """Measure, write the result, and say what was not met."""
    signal.signal(signal.SIGTERM, _leave)
    size = Size(mib << 20, rounds, sessions)
    with tempfile.TemporaryDirectory(prefix="bp-") as directory:
        rows, figures = measure(Path(directory), size, click.echo)
    sys.exit(0 if conclude(out, rows, figures, click.echo) else 1)


if __name__ == "__main__":
    main()
