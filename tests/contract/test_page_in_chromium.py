"""`tortie-controllers page` as a process, looked at with Chromium: what a person gets to see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from lab.apiserver.server import ApiServer
from libtortie.datastore.sqlite import SqliteDatastore
from tests.fakes.chromium import Chromium, chromium
from tests.fakes.gc_world import Town
from tests.fakes.ipam_world import World
from tests.fakes.kube import FakeKube
from tests.fakes.kubernetes_store import put_object
from tests.fakes.node_process import until
from tests.fakes.page_site import job, own, vmi
from tests.fakes.ports import free_ports

DEADLINE = 120.0
TOKEN = "0123456789abcdef"
HOSTILE = '"><img src=x onerror=document.title=1><script>document.title=1</script>'
MAIN = "(document.querySelector('main')?.innerText ?? '')"


@dataclass
class Shown:
    """A page's process, and the API that it reads."""

    server: ApiServer
    town: Town
    port: int
    process: subprocess.Popen[str]

    def url(self, path: str, token: str = TOKEN) -> str:
        return f"http://me:{token}@127.0.0.1:{self.port}{path}"

    def get(self, path: str, token: str = TOKEN) -> tuple[int, str]:
        """What a program gets with a token; status 0 while nobody listens."""
        proof = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=proof)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=DEADLINE) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def status(self, token: str) -> int:
        """What a program with a token gets."""
        return until("an answer", lambda: self.get("/vms", token)[0], seconds=DEADLINE)

    def job(self, name: str, vm: str, phase: str) -> None:
        resource = "virtualmachineinstancemigrations.kubevirt.io"
        put_object(self.server, resource, job(name, vm, phase))


@contextmanager
def shown(directory: Path, server: ApiServer, command_name: str = "page") -> Iterator[Shown]:
    """The same once it listens."""
    with started(directory, server, command_name=command_name) as page:
        until("it listens", lambda: page.get("/vms")[0] == 200, seconds=DEADLINE)
        yield page


@contextmanager
def started(
    directory: Path, server: ApiServer, *args: str, command_name: str = "page"
) -> Iterator[Shown]:
    """The page over a SQLite file with two VMs, one of them named by somebody hostile."""
    (port,) = free_ports(1)
    path, config, tokens = directory / "t.db", directory / "page.cfg", directory / "tokens"
    spec = {"datastoreType": "sqlite", "sqlitePath": str(path), "k8sAPIEndpoint": server.url}
    kind = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": spec}
    config.write_text(yaml.safe_dump(kind))
    tokens.write_text(f"{TOKEN}\n")
    fake = FakeKube()
    fake.api = server.api
    with closing(SqliteDatastore(path)) as store, ExitStack() as stack:
        town = Town(World(store), fake)
        for name, node in (("web", "n1"), (HOSTILE, HOSTILE)):
            resource = "virtualmachineinstances.kubevirt.io"
            put_object(server, resource, vmi(name, node=node, phase=HOSTILE))
        own(town, "web")
        command = [sys.executable, "-m", "controllers.cli", command_name, "-c", str(config)]
        process = subprocess.Popen(
            [*command, f"--page-port={port}", f"--page-token-file={tokens}", *args],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ},
        )
        stack.callback(process.communicate)
        stack.callback(process.kill)
        made = Shown(server, town, port, process)
        made.job("move", "web", "Scheduling")
        yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("chromium")) as made:
        yield made


def opened(browser: Chromium, url: str) -> None:
    """Open a page; once more when its script did not come, as of a server that stood still."""

    def works() -> bool:
        browser.go(url)
        return bool(browser.run("typeof again === 'function'"))

    until("it is there with its script", works, seconds=DEADLINE)


