"""What is measured: ways from a socket on the source to one on the target, over the same link.

Each way is two processes, one on each node, with the same hops: unix socket, TCP (with or without
mutual TLS 1.3), unix socket.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from libtortie.control_client import ask
from libtortie.errors import Unavailable
from migration_proxy.config import CLIENT_CNS, SERVER_CNS
from tests.bench.proxy_site import SOURCE, TARGET, Site, awaited
from tests.fakes.certificates import Authority, Pair

KEY = "bench"
PROXY = str(Path(sys.executable).with_name("tortie-migration-proxy"))
HAPROXY_PORT, SOCAT_PORT = 4000, 4001
SOCAT_BYTES = 128 << 10
"""With its own 8 KiB it is slower. haproxy keeps its own 16 KiB: with more it is slower."""
HAPROXY = """
global
    maxconn 1000
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-server-options ssl-min-ver TLSv1.3
defaults
    mode tcp
    timeout connect 60s
    timeout client 300s
    timeout server 300s
listen way
    bind {bind}
    server next {server}
"""


@dataclass(frozen=True, slots=True)
class Way:
    """Where to send, where it comes out, and the processes between."""

    name: str
    entrance: str
    exit: str
    processes: tuple[subprocess.Popen[str], ...]


@dataclass(frozen=True, slots=True)
class Certificates:
    """What both sides of each TLS way present, and who vouches for them."""

    ca: Path
    server: Pair
    client: Pair

    @classmethod
    def made(cls, directory: Path) -> Certificates:
        """New ones."""
        authority = Authority(directory)
        server = authority.server(SERVER_CNS[0], hosts=("target",))
        return cls(authority.cert, server, authority.client(CLIENT_CNS[0]))


@contextmanager
def ours(site: Site, name: str, certificates: Certificates | None) -> Iterator[Way]:
    """Two daemons, and a migration between them."""
    here = site.directory / name
    (here / "base").mkdir(parents=True)
    exit_path = str(here / f"{KEY}-49152")
    with ExitStack() as stack:
        processes = tuple(
            stack.enter_context(_daemon(site, here, node, certificates))
            for node in (SOURCE, TARGET)
        )
        ports = _ask(here, TARGET, "start-target", files=[exit_path])["ports"]
        base = str(here / "base")
        (entrance,) = _ask(
            here, SOURCE, "start-source", address=TARGET, ports=ports, base_dir=base
        )["files"]
        yield Way(name, entrance, exit_path, processes)


@contextmanager
def _daemon(
    site: Site, here: Path, node: str, certificates: Certificates | None
) -> Iterator[subprocess.Popen[str]]:
    control = _control(here, node)
    said: dict[str, Any] = {
        "listen": "m0",
        "control_socket": control,
        "log_file": str(here / f"{node}.log"),
    }
    if certificates is None:
        said |= {"disable_tls": True, "allowed_peers": [SOURCE]}
    else:
        said["tls"] = {
            "ca": str(certificates.ca),
            "server": _pair(certificates.server),
            "migration": _pair(certificates.client),
        }
    config = here / f"{node}.yaml"
    config.write_text(json.dumps(said))

    def answers() -> bool:
        try:
            return bool(ask(control, {"do": "health"}, seconds=60)["health"] == "ok")
        except Unavailable:
            return False

    with site.running(node, PROXY, "-c", str(config), stderr=subprocess.DEVNULL) as process:
        awaited(f"the daemon on {node} serves", lambda: process.poll() is not None or answers())
        yield process


def status(way: Way, node: str) -> dict[str, Any]:
    """What our daemon on a node says of itself."""
    return ask(_control(Path(way.exit).parent, node), {"do": "status"}, seconds=60)


@contextmanager
def haproxy(site: Site, certificates: Certificates) -> Iterator[Way]:
    """Debian's haproxy: one wraps in TLS, the other one unwraps."""
    here = site.directory / "haproxy"
    here.mkdir()
    entrance, exit_path = str(here / "in"), str(here / "out")
    for name, pair in (("server", certificates.server), ("client", certificates.client)):
        (here / f"{name}.pem").write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    tls = f"ca-file {certificates.ca} verify required"
    at = f"{TARGET}:{HAPROXY_PORT}"
    texts = {
        TARGET: HAPROXY.format(
            bind=f"{at} ssl crt {here}/server.pem {tls}",
            server=f"unix@{exit_path}",
        ),
        SOURCE: HAPROXY.format(
            bind=f"unix@{entrance}",
            server=f"{at} ssl crt {here}/client.pem {tls}",
        ),
    }
    with ExitStack() as stack:
        processes = []
        for node, text in texts.items():
            config = here / f"{node}.cfg"
            config.write_text(text)
            command = ("haproxy", "-db", "-q", "-f", str(config))
            processes.append(stack.enter_context(site.running(node, *command)))
        awaited("haproxy listens", Path(entrance).exists)
        yield Way("haproxy", entrance, exit_path, tuple(processes))


@contextmanager
def socat(site: Site) -> Iterator[Way]:
    """Two socats in a row; each stream is a process of its own."""
    here = site.directory / "socat"
    here.mkdir()
    entrance, exit_path, port = str(here / "in"), str(here / "out"), SOCAT_PORT
    size = ("socat", "-b", str(SOCAT_BYTES))
    to_exit = (f"TCP-LISTEN:{port},bind={TARGET},reuseaddr,fork", f"UNIX-CONNECT:{exit_path}")
    to_target = (f"UNIX-LISTEN:{entrance},fork", f"TCP:{TARGET}:{port}")
    with (
        site.running(TARGET, *size, *to_exit) as one,
        site.running(SOURCE, *size, *to_target) as other,
    ):
        awaited("socat listens", Path(entrance).exists)
        yield Way(f"socat, buffers of {SOCAT_BYTES >> 10} KiB", entrance, exit_path, (one, other))


def iperf3(site: Site, size: int) -> float:
    """MB/s that a TCP stream of iperf3's has with nothing between."""
    with site.running(TARGET, "iperf3", "-s", "-1", "-B", TARGET, "--forceflush") as server:
        assert server.stdout is not None
        while "listening" not in (line := server.stdout.readline()):
            if not line:
                raise click.ClickException(f"iperf3 ended with {server.wait()}")
        with site.running(SOURCE, "iperf3", "-J", "-c", TARGET, "-n", str(size)) as client:
            assert client.stdout is not None
            found = json.loads(client.stdout.read())
    if "error" in found:
        raise click.ClickException(f"iperf3: {found['error']}")
    return float(found["end"]["sum_received"]["bits_per_second"] / 8e6)


def _ask(here: Path, node: str, verb: str, **more: Any) -> dict[str, Any]:
    return ask(_control(here, node), {"do": verb, "key": KEY, **more}, seconds=60)


def _control(here: Path, node: str) -> str:
    return str(here / f"{node}.ctl")


def _pair(pair: Pair) -> dict[str, str]:
    return {"cert": str(pair.cert), "key": str(pair.key)}
