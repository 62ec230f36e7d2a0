"""`vm trace` against an API server and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.apiserver.server import ApiServer
from tests.fakes.kubernetes_store import put_object
from tests.fakes.vm_api import vm_api
from tests.fakes.vm_ctl import Ctl
from tests.unit.tortiectl.test_vm_trace import EVENTS, MOVE, SOURCE, TARGET


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with vm_api() as running:
        body = MOVE.model_dump(by_alias=True, exclude_defaults=True)
        put_object(running, "virtualmachineinstancemigrations.kubevirt.io", body)
        event = {"metadata": {"name": "e", "namespace": "shop"}, **EVENTS[0]}
        put_object(running, "events", event)
        yield running


@pytest.fixture
def ctl(server: ApiServer, tmp_path: Path) -> Ctl:
    return Ctl(server, tmp_path)


def test_text_json_and_html(ctl: Ctl, tmp_path: Path) -> None:
    logs = []
    for name, text in (("n1", SOURCE), ("n2", TARGET)):
        (tmp_path / name).write_text(text)
        logs += ["--log", str(tmp_path / name)]
    shown = ctl("vm", "trace", "shop/move", *logs).output
    assert shown.startswith("shop/move of web: n1 to n2\n")
    assert "owner swapped: handle_id h" in shown
    assert "Migrated: gone" in shown
    document = json.loads(ctl("vm", "trace", "move", "-n", "shop", *logs, "-o", "json").stdout)
    assert document["shifts_ms"] == {"n1": 502.0}
    moved = ctl("vm", "trace", "shop/move", *logs, "--clock", "n1=600", "-o", "json").stdout
    assert json.loads(moved)["shifts_ms"] == {"n1": 600.0}
    assert ctl("vm", "trace", "shop/move", "-o", "html").output.startswith("<!doctype html>")


def test_what_cannot_be_traced(ctl: Ctl, server: ApiServer) -> None:
    assert (
        "KubeVirt keeps five of a VM); there are move"
        in ctl("vm", "trace", "shop/gone", code=1).output
    )
    assert "want NODE=MS" in ctl("vm", "trace", "shop/move", "--clock", "n1", code=1).output
    assert (
        "no-log: No such file" in ctl("vm", "trace", "shop/move", "--log", "no-log", code=1).output
    )
    server.api.catalogue.hide("kubevirt.io")
    assert "no KubeVirt" in ctl("vm", "trace", "shop/move", code=1).output
