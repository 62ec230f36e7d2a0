"""The plugin's kubeconfig: what it lets its reader do, and who keeps it fresh through what."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_plugin.durable import only_writer
from cni_plugin.kubeconfig import keep
from felix_shim import plugin_kubeconfig
from felix_shim.config import parse_config
from felix_shim.plugin_kubeconfig import KubeconfigKeeper
from lab.apiserver.server import ApiServer, Tls
from libtortie.errors import InvalidInput, Unauthorized, Unavailable
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import KubeConfig, Material, load_kubeconfig
from libtortie.kube.credentials import Credentials, load
from libtortie.kube.objects import Namespace
from libtortie.metrics import exposition
from tests.fakes.agent_world import RecordingLog
from tests.fakes.by_hand import Clock
from tests.fakes.certificates import Authority
from tests.fakes.node_process import until

WRITTEN, STALE = "cni_kubeconfig_written", "cni_kubeconfig_stale"


class Kept:
    """A token as a kubelet mounts it, an API that knows it, and the file kept from it."""

    def __init__(self, root: Path, server: ApiServer) -> None:
        self.root = root
        self.server = server
        self.token = root / "token"
        self.path = root / "host" / "kubeconfig"
        self.log = RecordingLog()
        self.config = KubeConfig(server.url, token_file=self.token)
        self.keeper = KubeconfigKeeper(self.path, self.config, self.log)

    def rotate(self, token: str) -> None:
        """The API knows this token only, and the kubelet has swapped the link."""
        self.server.tokens.replace({token: "system:serviceaccount:kube-system:tortie"})
        (self.root / f"..{token}").mkdir()
        (self.root / f"..{token}" / "token").write_text(token)
        link = self.root / "..new"
        link.symlink_to(f"..{token}/token")
        link.rename(self.token)

    @contextmanager
    def client(self) -> Iterator[HttpKubeClient]:
        client = HttpKubeClient(load_kubeconfig(self.path))
        try:
            yield client
        finally:
            client.close()

    def events(self) -> list[str]:
        return [event for event, _ in self.log.lines]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with ApiServer(tokens={"none": "nobody"}) as server:
        made = Kept(tmp_path, server)
        made.rotate("first")
        yield made
    assert server.crashes == []


def test_what_it_says_is_what_the_agent_says(tmp_path: Path) -> None:
    """Over TLS, with the CA in it, by token, by certificate, under another name, unverified."""
    authority = Authority(tmp_path)
    pair, client_pair = authority.server("api", hosts=("api.test",)), authority.client("alice")
    token = tmp_path / "token"
    token.write_text("t0k3n\n")
    ca = Material(path=authority.cert)
    certificate: dict[str, Any] = {
        "client_cert": Material(path=client_pair.cert),
        "client_key": Material(path=client_pair.key),
    }
    tls = Tls(pair.cert, pair.key, authority.cert)
    with ApiServer(tokens={"t0k3n": "bob"}, tls=tls) as server:
        with pytest.raises(Unavailable, match="certificate"):  # its name is not its address
            HttpKubeClient(KubeConfig(server.url, token_file=token, ca=ca)).list(Namespace)
        for config, user in (
            (KubeConfig(server.url, token_file=token, ca=ca, tls_server_name="api.test"), "bob"),
            (KubeConfig(server.url, token="t0k3n", insecure=True), "bob"),
            (KubeConfig(server.url, ca=ca, tls_server_name="api.test", **certificate), "alice"),
        ):
            path = tmp_path / "host" / "kubeconfig"
            path.unlink(missing_ok=True)
            assert keep(path, load(config))
            assert path.stat().st_mode & 0o777 == 0o600
            client = HttpKubeClient(load_kubeconfig(path))
            client.list(Namespace)
            client.close()
            assert server.audit[-1].user == user
            assert str(tmp_path) not in path.read_text(), "no file of the agent's is named"


def test_a_kubeconfig_of_the_agents_is_repeated(kept: Kept) -> None:
    theirs = kept.root / "agents"
    theirs.write_text(
        f"clusters: [{{name: c, cluster: {{server: '{kept.server.url}'}}}}]\n"
        "users: [{name: u, user: {tokenFile: token}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]\n"
        "current-context: x\n"
    )
    keeper = KubeconfigKeeper(kept.path, load_kubeconfig(theirs), kept.log)
    keeper.look()
    with kept.client() as client:
        client.list(Namespace)
        kept.rotate("second")
        keeper.look()
        client.list(Namespace)


def written(path: Path) -> tuple[int, int]:
    """Which file it is, and when it was last changed; to be read is no change."""
    found = path.stat()
    return found.st_ino, found.st_ctime_ns


def test_every_rotation_is_followed_and_nothing_else_written(kept: Kept) -> None:
    kept.keeper.look()
    with kept.client() as client:
        client.list(Namespace)
        for number in range(3):
            kept.rotate(f"token-{number}")
            with pytest.raises(Unauthorized):
                client.list(Namespace)
            kept.keeper.look()
            client.list(Namespace)
            before = written(kept.path)
            kept.keeper.look()
            assert written(kept.path) == before
    assert kept.events() == [WRITTEN] * 4
    assert "token-" not in str(kept.log.lines)


def test_what_somebody_did_to_the_file_is_undone(kept: Kept) -> None:
    kept.keeper.look()
    wanted = kept.path.read_bytes()
    kept.path.unlink()
    kept.keeper.look()
    kept.path.chmod(0o644)
    kept.keeper.look()
    kept.path.write_bytes(wanted[:200])
    kept.keeper.look()
    assert kept.path.read_bytes() == wanted
    assert kept.path.stat().st_mode & 0o777 == 0o600
    assert kept.events() == [WRITTEN] * 4


def test_a_failure_is_told_once_and_ends_nothing(kept: Kept) -> None:
    """No token, an empty one, a directory in the way, an installer at work; then all is well."""
    kept.keeper.look()
    kept.rotate("second")

    def fails() -> str:
        told = len(kept.log.of(STALE))
        before = kept.path.read_bytes()
        for _ in range(3):
            kept.keeper.look()
        (line,) = kept.log.of(STALE)[told:]
        assert kept.path.read_bytes() == before, "the last good one stays"
        return str(line["reason"])

    target = kept.token.readlink()
    kept.token.unlink()
    assert "token" in fails()
    kept.token.write_text("")
    assert "is empty" in fails()
    kept.token.unlink()
    kept.token.symlink_to(target)
    with only_writer([kept.path.parent]):
        assert "BlockingIOError" in fails()
    blocker = kept.path.parent / f".{kept.path.name}.tortie-tmp"
    blocker.mkdir()
    assert str(kept.path) in fails()
    blocker.rmdir()
    kept.keeper.look()
    with kept.client() as client:
        client.list(Namespace)
    assert kept.events()[-1] == WRITTEN


def test_a_look_that_fails_or_hangs_shows_in_the_age(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token on a mount that is dead."""
    clock = Clock()
    keeper = KubeconfigKeeper(kept.path, kept.config, kept.log, clock)

    def age() -> float:
        return float(exposition([keeper.metric()]).split()[-1])

    clock.now += 3
    assert age() == 3
    keeper.look()
    assert age() == 0
    target = kept.token.readlink()
    kept.token.unlink()
    clock.now += 70
    keeper.look()
    assert age() == 70, "it failed"
    kept.token.symlink_to(target)
    looking, back = threading.Event(), threading.Event()

    def hangs(config: KubeConfig) -> Credentials:
        looking.set()
        assert back.wait(60)
        return load(config)

    monkeypatch.setattr(plugin_kubeconfig, "load", hangs)
    hung = threading.Thread(target=keeper.look)
    hung.start()
    assert looking.wait(60)
    clock.now += 70
    assert age() == 140
    back.set()
    hung.join()
    assert age() == 0


