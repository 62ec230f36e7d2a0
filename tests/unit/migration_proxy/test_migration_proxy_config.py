"""The daemon's configuration, certificates' names, and the limit of bytes a second."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from libtortie.errors import InvalidInput, Malformed
from libtortie.validity import days_left, not_after
from migration_proxy.certificate import Peer, refusal
from migration_proxy.config import ProxyConfig, load_config, may_come, parse_config
from migration_proxy.rate import Rate
from migration_proxy.tcp_sockets import Network, bind_address, endpoint, wildcard
from tests.fakes.certificates import Authority

TLS = "tls: {ca: c, server: {cert: a, key: b}, migration: {cert: a, key: b}}\n"
LINKS = {"lo": ["127.0.0.1/8"], "migration0": ["fe80::1/64", "10.9.0.7/24", "2001:db8::7/64"]}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def parsed(text: str) -> ProxyConfig:
    return parse_config(text, "f.yaml", {})


def test_the_defaults_are_kubevirts() -> None:
    made = parsed(TLS)
    assert made.tls.server_cns == ("kubevirt.io:system:node:virt-handler",)
    assert made.tls.min_version == "1.3"
    assert made.drain_seconds == 315
    assert made.most_streams >= 64
    assert (made.listen, made.ports) == ("", range(0))


def test_the_three_pairs_stand_apart() -> None:
    text = "tls: {ca: c, server: {cert: s, key: b}, client: {cert: cl, key: b}%s}\n"
    assert parsed(text % "").tls.outgoing.cert == "cl"
    assert parsed(text % ", migration: {cert: m, key: b}").tls.outgoing.cert == "m"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tls.ca is missing; without TLS: disable_tls: true"),
        ("tls: {ca: c}", "tls.server is missing"),
        ("tls: {ca: c, server: {cert: a}}", "tls.server: give cert and key, or neither"),
        ("tls: {ca: c, server: {cert: a, key: b}}", "tls.migration or tls.client is missing"),
        ("disable_tls: true", "name the other nodes in allowed_peers"),
        (TLS + "port_range: 5-4", "port_range '5-4': two ports such as 49200-49299"),
        (TLS + "port_range: 0-4", "two ports"),
        (TLS + "port_range: 1-70000", "two ports"),
        (TLS + "allowed_peers: [10.0.0.0/33]", "allowed_peers"),
        (TLS + "allowed_peers: 10.0.0.0/8", "allowed_peers: a list of CIDRs"),
        (TLS + "most_streams: 63", "most_streams"),
        (TLS + "connect_seconds: .inf", "connect_seconds"),
        (TLS + "handshake_seconds: .nan", "handshake_seconds"),
        (TLS + "stall_seconds: 1e9", "stall_seconds"),
        (TLS + "drain_seconds: .inf", "drain_seconds"),
        (TLS + "idle_seconds: .inf", "idle_seconds"),
        (TLS + f"rate_limit: {10**400}", "rate_limit"),
        (TLS + f"log_file_max_age: {10**400}", "log_file_max_age"),
        (TLS + "colour: red", "colour: Extra inputs are not permitted"),
        ("[1, 2]", "not a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_what_is_no_configuration_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parsed(text)
    assert str(caught.value).startswith("f.yaml: ")
    assert said in str(caught.value)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(TLS + "listen: eth0\nport_range: 5000-5009")
    made = load_config(str(file), {"listen": "migration0"})
    assert (made.listen, made.ports) == ("migration0", range(5000, 5010))


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        load_config(str(tmp_path / "none.yaml"), {})


def test_who_may_come() -> None:
    one, two = ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("192.0.2.2")
    inside = (ipaddress.ip_network("192.0.2.0/31"),)
    assert may_come(one, (), None)
    assert may_come(one, inside, None)
    assert not may_come(two, inside, None)
    assert may_come(one, inside, one)
    assert not may_come(one, inside, two)


class TestNames:
    peer = Peer("node-cn", ("node1", "192.0.2.1"), NOW)

    def test_the_common_name(self) -> None:
        assert refusal(self.peer, ("other", "node-cn"), "") == ""
        assert refusal(self.peer, (), "") == ""
        said = refusal(self.peer, ("other",), "")
        assert said.startswith("common name is invalid, got node-cn")
        assert "got none" in refusal(Peer("", (), NOW), ("other",), "")

    def test_the_node(self) -> None:
        assert refusal(self.peer, (), "node1") == ""
        assert refusal(self.peer, (), "node2") == (
            "the certificate is for node1, 192.0.2.1, this migration's peer is node2"
        )

    def test_the_common_name_is_no_san(self) -> None:
        assert refusal(self.peer, (), "node-cn")


def test_until_when_a_certificate_is_valid(tmp_path: Path) -> None:
    pem = Authority(tmp_path).server("node1").cert.read_text()
    assert timedelta(hours=23) < not_after(pem) - datetime.now(UTC) < timedelta(hours=25)
    assert not_after(f"what openssl says of it\n{pem}{pem}") == not_after(pem)
    assert days_left(NOW + timedelta(hours=36), NOW) == 1.5
    assert days_left(NOW - timedelta(hours=36), NOW) == -1.5


@pytest.mark.parametrize("cut", [30, 60, 200])
def test_half_a_certificate_is_none(tmp_path: Path, cut: int) -> None:
    pem = Authority(tmp_path).server("node1").cert.read_text()
    for text in (pem[:cut], pem[:cut] + "\n-----END CERTIFICATE-----\n", ""):
        with pytest.raises(Malformed, match="not a PEM certificate"):
            not_after(text)


class TestRate:
    @pytest.mark.parametrize("per_second", [1, 1000, 1 << 20, 1 << 30])
    @pytest.mark.parametrize("streams", [1, 2, 10])
    def test_streams_share_what_time_allows_in_few_pieces(
        self, per_second: int, streams: int
    ) -> None:
        """They are asked in the same order always, as a lane does."""
        now, seconds = [0.0], 100.0
        rate = Rate(per_second, lambda: now[0])
        resume, sent, pieces = [0.0] * streams, [0] * streams, 0
        while now[0] < seconds:
            for one in range(streams):
                while resume[one] <= now[0]:
                    resume[one] = now[0] + rate.spend(rate.piece)
                    sent[one] += rate.piece
                    pieces += 1
            now[0] = max(now[0] + 1e-6, min(resume))
        allowed = per_second * seconds
        slack = (streams + 10) * rate.piece
        assert allowed - slack <= sum(sent) <= allowed + slack
        assert max(sent) - min(sent) <= 10 * rate.piece
        assert pieces <= 50 * seconds + streams + 11

    def test_who_sends_little_waits_for_what_all_sent_and_no_longer(self) -> None:
        now = [0.0]
        rate = Rate(1_000_000, lambda: now[0])
        assert rate.spend(100_000) == 0.0  # the burst
        assert rate.spend(500_000) == pytest.approx(0.5)
        assert rate.spend(1) == pytest.approx(0.5, abs=1e-3)
        now[0] = 1000.0
        assert rate.spend(100_000) == 0.0  # no more is saved up
        assert rate.spend(100_000) == pytest.approx(0.1)


class TestBindAddress:
    def found(self, listen: str) -> str:
        network = Network(
            lambda: list(LINKS),
            lambda name: [ipaddress.ip_interface(each) for each in LINKS[name]],
        )
        return str(bind_address(listen, network))

    def test_an_interface_means_its_first_global_address(self) -> None:
        assert self.found("migration0") == "10.9.0.7"
        with pytest.raises(InvalidInput, match="no global address yet"):
            self.found("lo")

    def test_a_network_means_the_nodes_address_in_it(self) -> None:
        assert self.found("10.9.0.0/16") == "10.9.0.7"
        assert self.found("2001:db8::/32") == "2001:db8::7"
        with pytest.raises(InvalidInput, match="no address in it"):
            self.found("10.8.0.0/16")

    @pytest.mark.parametrize("listen", ["fe80::/10", "fe80::1", "fe80::1%migration0"])
    def test_a_link_local_address_cannot_be_told_to_the_source(self, listen: str) -> None:
        with pytest.raises(InvalidInput, match=f"listen {listen}: a link-local address"):
            self.found(listen)

    def test_an_address_is_itself(self) -> None:
        assert self.found("192.0.2.1") == "192.0.2.1"

    def test_nothing_means_all(self, tmp_path: Path) -> None:
        file = tmp_path / "disable_ipv6"
        assert str(wildcard(file)) == "0.0.0.0"
        file.write_text("1\n")
        assert str(wildcard(file)) == "0.0.0.0"
        file.write_text("0\n")
        assert str(wildcard(file)) == "::"

    def test_ipv6_has_brackets(self) -> None:
        assert endpoint(ipaddress.ip_address("2001:db8::1"), 5) == "[2001:db8::1]:5"
        assert endpoint(ipaddress.ip_address("192.0.2.1"), 5) == "192.0.2.1:5"
