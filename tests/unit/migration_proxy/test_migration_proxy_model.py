"""Ports, keys, requests and what a Start call comes to."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest

from libtortie.errors import InvalidInput
from migration_proxy.model import (
    Side,
    Stream,
    Verdict,
    check_path,
    logical_port,
    next_generation,
    path_in_pod,
    plan,
    proxy_key,
    source_path,
    source_request,
    target_request,
)

PEER = ipaddress.ip_address("192.0.2.7")
OTHER = ipaddress.ip_address("2001:db8::7")


def test_names_are_kubevirts() -> None:
    assert proxy_key("uid", 0) == "uid"
    assert proxy_key("uid", 49153) == "uid-49153"
    assert source_path("/var/run/kubevirt/", "uid", 0) == (
        "/var/run/kubevirt/migrationproxy/uid-source.sock"
    )
    assert source_path("/b", "uid", 49152) == "/b/migrationproxy/uid-49152-source.sock"


@pytest.mark.parametrize(
    ("path", "port"),
    [
        ("/var/run/libvirt/virtqemud-sock", 0),
        ("/var/run/kubevirt/migrationproxy/uid-49152-source.sock", 49152),
        ("/var/run/kubevirt/migrationproxy/uid-49153-source.sock", 49153),
        ("/var/run/kubevirt/migrationproxy/other-49153-source.sock", 0),
    ],
)
def test_a_targets_stream_is_told_by_its_path(path: str, port: int) -> None:
    assert logical_port("uid", path) == port


def test_a_targets_request_does_not_depend_on_the_order_of_its_files() -> None:
    files = ["/t/uid-49152", "/t/virtqemud-sock"]
    one = target_request("uid", files, tls=True)
    assert one == target_request("uid", files[::-1], tls=True)
    assert one.streams == (Stream(49152, "/t/uid-49152"), Stream(0, "/t/virtqemud-sock"))


def test_a_sources_request() -> None:
    made = source_request("uid", PEER, {4001: 49152, 4000: 0}, "/b", tls=True)
    assert made.side is Side.SOURCE
    assert made.streams == (
        Stream(0, "/b/migrationproxy/uid-source.sock", 4000),
        Stream(49152, "/b/migrationproxy/uid-49152-source.sock", 4001),
    )


def test_the_same_again_is_nothing_to_do_while_its_listeners_live() -> None:
    made = source_request("uid", PEER, {4000: 0}, "/b", tls=True)
    assert plan(made, True, made) is Verdict.KEEP
    assert plan(made, False, made) is Verdict.REPLACE


@pytest.mark.parametrize(
    "other",
    [
        source_request("uid", OTHER, {4000: 0}, "/b", tls=True),
        source_request("uid", PEER, {4001: 0}, "/b", tls=True),
        source_request("uid", PEER, {4000: 49152}, "/b", tls=True),
        source_request("uid", PEER, {4000: 0}, "/c", tls=True),
        source_request("uid", PEER, {4000: 0}, "/b", tls=False),
        source_request("uid", PEER, {4000: 0}, "/b", tls=True, peer_name="node2"),
        source_request("uid", PEER, {4000: 0}, "/b", tls=True, rate=1),
    ],
)
def test_anything_else_is_a_change(other: object) -> None:
    made = source_request("uid", PEER, {4000: 0}, "/b", tls=True)
    assert isinstance(other, type(made))
    assert plan(made, True, other) is Verdict.REPLACE
    assert plan(made, True, replace(other)) is Verdict.REPLACE


@pytest.mark.parametrize("key", ["", "a/b", ".hidden", "ü", "a\nb", "x" * 201])
def test_a_key_that_is_no_files_name(key: str) -> None:
    with pytest.raises(InvalidInput, match="a VMI's UID is"):
        target_request(key, ["/t/s"], tls=True)


@pytest.mark.parametrize(
    "peer",
    ["fe80::7", "fe80::7%migration0", "2001:db8::7%eth0", "0.0.0.0", "::", "224.0.0.1"],
)
def test_an_address_that_is_no_nodes(peer: str) -> None:
    with pytest.raises(InvalidInput, match=f"migration uid: {peer} is "):
        source_request("uid", ipaddress.ip_address(peer), {4000: 0}, "/run", tls=True)
    with pytest.raises(InvalidInput, match=f"migration uid: {peer} is "):
        target_request("uid", ["/t/s"], tls=True, peer=ipaddress.ip_address(peer))


def test_ipv4_within_ipv6_is_ipv4_as_connections_tell_it() -> None:
    mapped = ipaddress.ip_address("::ffff:192.0.2.7")
    plain = ipaddress.ip_address("192.0.2.7")
    assert target_request("uid", ["/t/s"], tls=True, peer=mapped).peer == plain
    assert source_request("uid", mapped, {4000: 0}, "/b", tls=True).peer == plain


@pytest.mark.parametrize("base", ["", "/"])
def test_a_base_directory_has_to_be_named(base: str) -> None:
    with pytest.raises(InvalidInput, match="base directory"):
        source_request("uid", PEER, {4000: 0}, base, tls=True)


@pytest.mark.parametrize("rate", [-1, 10**400])
def test_a_rate_that_is_none(rate: int) -> None:
    with pytest.raises(InvalidInput, match="bytes a second"):
        source_request("uid", PEER, {4000: 0}, "/b", tls=True, rate=rate)


@pytest.mark.parametrize(
    ("ports", "said"),
    [
        ({}, "published no ports"),
        ({0: 0}, "0 is no TCP port"),
        ({70000: 0}, "70000 is no TCP port"),
        ({4000: 7}, "7 is no logical port"),
        ({4000: 0, 4001: 0}, "two ports for one stream"),
    ],
)
def test_ports_that_no_target_published(ports: dict[int, int], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        source_request("uid", PEER, ports, "/b", tls=True)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "no target socket"),
        (["/t/s", "/t/s"], "named twice"),
        (["/t/s", "/t/r"], "several target sockets for one stream"),
        (["t/s"], "not an absolute path"),
        (["/t/../s"], "not an absolute path"),
        (["/t/\0s"], "not an absolute path"),
    ],
)
def test_files_that_cannot_be_a_targets(files: list[str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        target_request("uid", files, tls=True)


def test_the_longest_path_a_unix_socket_has() -> None:
    assert check_path("/" + "x" * 106)
    with pytest.raises(InvalidInput, match="108 bytes, a unix socket's path has at most 107"):
        check_path("/" + "x" * 107)
    assert check_path("/proc/1234/root/" + "x" * 106)  # a process in the pod sees the rest of it
    with pytest.raises(InvalidInput, match="108 bytes"):
        check_path("/proc/1234/root/" + "é" * 53 + "x")


def test_a_path_in_a_pod() -> None:
    assert path_in_pod("/proc/12/root/var/run/s") == "/var/run/s"
    assert path_in_pod("/proc/self/root/s") == "/proc/self/root/s"
    assert path_in_pod("/var/run/s") == "/var/run/s"


def test_generations_grow_also_when_the_clock_does_not() -> None:
    first = next_generation(0, 1000.0)
    assert first == 1_000_000_000
    assert next_generation(first, 1000.0) == first + 1
    assert next_generation(first, 900.0) == first + 1
    assert next_generation(0, 1000.5) > first
