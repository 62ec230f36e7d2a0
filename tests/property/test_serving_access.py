"""Whatever a stranger sends as proof or as a host, it is judged and never let in by accident."""

from __future__ import annotations

from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from libtortie.serving_access import names_by_address, proves

TOKEN = b"the-only-token"
HEADERS = st.one_of(
    st.text(),
    st.text().map("Bearer {}".format),
    st.binary().map(lambda raw: f"Basic {b64encode(raw).decode()}"),
    st.text().map("Basic {}".format),
)


@given(HEADERS)
def test_no_header_without_the_token_lets_in(header: str) -> None:
    assert not proves(header, (TOKEN,)) or TOKEN.decode() in header or "Basic" in header


@given(st.binary())
def test_a_log_in_lets_in_by_its_password_alone(raw: bytes) -> None:
    header = f"Basic {b64encode(raw).decode()}"
    assert proves(header, (TOKEN,)) == (raw.partition(b":")[2] == TOKEN)


@given(st.from_regex(r"[a-z0-9.-]+\.[a-z]+(:[0-9]+)?", fullmatch=True))
def test_no_name_of_a_domain_is_an_address(host: str) -> None:
    assert not names_by_address(host)


@given(st.text())
def test_any_host_is_judged(host: str) -> None:
    names_by_address(host)
