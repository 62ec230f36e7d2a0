"""`tortie-controllers page` as a process, looked at with Chromium: what a person gets to see."""

from __future__ import annotations

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

    def status(self, token: str) -> int:
        """What a program gets with a token; 0 while nobody listens."""
        proof = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/vms", headers=proof)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=DEADLINE) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def job(self, name: str, vm: str, phase: str) -> None:
        resource = "virtualmachineinstancemigrations.kubevirt.io"
        put_object(self.server, resource, job(name, vm, phase))


@contextmanager
def shown(directory: Path, server: ApiServer) -> Iterator[Shown]:
    """The same once it listens."""
    with started(directory, server) as page:
        until("it listens", lambda: page.status(TOKEN) == 200, seconds=DEADLINE)
        yield page


@contextmanager
def started(directory: Path, server: ApiServer, *args: str) -> Iterator[Shown]:
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
        command = [sys.executable, "-m", "controllers.cli", "page", "-c", str(config)]
        process = subprocess.Popen(
            [*command, f"--page-port={port}", f"--page-token-file={tokens}", *args],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ},
        )
        stack.callback(process.communicate)
        stack.callback(process.kill)
        yield Shown(server, town, port, process)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("chromium")) as made:
        yield made


def test_a_person_sees_vms_and_a_migration_as_it_goes_on(
    tmp_path: Path, server: ApiServer, browser: Chromium
) -> None:
    with shown(tmp_path, server) as page:
        browser.go(page.url("/vms"))
        text = str(browser.run(MAIN))
        assert "shop/web" in text
        assert "10.65.0." in text
        assert f"shop/{HOSTILE}" in text, "as it is written"
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
    page.job("move", "web", "Scheduling")
    browser.go(page.url("/vms"))
    browser.until("the migration is seen", f"{MAIN}.includes('shop/move')")
    browser.go(page.url("/migrations/shop/move"))
    browser.run("window.same = true")
    assert browser.run("document.querySelectorAll('main svg circle').length") == 2
    page.job("move", "web", "Running")
    browser.until("it runs", f"{MAIN}.includes('migration Running')")
    assert browser.run("document.querySelectorAll('main svg circle').length") == 3
    page.job("move", "web", "Succeeded")
    browser.until("it ended", f"{MAIN}.includes('migration ends')")
    assert browser.run("window.same"), "the same page all along"


def _says_that_the_api_is_away(page: Shown, browser: Chromium) -> None:
    browser.go(page.url("/vms"))
    page.server.stop()
    browser.until("the age is told", f"{MAIN}.includes('vms: this is of 20')")
    assert "shop/web" in str(browser.run(MAIN)), "what is known is still shown"


def test_without_a_script_the_browser_comes_again(
    tmp_path: Path, server: ApiServer, browser: Chromium
) -> None:
    with shown(tmp_path, server) as page:
        page.job("move", "web", "Scheduling")
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
        wrong = ("", "wrong", TOKEN[:-1], f"{TOKEN}x")
        assert [page.status(one) for one in (*wrong, TOKEN)] == [401] * 4 + [200]
        refused = browser("Page.navigate", url=page.url("/vms", "wrong"))
        assert refused["errorText"] == "net::ERR_INVALID_AUTH_CREDENTIALS"
        browser.go(page.url("/vms"))
        assert "shop/web" in str(browser.run("document.body.innerText"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["page", "--page-host", "0.0.0.0"], "give --page-token-file or --page-client-ca-file"),
        (["page", "--page-host", "::"], "give --page-token-file or --page-client-ca-file"),
        (["page", "--page-client-ca-file", "x"], "--page-client-ca-file needs --page-cert-file"),
        (["page", "--page-port", "0"], "'0' is no port: 1 to 65535"),
        (["gc", "--page-host", "127.0.0.1"], "--page-host needs --page-port: give both"),
        (["gc", "--once", "--page-port", "9093"], "leave out --once"),
    ],
)
def test_a_wrong_command_line_is_refused_at_the_start(args: list[str], said: str) -> None:
    command = [sys.executable, "-m", "controllers.cli", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_token_file_that_is_not_there_is_told_at_the_start(
    tmp_path: Path, server: ApiServer
) -> None:
    nowhere = tmp_path / "nowhere"
    with started(tmp_path, server, f"--page-token-file={nowhere}") as page:
        _, err = page.process.communicate(timeout=DEADLINE)
        assert page.process.returncode == 1
        assert err == f"Error: token file {nowhere}: No such file or directory\n"
