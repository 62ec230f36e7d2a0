"""What `node status`, `checksystem` and `diags` make of what they find; no daemon is asked."""

from __future__ import annotations

import tarfile
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest

from libtortie.errors import InvalidInput, Unavailable
from tests.fakes.patience import PATIENCE
from tortiectl.bird_status import sessions
from tortiectl.diags import archive, files, run, told, without_secrets
from tortiectl.system_check import NEEDED, Mark, Sources, check, parse_config

PROTOCOLS = """\
Name       Proto      Table      State  Since         Info
device1    Device     ---        up     2026-08-22
mesh_192_0_2_12 BGP        ---        up     12:30:01.123  Established
  BGP state:          Established
    Neighbor address: 192.0.2.12
    Neighbor AS:      64512
peer_192_0_2_1 BGP ---        start  2026-08-22 12:31:00  Active  Socket: Connection refused
  BGP state:          Active
    Neighbor address: 192.0.2.1
    Last error:       Socket: Connection refused
kernel1    Kernel     master4    up     12:30:01
    Neighbor address: 203.0.113.1
mesh_fd00__12 BGP        ---        start  12:31:00  Connect
    Neighbor address: fd00::12
    Last error:       Received: Cease
"""


def test_sessions_of_both_families() -> None:
    first, second, third = sessions(PROTOCOLS.splitlines())
    assert first.cells() == (
        "192.0.2.12", "node-to-node mesh", "up", "12:30:01.123", "Established",
    )  # fmt: skip
    assert (second.address, second.kind) == (ip_address("192.0.2.1"), "peer")
    assert second.since == "2026-08-22 12:31:00"
    assert second.info.count("Connection refused") == 1
    assert third.cells()[0] == "fd00::12"
    assert third.info == "Connect (Received: Cease)"


def test_no_words_are_no_sessions() -> None:
    assert list(sessions([])) == []
    assert list(sessions(["  Neighbor address: 192.0.2.1", "x BGP"])) == []


def marks(sources: Sources) -> dict[str, Mark]:
    return {one.name: one.mark for one in check(sources)}


def everywhere(name: str) -> str:
    return f"/usr/sbin/{name}"


def test_modules_by_each_source() -> None:
    options = parse_config("CONFIG_VETH=m\n# CONFIG_VXLAN is not set\nCONFIG_NF_TABLES=y\n junk")
    found = marks(
        Sources(
            "6.1.0-13-amd64", frozenset({"nft_ct"}), frozenset({"af_packet"}), options, everywhere
        )
    )
    assert found["6.1.0-13-amd64"] is Mark.OK
    assert [found[name] for name in ("nft_ct", "af_packet", "veth", "nf_tables")] == [Mark.OK] * 4
    assert found["nft_masq"] is Mark.FAIL
    assert found["vxlan"] is Mark.SKIP
    assert found["bird"] is Mark.OK


def test_what_nobody_knows_is_passed_over_and_what_is_old_fails() -> None:
    found = marks(Sources("4.19.0", which=lambda name: None))
    assert found["4.19.0"] is Mark.FAIL
    assert {found[name] for name in NEEDED} == {Mark.SKIP}
    assert found["nft"] is Mark.FAIL
    assert marks(Sources("custom"))["custom"] is Mark.SKIP


def test_a_kernels_configuration_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nothing-here"):
        Sources.here(str(tmp_path / "nothing-here"))
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8bxx")
    with pytest.raises(InvalidInput, match=r"broken\.gz"):
        Sources.here(str(tmp_path / "broken.gz"))


def test_secrets_are_left_out() -> None:
    text = 'etcd_password: hunter2\nnodename: n1\n  k8sAPIToken: abc\n"client-key-data": x\n'
    said = without_secrets(text)
    assert "hunter2" not in said
    assert "abc" not in said
    assert said.splitlines()[1] == "nodename: n1"
    assert said.splitlines()[3] == '"client-key-data": (left out)'


@pytest.mark.parametrize(
    "text",
    [
        "etcd_password: |\n  hunter\n\n  hunter2\nnodename: n1\n",
        "token: >-\n  hunter2\nnodename: n1\n",
        "etcd_password:\n  hunter2\nnodename: n1\n",
        "one:\n  - token: hunter2\nnodename: n1\n",
        "etcd: {user: me, password: hunter2}\nnodename: n1\n",
        '{"nodename": "n1", "etcd_password": "hunter2"}',
        "etcd_endpoints: https://me:hunter2@192.0.2.1:2379\nnodename: n1\n",
        "# the old token: hunter2\nnodename: n1\n",
    ],
)
def test_secrets_are_left_out_in_whatever_form(text: str) -> None:
    said = without_secrets(text)
    assert "hunter" not in said
    assert "n1" in said


def test_what_fails_or_hangs_is_noted(tmp_path: Path) -> None:
    assert b"there is no such program here" in run("x", ("no-such-program-at-all",))[1]
    assert b"not done after 0.1 s" in run("x", ("sleep", "60"), seconds=0.1)[1]
    assert run("x", ("echo", "hi"), seconds=PATIENCE)[1] == b"$ echo hi\nhi\n"

    def fails() -> str:
        raise Unavailable("silent")

    assert told("a", fails) == ("a", b"silent\n")
    assert next(files(tmp_path / "none", "logs"))[0] == "logs/MISSING"
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.log").write_text("text")
    (tmp_path / "d/link").symlink_to("/etc/shadow")
    assert list(files(tmp_path / "d", "logs")) == [("logs/a.log", b"text")]


def test_an_archive_is_its_owners_and_never_overwritten(tmp_path: Path) -> None:
    now = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)
    path = archive([("a/b.txt", b"hello")], now, str(tmp_path))
    assert path.name == "diags-20260822_133000.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as tar:
        member = tar.extractfile("diags-20260822_133000/a/b.txt")
        assert member is not None
        assert member.read() == b"hello"
    with pytest.raises(InvalidInput, match="File exists"):
        archive([], now, str(tmp_path))
    with pytest.raises(InvalidInput, match="No such file"):
        archive([], now, str(tmp_path / "none"))