def test_somebody_elses_kubeconfig_is_left_alone(kept: Kept) -> None:
    kept.path.parent.mkdir()
    kept.path.write_text("apiVersion: v1\nkind: Config\n")
    kept.keeper.look()
    assert kept.path.read_text() == "apiVersion: v1\nkind: Config\n"
    (line,) = kept.log.of(STALE)
    assert "not ours" in str(line["reason"])


def test_what_is_no_file_does_not_stop_the_thread(kept: Kept) -> None:
    kept.path.parent.mkdir()
    os.mkfifo(kept.path)
    kept.keeper.look()
    (line,) = kept.log.of(STALE)
    assert "not ours" in str(line["reason"])
    kept.path.unlink()
    kept.keeper.look()
    assert kept.path.is_file()


def test_the_thread_looks_again_and_again(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_kubeconfig, "LOOK_SECONDS", 0.01)
    kept.token.unlink()
    thread = threading.Thread(target=kept.keeper.run)
    thread.start()
    try:
        until("it complains", lambda: STALE in kept.events())
        for token in ("second", "third"):
            kept.rotate(token)
            until("it is written", lambda: kept.path.exists() and token in kept.path.read_text())  # noqa: B023
    finally:
        kept.keeper.stop()
        thread.join()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cni_kubeconfig: /c", "needs kubeconfig or k8s_api_root"),
        ("cni_kubeconfig: c\nkubeconfig: /k", "not an absolute path"),
        ("cni_kubeconfig: /k\nkubeconfig: /k", "would overwrite kubeconfig"),
        ("k8s_token_file: /t\nkubeconfig: /k", "k8s_token_file needs k8s_api_root"),
        ("k8s_ca_file: /t", "k8s_ca_file needs k8s_api_root"),
    ],
)
def test_the_agents_configuration(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_config(text, "node.yaml")
