"""The real client and who it is: tokens and certificates, files that are rotated, TLS."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lab.apiserver.auth import ANONYMOUS
from lab.apiserver.faults import Fault, Reject
from lab.apiserver.server import ApiServer, Tls
from libtortie.errors import (
    InvalidInput,
    Unauthorized,
    Unavailable,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import KubeConfig, Material, direct, in_cluster, load_kubeconfig
from libtortie.kube.objects import Namespace, Pod
from tests.fakes.certificates import Authority
from tests.fakes.wire import answer, talking

# --- identities --------------------------------------------------------------------------------


def test_no_and_wrong_tokens_are_unauthorized() -> None:
    with ApiServer(tokens={"right": "alice"}) as server:
        for token in ("", "wrong-token"):
            client = HttpKubeClient(direct(server.url, token))
            with pytest.raises(Unauthorized) as caught:
                client.list(Namespace)
            assert "wrong-token" not in str(caught.value)
            client.close()
        client = HttpKubeClient(direct(server.url, "right"))
        client.list(Namespace)
        assert server.audit[-1].user == "alice"
        client.close()


def test_forbidden_names_user_verb_and_resource() -> None:
    with ApiServer(tokens={"right": "alice"}) as server:
        client = HttpKubeClient(direct(server.url, "right"))
        server.faults.add(Fault(Reject(403), user="alice", verb="get", resource="pods"))
        with pytest.raises(Unauthorized, match='User "alice" cannot get resource "pods"'):
            client.get(Pod, "web", "default")
        client.list(Pod)
        client.close()


def rewrite(path: Path, text: str) -> None:
    """As an installer does: write beside, rename over."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def test_a_rotated_token_file_is_read_before_the_next_call(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with ApiServer(tokens={"first": "alice"}) as server:
        client = HttpKubeClient(KubeConfig(server.url, token_file=token))
        client.list(Namespace)
        server.tokens.replace({"second": "alice"})
        rewrite(token, "second\n")
        client.list(Namespace)
        client.close()


