"""What `ipam show` says of an address that cools down, however long that takes."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_address

import pytest

from libtortie.model.ipam import Attribute
from tortiectl.ipam_report import cooling_text

NEVER = "free {} s after that, which is never"


@pytest.mark.parametrize(
    ("year", "seconds", "free"),
    [
        (2026, 60, "free from 2026-08-22T00:01:00Z"),
        (9999, 60, "free from 9999-08-22T00:01:00Z"),
        (9999, 10**8, NEVER.format(10**8)),
        (2026, 10**12, NEVER.format(10**12)),
        (2026, 2**63 - 1, NEVER.format(2**63 - 1)),
    ],
)
def test_when_an_address_is_free_again(year: int, seconds: int, free: str) -> None:
    released = Attribute(released_at=datetime(year, 8, 22, tzinfo=UTC))
    assert cooling_text(ip_address("10.0.0.1"), released, seconds) == (
        f"10.0.0.1 is cooling down: released at {year}-08-22T00:00:00Z, {free}"
    )