def test_a_person_sees_vms_and_a_migration_as_it_goes_on(
    tmp_path: Path, server: ApiServer, browser: Chromium
) -> None:
    with shown(tmp_path, server) as page:
        opened(browser, page.url("/vms"))
        for text in ("shop/web", "10.65.0.", f"shop/{HOSTILE}"):
            browser.until("it is there as it is written", f"{MAIN}.includes({json.dumps(text)})")
        assert browser.run("document.title") == "VMs · Tortie"
        assert browser.run("document.images.length") == 0
        assert browser.run("document.scripts.length") == 1
        browser.run("document.querySelector('td a[href*=\"img\"]').click()")
        browser.until("its page", f"document.title.startsWith({'VM shop/<img'[:8]!r})")
        _goes_on(page, browser)
        _says_that_the_api_is_away(page, browser)
        page.process.send_signal(signal.SIGTERM)
        assert page.process.wait(DEADLINE) == 0
        browser.until("it says so itself", "!document.getElementById('away').hidden")
    wrong = [one["entry"] for one in browser.told("Log.entryAdded")]
    assert [one for one in wrong if one["source"] in ("security", "violation")] == []


def _goes_on(page: Shown, browser: Chromium) -> None:
    """A migration's page follows it without being loaded anew."""
    opened(browser, page.url("/migrations/shop/move"))
    browser.run("window.same = true")
    browser.until("it is drawn", "document.querySelectorAll('main svg circle').length === 2")
    page.job("move", "web", "Running")
    browser.until("it runs", f"{MAIN}.includes('migration Running')")
    assert browser.run("document.querySelectorAll('main svg circle').length") == 3
    page.job("move", "web", "Succeeded")
    browser.until("it ended", f"{MAIN}.includes('migration ends')")
    assert browser.run("window.same"), "the same page all along"


def _says_that_the_api_is_away(page: Shown, browser: Chromium) -> None:
    opened(browser, page.url("/vms"))
    page.server.stop()
    browser.until("the age is told", f"{MAIN}.includes('vms: this is of 20')")
    assert "shop/web" in str(browser.run(MAIN)), "what is known is still shown"


def test_without_a_script_the_browser_comes_again(
    tmp_path: Path, server: ApiServer, browser: Chromium
) -> None:
    with shown(tmp_path, server) as page:
        browser("Emulation.setScriptExecutionDisabled", value=True)
        try:
            browser.go(page.url("/migrations/shop/move"))
            page.job("move", "web", "Running")
            browser.until("it is there", f"{MAIN}.includes('migration Running')")
        finally:
            browser("Emulation.setScriptExecutionDisabled", value=False)


def test_nobody_sees_it_without_the_token(
    tmp_path: Path, server: ApiServer, browser: Chromium
) -> None:
    with shown(tmp_path, server) as page:
        for token in ("", "wrong", TOKEN[:-1], f"{TOKEN}x"):
            assert page.status(token) == 401
        url, refused = page.url("/vms", "wrong"), "net::ERR_INVALID_AUTH_CREDENTIALS"
        until("it is refused", lambda: browser.fails(url) == refused, seconds=DEADLINE)
        browser.go(page.url("/vms"))
        browser.until("they are shown", f"{MAIN}.includes('shop/web')")


def test_beside_the_collector_the_page_has_its_last_pass(tmp_path: Path, server: ApiServer) -> None:
    def told() -> str:
        found = json.loads(page.get("/problems?format=json")[1])
        lines = found["collector"]["items"] if found["collected"] else []
        return str(lines[-1]["text"]) if lines else ""

    with shown(tmp_path, server, "gc") as page:
        last = until("a pass was made", told, seconds=DEADLINE)
        assert last.startswith("pass: ")
        page.process.send_signal(signal.SIGTERM)
        assert page.process.wait(DEADLINE) == 0


def test_a_token_file_that_is_not_there_is_told_at_the_start(
    tmp_path: Path, server: ApiServer
) -> None:
    nowhere = tmp_path / "nowhere"
    with started(tmp_path, server, f"--page-token-file={nowhere}") as page:
        _, err = page.process.communicate(timeout=DEADLINE)
        assert page.process.returncode == 1
        assert err == f"Error: token file {nowhere}: No such file or directory\n"
