"""A user's own kubeconfig: exec credential plugins, several files, proxies."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from lab.apiserver.server import ApiServer, Tls
from libtortie.access import kubeconfig_in
from libtortie.client_config import is_exempt
from libtortie.errors import InvalidInput, Unauthorized
from libtortie.kube import exec_plugin
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import KubeConfig, Material, direct
from libtortie.kube.objects import Namespace
from tests.fakes.certificates import Authority
from tests.fakes.http_proxy import HttpProxy
from tortiectl.cli import main

VERSION = "client.authentication.k8s.io/v1"
PROGRAM = """\
import json, os, pathlib, sys
here = pathlib.Path({here!r})
with (here / "calls").open("a") as calls:
    calls.write(os.environ["KUBERNETES_EXEC_INFO"] + " " + " ".join(sys.argv[1:])
                + " " + os.environ.get("EXTRA", "") + "\\n")
print((here / "answer").read_text())
"""


class Plugin:
    """A program that answers what is in a file, and a kubeconfig that names it."""

    def __init__(self, root: Path, server: str, **more: Any) -> None:
        self.root = root
        script = root / "plugin.py"
        script.write_text(PROGRAM.format(here=str(root)))
        run = {
            "apiVersion": VERSION,
            "command": sys.executable,
            "args": [str(script), "get-token"],
            "env": [{"name": "EXTRA", "value": "extra"}],
            "interactiveMode": "Never",
            **more,
        }
        self.config = root / "kubeconfig"
        self.config.write_text(yaml.safe_dump(kubeconfig(server, {"exec": run})))

    def answers(self, **status: Any) -> None:
        body = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
        (self.root / "answer").write_text(json.dumps(body))

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def client(self) -> Any:
        return closing(HttpKubeClient(kubeconfig_in(self.config)))


def kubeconfig(server: str, user: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(tokens={"one": "alice"}) as running:
        yield running


def test_a_program_is_asked_once_for_all_clients(tmp_path: Path, server: ApiServer) -> None:
    plugin = Plugin(tmp_path, server.url, provideClusterInfo=True)
    plugin.answers(token="one", expirationTimestamp="2999-01-01T00:00:00Z")
    for _ in range(2):
        with plugin.client() as client:
            client.list(Namespace)
            client.list(Namespace)
    assert server.audit[-1].user == "alice"
    (call,) = plugin.calls
    info = json.loads(call.partition("} get-token")[0] + "}")
    assert info["apiVersion"] == VERSION
    assert info["spec"] == {"interactive": False, "cluster": {"server": server.url}}
    assert call.endswith(" get-token extra")


def test_what_has_expired_or_is_refused_is_obtained_anew(tmp_path: Path, server: ApiServer) -> None:
    plugin = Plugin(tmp_path, server.url)
    plugin.answers(token="one", expirationTimestamp="2000-01-01T00:00:00Z")
    with plugin.client() as client:
        client.list(Namespace)
        before = len(plugin.calls)
        plugin.answers(token="one")
        client.list(Namespace)
        assert len(plugin.calls) == before + 1
        client.list(Namespace)
        assert len(plugin.calls) == before + 1
        server.tokens.replace({"two": "alice"})
        plugin.answers(token="two")
        client.list(Namespace)
        assert len(plugin.calls) == before + 2
        server.tokens.replace({"three": "alice"})
        with pytest.raises(Unauthorized, match="credentials of exec plugin") as caught:
            client.list(Namespace)
        assert "two" not in str(caught.value)


def test_a_certificate_from_a_program(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, mine = authority.server("api"), authority.client("carol")
    with ApiServer(tls=Tls(pair.cert, pair.key, authority.cert)) as server:
        plugin = Plugin(tmp_path, server.url)
        body = yaml.safe_load(plugin.config.read_text())
        body["clusters"][0]["cluster"]["certificate-authority"] = authority.cert.name
        plugin.config.write_text(yaml.safe_dump(body))
        plugin.answers(
            clientCertificateData=mine.cert.read_text(), clientKeyData=mine.key.read_text()
        )
        with plugin.client() as client:
            client.list(Namespace)
        assert server.audit[-1].user == "carol"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "its answer is no ExecCredential with a status"),
        ("[]", "its answer is no ExecCredential with a status"),
        ('{"apiVersion": "v1", "kind": "ExecCredential", "status": {}}', "no ExecCredential of"),
        ({}, "has neither a token nor a certificate"),
        ({"clientCertificateData": "x"}, "a certificate needs a key"),
        ({"token": "s3cret\nevil"}, "holds a character that no header can carry"),
        ({"token": "s3cret", "expirationTimestamp": "soon"}, "expirationTimestamp: "),
    ],
)
def test_answers_that_are_none(tmp_path: Path, answer: Any, words: str) -> None:
    plugin = Plugin(tmp_path, "http://192.0.2.1")
    if isinstance(answer, str):
        (tmp_path / "answer").write_text(answer)
    else:
        plugin.answers(**answer)
    with pytest.raises(InvalidInput, match=words) as caught:
        HttpKubeClient(kubeconfig_in(plugin.config))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"apiVersion": "v1"}, "exec: apiVersion 'v1' is none of"),
        ({"command": ""}, "exec: command is missing"),
        ({"args": "x"}, "exec: args is not a list"),
        ({"env": [1]}, "exec: env is not a list"),
        ({"interactiveMode": "Maybe"}, "interactiveMode 'Maybe' is none of"),
        ({"interactiveMode": "Always"}, "has to ask, and there is no terminal"),
        ({"command": "no-such-login", "installHint": "apt install it"}, "program: apt install it"),
        ({"command": "./no-such-file"}, "exec plugin ./no-such-file: No such file"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit('log in first')"]},
         "status 1: log in first"),
    ],
)  # fmt: skip
def test_programs_that_cannot_be_asked(tmp_path: Path, more: Any, words: str) -> None:
    plugin = Plugin(tmp_path, "http://192.0.2.1", **more)
    with pytest.raises(InvalidInput) as caught:
        HttpKubeClient(kubeconfig_in(plugin.config))
    assert words in str(caught.value)


def test_a_program_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "SECONDS", 0.3)
    plugin = Plugin(tmp_path, "http://192.0.2.1", args=["-c", "import time; time.sleep(900)"])
    with pytest.raises(InvalidInput, match=r"not done after 0\.3 s"):
        HttpKubeClient(kubeconfig_in(plugin.config))


# --- several files ------------------------------------------------------------------------------


def test_several_kubeconfigs_are_merged(tmp_path: Path, server: ApiServer) -> None:
    """The first that names something decides; paths are relative to their own file."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b/token").write_text("one")
    first = {"kind": "Config", "current-context": "mine",
             "contexts": [{"name": "mine", "context": {"cluster": "c", "user": "u"}}]}  # fmt: skip
    (tmp_path / "a/config").write_text(yaml.safe_dump(first))
    second = kubeconfig(server.url, {"tokenFile": "token"})
    (tmp_path / "b/config").write_text(yaml.safe_dump(second))
    listed = f"{tmp_path}/a/config:{tmp_path}/none:{tmp_path}/b/config"
    config = kubeconfig_in(listed)
    assert config.token_file == tmp_path / "b/token"
    with closing(HttpKubeClient(config)) as client:
        client.list(Namespace)
    assert kubeconfig_in(listed, "main").server == server.url
    with pytest.raises(InvalidInput, match="no context 'other'; there are: main, mine"):
        kubeconfig_in(listed, "other")
    with pytest.raises(InvalidInput, match="cannot read"):
        kubeconfig_in(f"{tmp_path}/none:{tmp_path}/neither")


