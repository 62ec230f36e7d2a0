"""Commands in the middle of the documentation's sentences, as they stand there: each does what a
reader who copies it may expect, or is told here why it is not run."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from libtortie.datastore.crd_names import Group
from tests.fakes.doc_desk import Desk
from tests.fakes.doc_pages import PAGES
from tests.fakes.kubernetes_store import stores_of
from tests.fakes.vm_api import put_site, vm_api
from tests.fakes.vm_cluster import healthy
from tests.unit.test_docs_commands import spans

pytestmark = pytest.mark.root

PROGRAMS = re.compile(r"(tortiectl|tortie-[a-z-]+) \S")
NOT_RUN = {
    r"bgp canary": "asks a ToR: test_bgp_on_bird",
    r"cluster diags|node diags": "collects what a node has: test_tortiectl_node",
    r"create|delete|datastore migrate|node drain-plan \S+ --watch|node uninstall|node install"
    r"|ipam configure|ipam release|vm migrate|vm evacuate-cancel|validate": "changes something, or "
    "is named without what it is to work on: run by the blocks of its page and its own tests",
    r"migration-proxy status|node status": "needs a daemon: test_migration_proxy_status, "
    "test_tortiectl_node",
    r"node checksystem": "judges this machine: test_tortiectl_node_looks",
    r"vm downtime": "asks a VM's launcher: test_vm_downtime",
    r"vm trace|vm show$|vm preflight$": "named without what it is about",
    r"gc$|gc --metrics-port": "goes on for ever: test_docs_desk",
    r"--migration-proxy$|--init-datastore$": "the agent itself: tests/netns",
}


def found() -> dict[str, list[str]]:
    """Each command once, and the pages that name it."""
    known: dict[str, list[str]] = {}
    for page in PAGES:
        for text in spans(page.read_text()):
            if PROGRAMS.match(text) and "…" not in text and "|" not in text:
                known.setdefault(text.strip(), []).append(page.name)
    return known


def excuse(command: str) -> str:
    """Why it is not run; empty: it is."""
    rest = command.partition(" ")[2]
    return next((why for what, why in NOT_RUN.items() if re.match(what, rest)), "")


def test_each_excuse_is_for_something() -> None:
    rests = [command.partition(" ")[2] for command in found()]
    for what in NOT_RUN:
        for part in what.split("|"):
            assert any(re.match(part, rest) for rest in rests), part


def test_they_do_what_a_reader_expects(tmp_path: Path) -> None:
    desk, now = Desk(tmp_path), datetime.now(UTC)
    site = healthy(vms=2, nodes=3, now=now)
    with ExitStack() as stack:
        server = stack.enter_context(vm_api(hooks=True))
        put_site(server, site)
        from tests.contract.test_docs_desk import served  # its helper for a reader's kubeconfig

        served(desk, server)
        group = Group.V3
        (store,) = stack.enter_context(stores_of(server, group))
        desk.environ |= {"DATASTORE_TYPE": "kubernetes", "CALICO_API_GROUP": group.value}
        pod = site.pods[0]
        owner = pod_owner(
            namespace=pod["metadata"]["namespace"],
            pod=pod["metadata"]["name"],
            node=pod["spec"]["nodeName"],
            timestamp=now,
        )
        client = IPAMClient(store, "n1", now=lambda: now)
        (held,) = client.assign("k8s-pod-network.c-x", owner, AddressRequest())
        meta = site.vmis[0]["metadata"]
        words = {
            "VM": f"{meta['namespace']}/{meta['name']}",
            "NODE": "n1",
            "N": "n1",
            "ADDRESS": str(held.address),
        }
        wrong = []
        for command, pages in found().items():
            if excuse(command):
                continue
            line = shlex.join(words.get(word, word) for word in shlex.split(command))
            done = desk.run(line)
            if done.returncode or not done.stdout:
                wrong.append((line, pages, done.returncode, done.stdout[-300:], done.stderr[-300:]))
    assert not wrong, "\n".join(map(str, wrong))
