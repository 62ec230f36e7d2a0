"""Who is let in, and what is refused before anything is served."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from libtortie.errors import InvalidInput
from libtortie.serving_access import (
    Place,
    is_loopback,
    names_by_address,
    proves,
    tokens_in,
)
from libtortie.serving_pages import probe

TOKENS = (b"first-token", b"second-token")


@pytest.mark.parametrize("host", ["", "127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_proof(host: str) -> None:
    Place(9090, host).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "node1", "::ffff:10.1.2.3"])
def test_elsewhere_it_is_refused_without_a_proof(host: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^metrics_host {host}: .*metrics_token_file"):
        Place(9090, host).check("metrics_")
    with pytest.raises(InvalidInput, match="give --metrics-token-file or"):
        Place(9090, host).check("--metrics-")
    Place(9090, host, token_file="/t").check()
    Place(9090, host, cert_file="/c", key_file="/k", client_ca_file="/a").check()


def test_tls_alone_proves_nothing_of_a_client() -> None:
    with pytest.raises(InvalidInput, match="whoever reaches it"):
        Place(9090, "::", cert_file="/c", key_file="/k").check()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (Place(1, cert_file="/c"), "cert_file and key_file go together"),
        (Place(1, key_file="/k"), "cert_file and key_file go together"),
        (Place(1, client_ca_file="/a"), "client_ca_file needs cert_file"),
    ],
)
def test_files_that_do_nothing_alone(place: Place, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        place.check()


def basic(text: str) -> str:
    return "Basic " + b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "right"),
    [
        ("Bearer first-token", True),
        ("bearer   second-token ", True),
        (basic("anybody:first-token"), True),
        (basic(":second-token"), True),
        ("Bearer first-toke", False),
        ("Bearer first-token2", False),
        ("Bearer ", False),
        ("Bearer", False),
        ("", False),
        ("first-token", False),
        ("Digest first-token", False),
        (basic("first-token"), False),
        ("Basic first-token", False),
        ("Basic ä", False),
        ("Bearer \udcff", False),
    ],
)
def test_an_authorization(header: str, right: bool) -> None:
    assert proves(header, TOKENS) is right


def test_nothing_is_proved_by_an_empty_token() -> None:
    assert not proves("Bearer ", (b"",))


def test_the_tokens_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("one\r\n\n two\n")
    assert tokens_in(str(file)) == (b"one", b"two")
    file.write_text(" \n")
    with pytest.raises(InvalidInput, match=f"{file}: no token in it"):
        tokens_in(str(file))
    with pytest.raises(InvalidInput, match=f"{tmp_path}/none: No such file"):
        tokens_in(f"{tmp_path}/none")


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1", "127.0.0.1:9090", "[::1]:9090", "::1", "localhost:1", "10.0.0.1"]
)
def test_a_host_header_that_no_other_site_can_make_a_browser_send(host: str) -> None:
    assert names_by_address(host)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9090", "127.0.0.1.evil.example"])
def test_a_host_header_of_a_strangers_name(host: str) -> None:
    assert not names_by_address(host)


def test_what_is_loopback_as_it_is_written() -> None:
    assert not is_loopback("localhost.evil.example")


def test_a_probe_tells_strangers_its_status_only() -> None:
    findings = {"datastore": "refused\nby 10.0.0.1", "api": ""}
    told, kept = probe(findings), probe(findings, trusted=False)
    assert told.body == "not ok\n[-]datastore: refused by 10.0.0.1\n[+]api\n"
    assert kept.body == "not ok\n"
    assert told.status == kept.status == 503
    assert probe({"api": ""}, trusted=False).body == "ok\n"
    assert probe({}).status == 200


@pytest.mark.parametrize("token", ["plain", "Überraschung", "\u2028"])
def test_a_token_of_any_characters_is_taken_as_its_bytes(token: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{token}\n")
    heard = f"Bearer {token}".encode().decode("latin-1")  # as the server's own parser has it
    assert proves(heard, tokens_in(str(file)))
    assert proves(f"Basic {b64encode(f'me:{token}'.encode()).decode()}", tokens_in(str(file)))
    assert not proves(heard + "x", tokens_in(str(file)))
