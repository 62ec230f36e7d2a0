"""What a QEMU guest is told about its network, and how its QEMU is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.cutover import Report, report_from_json
from lab.processes import parse_stat
from lab.qemu import Machine, command_line
from lab.qemu_guest import Network
from lab.tools import LabError


def test_a_guest_of_both_families_has_a_route_for_each() -> None:
    """The gateway of IPv4 is on no network of its own: it needs a route before the default one."""
    lines = Network("02:00:00:00:00:01", 1440, ("10.65.0.2/26", "fd00::2/122")).script().split("\n")
    assert "ip link set eth0 mtu 1440 up" in lines
    assert "ip -4 addr add 10.65.0.2/32 dev eth0" in lines
    assert "ip -6 addr add fd00::2/128 dev eth0" in lines
    gateway = lines.index("ip route add 169.254.1.1 dev eth0")
    assert gateway < lines.index("ip -4 route add default via 169.254.1.1 dev eth0")
    assert "ip -6 route add default via fe80::ecee:eeff:feee:eeee dev eth0" in lines


def test_a_guest_of_one_family_knows_nothing_of_the_other() -> None:
    assert "-4" not in Network("02:00:00:00:00:01", 1440, ("fd00::2/128",)).script()
    assert "-6" not in Network("02:00:00:00:00:01", 1440, ("10.65.0.2/32",)).script()


def test_a_directory_whose_sockets_nobody_could_open_is_refused(tmp_path: Path) -> None:
    """As it is, before QEMU says it in words of its own."""
    deep = tmp_path / ("d" * 100)
    with pytest.raises(LabError, match="choose a shorter state directory"):
        command_line(deep, Machine())


def test_a_report_comes_back_as_it_went() -> None:
    for report in (Report(1, 2, (3, 4)), Report(1, 2, (), 0, 300)):
        assert report_from_json(report.to_json()) == report


@pytest.mark.parametrize(
    "text", ["", "77", "77 (qemu-sys", "77 (sh) R 1", f"77 (sh) Z {'1 ' * 30}", "(a) (b) (c)"]
)
def test_half_a_process_is_none(text: str) -> None:
    assert parse_stat(text) is None


def test_a_process_may_have_any_name() -> None:
    found = parse_stat(f"77 (a) b (c) S {' '.join(map(str, range(4, 30)))}\n")
    assert found is not None
    assert (found.pid, found.start_time, found.name) == (77, 22, "a) b (c")
