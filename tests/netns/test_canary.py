"""`tortiectl bgp canary` with two real agents, their BIRDs and a ToR, whose own words it reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ipam.client import IPAMClient
from libtortie.model.bgp_canary import ANNOTATION, parse_canary
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Node
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, until
from tests.fakes.overlay_site import OverlaySite, Shape
from tests.fakes.tor_pair import BirdRouter, FrrRouter, Router, said

pytestmark = pytest.mark.root
PAIR = ("n1", "n2")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlaySite]:
    with ExitStack() as stack:
        root = tmp_path_factory.mktemp("canary")
        made = OverlaySite(root, fresh_name("cn"), Shape((4, 6), "Never"))
        stack.callback(made.close)
        made.start()
        yield made


@contextmanager
def router(
    site: OverlaySite, kind: type[Router], change: Callable[[str], str] = str
) -> Iterator[Router]:
    made = kind(site)
    try:
        made.plug()
        made.start(change)
        yield made
    finally:
        made.remove()
        for name in made.names:
            site.nodes[0].store.delete(ResourceKey(Kind.BGP_PEER, name))


def begin(site: OverlaySite, tor: Router, version: int, *words: str) -> subprocess.Popen[str]:
    """The command itself, as a process."""
    command = [sys.executable, "-m", "tortiectl.cli", "bgp", "canary", "n2", "--against", "n1"]
    command += ["--tor-command", tor.shows(version), *(["--ipv6"] if version == 6 else []), *words]
    environ = {
        **os.environ,
        "DATASTORE_TYPE": "sqlite",
        "TORTIE_SQLITE_PATH": str(site.root / "tortie.db"),
    }
    return subprocess.Popen(
        command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=8 * DEADLINE)
    return process.returncode, out


def asked(site: OverlaySite) -> dict[str, str]:
    """Node → what its annotation asks for."""
    found = {}
    for name in PAIR:
        value = site.nodes[0].store.get(ResourceKey(Kind.NODE, name)).value
        assert isinstance(value, Node)
        if text := value.metadata.annotations.get(ANNOTATION):
            found[name] = text
    return found


def announced(site: OverlaySite) -> list[str]:
    """What nodes' BIRDs announce as canaries."""
    found = []
    for node in site.nodes:
        text = (node.root / "run" / "bird.conf").read_text()
        found += [node.node] * ("protocol static canary" in text)
    return found


def held(site: OverlaySite) -> tuple[object, ...]:
    client = IPAMClient(site.nodes[0].store, "n2", now=lambda: datetime.now(UTC))
    return tuple(client.by_handle("tortie-bgp-canary.n2"))


def nothing_left(site: OverlaySite) -> None:
    assert asked(site) == {}
    assert held(site) == ()
    until("no agent announces it", lambda: announced(site) == [])


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("kind", [BirdRouter, FrrRouter])
def test_a_router_that_obeys_is_proved(site: OverlaySite, kind: type[Router], version: int) -> None:
    with router(site, kind) as tor:
        status, out = finish(begin(site, tor, version, "--timeout", "200"))
        assert status == 0, out
        assert "the router prefers the raised route" in out
        assert "n2 announces it at 512, too: the router uses n2" in out
        assert "n1 announces it at 512, too: the router uses n1" in out
        nothing_left(site)


def test_a_router_that_ignores_the_preference_fails(site: OverlaySite) -> None:
    """By the nodes' router ids it would choose n1 both times."""
    with router(site, BirdRouter, lambda text: text.replace("_pref = 200", "_pref = 50")) as tor:
        until(
            "it hears n1", lambda: "via" in said(tor.space, "ip", "route", "show", "proto", "bird")
        )
        status, out = finish(begin(site, tor, 4, "--timeout", "30"))
        assert status == 1, out
        assert "n2 announces it at 512, too: after 30 s the router uses n1, not n2" in out
        nothing_left(site)


def test_killed_in_the_middle_it_ends_by_itself_and_the_next_one_works(site: OverlaySite) -> None:
    """What is left is the annotation, which says until when; time passes here by writing so."""
    with router(site, BirdRouter, lambda text: text.replace("_pref = 200", "_pref = 50")) as tor:
        process = begin(site, tor, 4, "--timeout", "200")
        until("both were asked", lambda: len(asked(site)) == 2)
        until("both announce it", lambda: announced(site) == list(PAIR))
        process.send_signal(signal.SIGKILL)
        assert finish(process)[0] == -9
        assert len(held(site)) == 1
        for name, text in asked(site).items():
            request = parse_canary(text)
            assert request.until <= datetime.now(UTC) + timedelta(minutes=5)
            soon = replace(request, until=datetime.now(UTC) + timedelta(seconds=5))
            _annotate(site, name, soon.to_text())
        until("neither announces it", lambda: announced(site) == [])
        assert len(asked(site)) == 2, "nobody took the annotations away"
    with router(site, BirdRouter) as tor:
        status, out = finish(begin(site, tor, 4, "--timeout", "200"))
        assert status == 0, out
        nothing_left(site)


def _annotate(site: OverlaySite, name: str, text: str) -> None:
    store = site.nodes[0].store
    record = store.get(ResourceKey(Kind.NODE, name))
    assert isinstance(record.value, Node)
    metadata = record.value.metadata.model_copy(update={"annotations": {ANNOTATION: text}})
    changed = record.value.model_copy(update={"metadata": metadata})
    store.update(record.key, changed, record.revision)
