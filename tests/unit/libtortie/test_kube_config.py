"""Kubeconfig: what is honoured, what is refused by name, and what is never printed."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from libtortie.errors import InvalidInput
from libtortie.kube.config import (
    KubeConfig,
    Material,
    Origin,
    direct,
    in_cluster,
    load_kubeconfig,
    reread,
)
from libtortie.kube.credentials import describe, load

SECRET = "very-s3cret-token"


def document(
    user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [
            {"name": "main", "context": {"cluster": "k", "user": "u", "namespace": "shop"}},
            {"name": "other", "context": {"cluster": "k2", "user": "u"}},
        ],
        "clusters": [
            {"name": "k", "cluster": {"server": "https://192.0.2.1:6443/", **(cluster or {})}},
            {"name": "k2", "cluster": {"server": "http://[2001:db8::1]:8080/prefix"}},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def writer(body: Any) -> Path:
        path = tmp_path / "kubeconfig"
        path.write_text(body if isinstance(body, str) else yaml.safe_dump(body))
        return path

    return writer


def test_current_context(write: Any) -> None:
    path = write(document({"token": SECRET}))
    config = load_kubeconfig(path)
    assert config == KubeConfig(
        "https://192.0.2.1:6443", token=SECRET, namespace="shop", origin=Origin(path)
    )


def test_a_context_by_name(write: Any) -> None:
    config = load_kubeconfig(write(document()), "other")
    assert (config.server, config.namespace) == ("http://[2001:db8::1]:8080/prefix", "")


def test_an_unknown_context_names_the_known(write: Any) -> None:
    with pytest.raises(InvalidInput, match="no context 'third'; there are: main, other"):
        load_kubeconfig(write(document()), "third")


def test_no_current_context(write: Any) -> None:
    body = document()
    del body["current-context"]
    with pytest.raises(InvalidInput, match="its contexts are: main, other"):
        load_kubeconfig(write(body))


def test_files_are_relative_to_the_kubeconfig(write: Any, tmp_path: Path) -> None:
    user = {"tokenFile": "tok", "client-certificate": "c.pem", "client-key": "/abs/k.pem"}
    config = load_kubeconfig(write(document(user, {"certificate-authority": "ca.pem"})))
    assert config.token_file == tmp_path / "tok"
    assert config.client_cert == Material(path=tmp_path / "c.pem")
    assert config.client_key == Material(path=Path("/abs/k.pem"))
    assert config.ca == Material(path=tmp_path / "ca.pem")
    assert set(config.files()) == {
        tmp_path / "tok",
        tmp_path / "c.pem",
        Path("/abs/k.pem"),
        tmp_path / "ca.pem",
        tmp_path / "kubeconfig",
    }


def test_inline_data_beats_files(write: Any) -> None:
    data = base64.b64encode(b"PEM").decode()
    user = {
        "client-certificate": "c.pem",
        "client-certificate-data": data,
        "client-key-data": data,
    }
    config = load_kubeconfig(write(document(user)))
    assert config.client_cert == Material(data=b"PEM")
    assert config.client_key == Material(data=b"PEM")


def test_a_token_file_beats_an_inline_token(write: Any, tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("from-file\n")
    path = write(document({"token": SECRET, "tokenFile": "tok"}, {"server": "http://192.0.2.1"}))
    assert load(load_kubeconfig(path)).token == "from-file"


@pytest.mark.parametrize(
    ("user", "cluster", "what"),
    [
        ({"exec": {"command": "aws"}}, {}, "exec: apiVersion None is none"),
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider"),
        ({"username": "u", "password": SECRET}, {}, "basic authentication"),
        ({"as": "admin"}, {}, "impersonation"),
        ({"client-certificate-data": "UA=="}, {}, "needs a client key"),
        ({"client-key": "k.pem"}, {}, "needs a client key"),
        ({"client-key-data": "!!", "client-certificate": "c"}, {}, "client-key-data is not base64"),
        ({"token": [SECRET]}, {}, "token is not a string"),
        ({"token": f"{SECRET}\r\nX-Evil: 1"}, {}, "no header can carry"),
        ({}, {"proxy-url": "socks5://p"}, "proxies"),
        ({}, {"server": "192.0.2.1:6443"}, "is not http"),
        ({}, {"server": "https://u:p@192.0.2.1"}, "a host, a port and a path only"),
        ({}, {"server": "https://192.0.2.1:99999"}, "is not a URL"),
        ({}, {"server": ""}, "is not http"),
        ({}, {"insecure-skip-tls-verify": "yes"}, "not true or false"),
        (
            {},
            {"insecure-skip-tls-verify": True, "certificate-authority": "ca.pem"},
            "a certificate authority and insecure",
        ),
    ],
)
def test_refused_by_name(
    write: Any, user: dict[str, Any], cluster: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidInput, match=what) as caught:
        load_kubeconfig(write(document(user, cluster)))
    assert SECRET not in str(caught.value)
    assert "kubeconfig" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n",
        f"token: {SECRET}\n  bad: [indent\n",
        "\x00",
        "kind: Pod\n",
        "clusters: 7\ncontexts: 7\n",
        "contexts: [{context: {}}]\n",
        "current-context: c\ncontexts: [{name: c, context: [1]}]\n",
    ],
)
def test_not_a_kubeconfig(write: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_kubeconfig(write(text))
    assert SECRET not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*absent"):
        load_kubeconfig(tmp_path / "absent")


def test_secrets_are_not_in_a_repr(write: Any) -> None:
    key = base64.b64encode(SECRET.encode()).decode()
    user = {"token": SECRET, "client-certificate-data": key, "client-key-data": key}
    config = load_kubeconfig(write(document(user, {"server": "http://192.0.2.1"})))
    assert SECRET not in repr(config)
    plain = KubeConfig("http://192.0.2.1", token=SECRET)
    assert SECRET not in repr(load(plain))


def test_reread_follows_the_file_and_its_current_context(write: Any) -> None:
    path = write(document())
    config, fixed = load_kubeconfig(path), load_kubeconfig(path, "main")
    changed = document() | {"current-context": "other"}
    write(changed)
    assert reread(config).server == "http://[2001:db8::1]:8080/prefix"
    assert reread(fixed).server == "https://192.0.2.1:6443"
    assert reread(direct("http://192.0.2.9")) == direct("http://192.0.2.9")


def test_in_cluster_needs_its_environment_and_a_token(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="KUBERNETES_SERVICE_HOST"):
        in_cluster({}, tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(InvalidInput, match="token"):
        in_cluster(environ, tmp_path)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(InvalidInput, match="empty"):
        in_cluster(environ, tmp_path)
    (tmp_path / "token").write_text("t")
    config = in_cluster(environ, tmp_path)
    assert config.server == "https://[fd00::1]:443"
    assert config.ca == Material(path=tmp_path / "ca.crt")


def test_a_ca_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    for content in (b"", b"nothing", b"\xff\xfe"):
        ca.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"ca\.pem: no usable PEM"):
            load(KubeConfig("https://192.0.2.1", ca=Material(path=ca)))


def token_with(claims: str) -> str:
    middle = base64.urlsafe_b64encode(claims.encode()).decode().rstrip("=")
    return f"e30.{middle}.c2ln"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ('{"exp": 940}', "expired 60 s ago"),
        ('{"exp": 1600}', "expires in 10 min"),
        ('{"exp": 9000, "nbf": 29800}', "not valid for another 480 min by this node's clock"),
        ('{"exp": "soon"}', ""),
        ("[1]", ""),
        ("broken", ""),
    ],
)
def test_a_refused_token_is_described_by_age_and_expiry(claims: str, said: str) -> None:
    token = token_with(claims)
    text = describe(load(KubeConfig("http://192.0.2.1", token=token)), wall=lambda: 1000.0)
    assert text == (f"token, {said}" if said else "token")
    assert token not in text


def test_no_credentials_are_described_as_none() -> None:
    assert describe(load(direct("http://192.0.2.1"))) == "no credentials"