def test_a_token_rotated_as_kubelet_does_it(tmp_path: Path) -> None:
    """The file is a link through `..data`, and only that link moves."""
    for name, text in (("..1", "first"), ("..2", "second")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")
    with ApiServer(tokens={"first": "alice"}) as server:
        client = HttpKubeClient(KubeConfig(server.url, token_file=tmp_path / "token"))
        client.list(Namespace)
        server.tokens.replace({"second": "alice"})
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        client.list(Namespace)
        client.close()


def test_a_401_reads_again_what_stat_did_not_show(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("token-1")
    with ApiServer(tokens={"token-1": "alice"}) as server:
        client = HttpKubeClient(KubeConfig(server.url, token_file=token))
        before = token.stat()
        server.tokens.replace({"token-2": "alice"})
        token.write_text("token-2")  # same inode, same size
        os.utime(token, ns=(before.st_atime_ns, before.st_mtime_ns))
        client.list(Namespace)
        assert len(server.audit) == 1  # the refused request was not authorized, so not audited
        client.close()


def test_an_unchanged_token_is_not_tried_twice(tmp_path: Path) -> None:
    requests = 0

    def refuse(connection: socket.socket) -> None:
        nonlocal requests
        requests += 1
        answer("HTTP/1.1 401 Unauthorized\nContent-Length: 0")(connection)

    token = tmp_path / "token"
    token.write_text("stale")
    os.utime(token, (time.time() - 3600, time.time() - 3600))
    with talking(refuse) as url:
        client = HttpKubeClient(KubeConfig(url, token_file=token))
        with pytest.raises(Unauthorized, match=r"written 60 min ago"):
            client.list(Namespace)
    assert requests == 1


def test_a_broken_rotation_keeps_the_last_good_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    with ApiServer(tokens={"first": "alice"}) as server:
        client = HttpKubeClient(KubeConfig(server.url, token_file=token))
        token.write_text("")
        client.list(Namespace)
        token.unlink()
        client.list(Namespace)
        server.tokens.replace({"second": "alice"})
        rewrite(token, "second")
        client.list(Namespace)
        client.close()


def test_a_rewritten_kubeconfig_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"

    def write(token: str, url: str) -> None:
        body = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        rewrite(path, yaml.safe_dump(body))

    with ApiServer(tokens={"first": "alice"}) as one, ApiServer(tokens={"second": "bob"}) as two:
        write("first", one.url)
        client = HttpKubeClient(load_kubeconfig(path))
        client.list(Namespace)
        write("second", two.url)
        client.list(Namespace)
        assert [a.user for a in (*one.audit, *two.audit)] == ["alice", "bob"]
        assert client.server == two.url
        client.close()


# --- TLS ---------------------------------------------------------------------------------------


@contextmanager
def tls_server(authority: Authority, directory: Path) -> Iterator[ApiServer]:
    del directory
    pair = authority.server("server")
    with ApiServer(tokens={"t": "alice"}, tls=Tls(pair.cert, pair.key, authority.cert)) as server:
        yield server


def test_client_certificate_names_the_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    user = authority.client("system:node:n1", "system:nodes")
    with tls_server(authority, tmp_path) as server:
        for inline in (False, True):
            ca, cert, key = (
                Material(data=path.read_bytes()) if inline else Material(path=path)
                for path in (authority.cert, user.cert, user.key)
            )
            client = HttpKubeClient(KubeConfig(server.url, ca=ca, client_cert=cert, client_key=key))
            client.list(Namespace)
            assert server.audit[-1].user == "system:node:n1"
            client.close()


def test_a_server_of_another_authority_is_refused(tmp_path: Path) -> None:
    other = Authority(tmp_path, "other-ca")
    with tls_server(Authority(tmp_path), tmp_path) as server:
        client = HttpKubeClient(KubeConfig(server.url, token="t", ca=Material(path=other.cert)))
        with pytest.raises(Unavailable, match=r"(?i)certificate verify failed"):
            client.list(Namespace)
        insecure = HttpKubeClient(KubeConfig(server.url, token="t", insecure=True))
        insecure.list(Namespace)
        insecure.close()


def test_only_the_named_ca_is_trusted(tmp_path: Path) -> None:
    """requests would add the public CAs of its bundle to the context."""
    authority = Authority(tmp_path)
    with tls_server(authority, tmp_path) as server:
        client = HttpKubeClient(KubeConfig(server.url, token="t", ca=Material(path=authority.cert)))
        client.list(Namespace)
        context = client._live.credentials.tls
        assert context is not None
        assert len(context.get_ca_certs()) == 1
        client.close()


def test_the_servers_name_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server("named", hosts=("kubernetes.default",))
    ca = Material(path=authority.cert)
    with ApiServer(tls=Tls(pair.cert, pair.key)) as server:
        client = HttpKubeClient(KubeConfig(server.url, ca=ca))
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            client.list(Namespace)
        named = HttpKubeClient(KubeConfig(server.url, ca=ca, tls_server_name="kubernetes.default"))
        named.list(Namespace)
        assert server.audit[-1].user == ANONYMOUS
        named.close()


def test_a_client_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other-ca")
    forged = other.client("system:admin")
    with tls_server(authority, tmp_path) as server:
        client = HttpKubeClient(
            KubeConfig(
                server.url,
                ca=Material(path=authority.cert),
                client_cert=Material(path=forged.cert),
                client_key=Material(path=forged.key),
            )
        )
        with pytest.raises(Unavailable):
            client.list(Namespace)
        assert len(server.audit) == 0


def test_rotated_certificates_are_used_by_the_next_call(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.client("alice"), authority.client("bob")
    cert, key = tmp_path / "client.crt", tmp_path / "client.key"
    cert.write_bytes(first.cert.read_bytes())
    key.write_bytes(first.key.read_bytes())
    with tls_server(authority, tmp_path) as server:
        client = HttpKubeClient(
            KubeConfig(
                server.url,
                ca=Material(path=authority.cert),
                client_cert=Material(path=cert),
                client_key=Material(path=key),
            )
        )
        client.list(Namespace)
        rewrite(cert, second.cert.read_text())  # half of a rotation: the pair does not match
        client.list(Namespace)
        rewrite(key, second.key.read_text())
        client.list(Namespace)
        assert [asked.user for asked in server.audit] == ["alice", "alice", "bob"]
        client.close()


def test_a_new_ca_is_trusted_once_its_file_changes(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old-ca"), Authority(tmp_path, "new-ca")
    ca = tmp_path / "ca.crt"
    ca.write_text(old.cert.read_text())
    with tls_server(new, tmp_path) as server:
        client = HttpKubeClient(KubeConfig(server.url, token="t", ca=Material(path=ca)))
        with pytest.raises(Unavailable):
            client.list(Namespace)
        rewrite(ca, old.cert.read_text() + new.cert.read_text())
        client.list(Namespace)
        client.close()


def test_in_cluster(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with tls_server(authority, tmp_path) as server:
        (tmp_path / "token").write_text("t\n")
        (tmp_path / "ca.crt").write_text(authority.cert.read_text())
        (tmp_path / "namespace").write_text("kube-system")
        environ = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        config = in_cluster(environ, tmp_path)
        assert config.namespace == "kube-system"
        client = HttpKubeClient(config)
        client.list(Namespace)
        assert server.audit[-1].user == "alice"
        client.close()


def test_key_and_certificate_that_do_not_match_are_invalid(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two = authority.client("alice"), authority.client("bob")
    with pytest.raises(InvalidInput, match="matching pair"):
        HttpKubeClient(
            KubeConfig(
                "https://127.0.0.1:1",
                client_cert=Material(path=one.cert),
                client_key=Material(path=two.key),
            )
        )
