"""`tortie-controllers gc --metrics-port` as a process: what a scraper gets from it."""

from __future__ import annotations

import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.apiserver.server import ApiServer
from tests.fakes.gc_site import DEADLINE, Site, leaked, site_in
from tests.fakes.metric_reference import COMPONENTS
from tests.fakes.node_process import until
from tests.fakes.ports import free_ports


@pytest.fixture
def site(tmp_path: Path, server: ApiServer) -> Iterator[Site]:
    with site_in(tmp_path, server) as made:
        yield made


def scraped(port: int) -> str:
    """What the port says; "" while nobody listens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def probed(port: int, path: str) -> str:
    """What a probe is told, whatever the status; "" while nobody listens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except OSError:
        return ""


def counted(port: int, name: str) -> float:
    """One figure; 0 while it is not there."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", scraped(port), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_a_daemon_tells_what_it_freed_and_that_the_api_is_away(
    site: Site, server: ApiServer
) -> None:
    (port,) = free_ports(1)
    often = ("--grace", "200ms", "--period", "100ms")
    process = site.start(*often, "--metrics-port", str(port), "--metrics-host", "127.0.0.1")
    freed = 'tortie_gc_leaks_freed_total{kind="address"}'
    until("it is freed", lambda: counted(port, freed) == 1, seconds=DEADLINE)
    assert leaked(site) == ""
    assert counted(port, 'tortie_gc_leaks_seen_total{kind="address"}') == 1
    assert counted(port, "tortie_gc_last_success_timestamp_seconds") > 0
    assert counted(port, "tortie_gc_passes_total") >= 2
    types = re.findall(r"^# TYPE (\S+) (\S+)$", scraped(port), re.MULTILINE)
    known = [(one.name, one.kind) for one in COMPONENTS["tortie-controllers"]]
    assert types == [one for one in known if one[0] != "tortie_leader"], "which is of an election"
    assert re.search(r'^tortie_ipam_pool_used\{pool="\S+",cidr="\S+"\} [1-9]', scraped(port), re.M)
    server.stop()
    failed = 'tortie_gc_failures_total{reason="api"}'
    until("it is told", lambda: counted(port, failed) > 0, seconds=DEADLINE)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0
    assert scraped(port) == ""


def test_an_api_that_is_away_makes_it_unready_and_is_no_reason_to_restart(
    site: Site, server: ApiServer
) -> None:
    (port,) = free_ports(1)
    site.start("--metrics-port", str(port))
    ready = "ok\n[+]api\n[+]datastore\n[+]loop\n[+]pass\n[+]stop\n"
    until("it is ready", lambda: probed(port, "/readyz") == ready, seconds=DEADLINE)
    server.stop()
    until("it is not", lambda: "[-]api: " in probed(port, "/readyz"), seconds=DEADLINE)
    assert probed(port, "/livez") == "ok\n[+]loop\n"
    server.start()
    until("it is again", lambda: probed(port, "/readyz") == ready, seconds=DEADLINE)


def test_a_port_that_is_taken_is_told_once_and_keeps_nothing_from_being_freed(site: Site) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])
        process = site.start(
            "--grace=50ms", "--period=50ms", f"--metrics-port={port}", "--metrics-host=127.0.0.1"
        )
        until("the leak is freed", lambda: not leaked(site), seconds=DEADLINE)
        assert process.stderr is not None
        told = f"Error: metrics: port {port}: [Errno 98] Address already in use\n"
        assert process.stderr.readline() == told
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--once", "--metrics-port", "9092"], "leave out --once"),
        (["--metrics-host", "127.0.0.1"], "give both"),
        (["--metrics-token-file", "t"], "--metrics-token-file needs --metrics-port"),
        (["--metrics-port=1", "--metrics-host=0.0.0.0"], "give --metrics-token-file or"),
        (["--metrics-port=1", "--metrics-key-file=k"], "--metrics-cert-file and"),
        (["--metrics-port", "0"], "'0' is no port: 1 to 65535"),
        (["--metrics-port", "65536"], "'65536' is no port: 1 to 65535"),
        (["--metrics-port", "http"], "'http' is no port: 1 to 65535"),
    ],
)
def test_a_wrong_command_line(site: Site, args: list[str], said: str) -> None:
    _, err = site(*args, status=2)
    assert said in err
