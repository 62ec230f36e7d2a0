"""Route tables as the report shows them, read from a real kernel."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from lab import clock
from lab.html_migration import route_words
from lab.tables import read_tables
from tests.fakes.fresh_names import fresh_name

pytestmark = pytest.mark.root


@pytest.fixture
def namespace() -> Iterator[str]:
    name = fresh_name("tables")
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for line in (
            "link set lo up",
            "link add br0 type bridge",
            "link set br0 up",
            "addr add 172.31.9.2/24 dev br0",
            "route add default via 172.31.9.1",
            "route add 10.65.0.5/32 via 172.31.9.1 metric 768 proto bird",
            "route add 10.65.0.5/32 dev br0 metric 512 proto 80",
            "route add blackhole 10.65.0.0/26 proto 80",
            "route add 10.65.0.6/32 dev br0",
        ):
            subprocess.run(["ip", "-n", name, *line.split()], check=True)
        yield f"/run/netns/{name}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_the_routes_that_cover_an_address_best_first(namespace: str) -> None:
    before = clock.monotonic()
    tables = read_tables("at", {"here": namespace}, "10.65.0.5")
    assert before <= tables.t_ns <= clock.monotonic()
    assert [route_words(one) for one in tables.routes["here"]] == [
        "10.65.0.5 dev br0 metric 512 proto tortie",
        "10.65.0.5 via 172.31.9.1 metric 768 proto bird",
        "blackhole 10.65.0.0/26 proto tortie",
    ]


def test_the_default_route_where_there_is_no_other(namespace: str) -> None:
    tables = read_tables("before", {"here": namespace}, "10.99.0.1")
    assert [route_words(one) for one in tables.routes["here"]] == [
        "default via 172.31.9.1 proto boot"
    ]
