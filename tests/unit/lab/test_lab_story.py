"""Judging the acts of the VM's story; the acts themselves are the demo's and the e2e tests'."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.measure import Witness
from lab.state import StateDir
from lab.story import Stage, play, setting, words_of
from lab.tools import LabError

SHOWN = """\
+------------------------------+----------+
|           PROPERTY           |  VALUE   |
+------------------------------+----------+
| StrictAffinity               | false    |
| KubeVirtVMAddressPersistence | Disabled |
+------------------------------+----------+
KubeVirtVMAddressPersistence is Enabled: not the table
"""


ADDRESSES = {4: "10.65.0.2", 6: "fd00::2"}


class At(Stage):
    """A stage whose VM is where its `vm` says: `ADDRESS NODE`, or nowhere, or not to be asked."""

    __slots__ = ()

    def whereabouts(self) -> tuple[dict[int, str], str]:
        """What the name says."""
        if self.vm == "unknown":
            raise LabError("no API")
        address, _, node = self.vm.partition(" ")
        return ({4: address, 6: "fd00::2"} if address else {}), node


def stage(where: str) -> Stage:
    return At(StateDir(Path("/nonexistent")), where, ADDRESSES, ("node1",), ())


def fine(_: Stage) -> str:
    return "did it"


def breaks(_: Stage) -> str:
    raise LabError("it broke")


def test_an_act_that_keeps_the_address() -> None:
    act = play(stage("10.65.0.2 node1"), "reboot", fine)
    assert (act.act, act.ok, act.address, act.node) == ("reboot", True, "10.65.0.2", "node1")
    assert act.detail == "did it"
    assert act.seconds >= 0


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (
            "10.65.0.3 node1",
            "address 10.65.0.3 and fd00::2, not 10.65.0.2 and fd00::2; did it",
        ),
        ("", "address none, not 10.65.0.2 and fd00::2; did it"),
        ("unknown", "no API"),
    ],
)
def test_an_act_after_which_the_address_is_not_the_same_is_broken(where: str, words: str) -> None:
    act = play(stage(where), "reboot", fine)
    assert (act.ok, act.detail) == (False, words)


def test_an_act_that_breaks_says_why_and_where_the_vm_is() -> None:
    act = play(stage("10.65.0.2 node1"), "drain", breaks)
    assert (act.ok, act.detail, act.node) == (False, "it broke", "node1")
    assert play(stage("unknown"), "drain", breaks).node == ""


@pytest.mark.parametrize(
    ("shown", "value"),
    [(SHOWN, "Disabled"), (SHOWN.replace("Disabled", "Enabled"), "Enabled"), ("", ""), ("|", "")],
)
def test_the_setting_is_read_from_its_row(shown: str, value: str) -> None:
    assert setting(shown) == value


def test_words_of_a_program_are_of_both_streams() -> None:
    code = "import sys, os; print(os.environ['A']); sys.exit(sys.stderr.write('err') - 3)"
    assert words_of([sys.executable, "-c", code], {"A": "b"}).split() == ["b", "err"]


@pytest.mark.parametrize("code", ["import sys; sys.exit('why')", "print('why'); 1 / 0"])
def test_a_program_that_fails_is_quoted(code: str) -> None:
    with pytest.raises(LabError, match="why"):
        words_of([sys.executable, "-c", code])


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(LabError, match="nosuch"):
        words_of(["/nonexistent/nosuch"])


def route(
    where: str, added: bool, metric: int, gateway: str = "", version: int = 4
) -> dict[str, object]:
    ifname = "" if gateway else "cali1"
    return {
        "kind": "route",
        "t_ns": 1,
        "where": where,
        "added": added,
        "metric": metric,
        "gateway": gateway,
        "ifname": ifname,
        "proto": 3,
        "version": version,
    }


def test_everybody_has_followed_when_all_kernels_have_and_the_source_let_go() -> None:
    there = {4: "172.31.0.12", 6: "fd00:172:31::12"}
    witness = Witness("node2", there, frozenset({"node1", "tor"}))
    witness.tell({"kind": "frame", "t_ns": 1, "where": "node2", "what": "other", "ifname": "cali1"})
    assert not witness.signed()
    witness.tell({"kind": "frame", "t_ns": 1, "where": "node2", "what": "rarp", "ifname": "cali1"})
    assert witness.signed()
    steps = [
        route("node2", True, 512),
        route("tor", True, 32, "172.31.0.12"),
        route("node1", True, 768, "172.31.0.12"),
        route("node1", False, 1024),
        route("node2", True, 512, version=6),
        route("tor", True, 32, "fd00:172:31::12", 6),
        route("node1", True, 768, "fd00:172:31::12", 6),
        route("node1", False, 1024, version=6),
    ]
    for step in steps:
        assert not witness.followed()
        witness.tell(step)
    assert witness.followed()
    assert not witness.elevated_gone()
    witness.tell(route("node2", False, 512))
    assert not witness.elevated_gone()
    witness.tell(route("node2", False, 512, version=6))
    assert witness.elevated_gone()


def test_waiting_ends_with_the_witness() -> None:
    witness = Witness("node2", {4: "172.31.0.12"}, frozenset())
    assert not witness.await_(witness.signed, 0.001)
    witness.close()
    assert not witness.await_(witness.signed, None)