def test_tortiectl_has_the_users_own_context(tmp_path: Path, server: ApiServer) -> None:
    body = kubeconfig(server.url, {"token": "wrong"})
    body["contexts"].append({"name": "good", "context": {"cluster": "c", "user": "v"}})
    body["users"].append({"name": "v", "user": {"token": "one"}})
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(body))
    environ = {"KUBECONFIG": str(path), "DATASTORE_TYPE": "kubernetes"}
    done = CliRunner().invoke(main, ["get", "ippools"], env=environ)
    assert done.exit_code == 1
    assert "wrong" not in done.stderr
    done = CliRunner().invoke(main, ["--context", "good", "get", "ippools"], env=environ)
    assert done.exit_code == 0, done.output


# --- proxies ------------------------------------------------------------------------------------


def test_a_proxy_that_the_kubeconfig_names(tmp_path: Path) -> None:
    with ApiServer() as server, HttpProxy() as proxy:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig(server.url, {}, **{"proxy-url": proxy.url})))
        with closing(HttpKubeClient(kubeconfig_in(path))) as client:
            client.list(Namespace)
        assert proxy.asked[0].startswith(f"GET {server.url}/api/v1/namespaces")


def test_tls_goes_through_a_tunnel(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server("api")
    tls = Tls(pair.cert, pair.key)
    with ApiServer(tls=tls, tokens={"one": "alice"}) as server, HttpProxy() as proxy:
        config = KubeConfig(
            server.url, token="one", ca=Material(path=authority.cert), proxy=proxy.url
        )
        with closing(HttpKubeClient(config)) as client:
            client.list(Namespace)
        assert proxy.asked == [f"CONNECT {server.url.removeprefix('https://')}"]


def test_the_environments_proxy_is_tortiectls_and_not_the_plugins(tmp_path: Path) -> None:
    with HttpProxy() as proxy:
        environ = {
            "DATASTORE_TYPE": "kubernetes",
            "K8S_API_ENDPOINT": "http://api.invalid:6443",
            "HTTP_PROXY": proxy.url,
        }
        CliRunner().invoke(main, ["--request-timeout", "30", "get", "ippools"], env=environ)
        assert proxy.asked == ["GET http://api.invalid:6443/apis"]
        for exempt in ("api.invalid", "invalid", "*", "x, .invalid"):
            CliRunner().invoke(main, ["get", "ippools"], env={**environ, "NO_PROXY": exempt})
        assert len(proxy.asked) == 1
    assert direct("http://api.invalid:6443").proxy == ""


def test_this_machine_is_never_asked_for_by_way_of_a_proxy() -> None:
    with ApiServer() as server, HttpProxy() as proxy:
        environ = {
            "DATASTORE_TYPE": "kubernetes",
            "K8S_API_ENDPOINT": server.url,
            "HTTP_PROXY": proxy.url,
        }
        assert CliRunner().invoke(main, ["get", "ippools"], env=environ).exit_code == 0
        assert proxy.asked == []


@pytest.mark.parametrize(
    ("host", "exempt", "found"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "192.0.2.0/24,example.com", False),
        ("fd00::1", "fd00::/8", True),
        ("a.example.com", ".example.com", True),
        ("badexample.com", "example.com", False),
        ("a.example.com", "", False),
    ],
)
def test_hosts_that_no_proxy_is_for(host: str, exempt: str, found: bool) -> None:
    assert is_exempt(host, exempt) is found


@pytest.mark.parametrize("url", ["socks5://p:1", "https://p:1", "p:1", "http://", "http://p:x"])
def test_proxies_that_are_not_spoken_to(tmp_path: Path, url: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig("http://192.0.2.1", {}, **{"proxy-url": url})))
    with pytest.raises(InvalidInput, match="proxy-url"):
        kubeconfig_in(path)
