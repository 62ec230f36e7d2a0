"""`k8s_api_root: in-cluster`: the agent's pod says where the API is and who asks."""

from __future__ import annotations

import pytest

from cni_plugin.conflist import settings_of
from felix_shim.config import parse_config
from libtortie.access import Access
from libtortie.errors import InvalidInput

NODE = "nodename: n1\ndatastore_type: kubernetes\nk8s_api_root: in-cluster\n"


def test_it_is_asked_of_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidInput, match="not in a cluster: KUBERNETES_SERVICE_HOST"):
        Access(k8s_api_root="in-cluster").kube()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(InvalidInput, match="serviceaccount/token"):
        Access(k8s_api_root="in-cluster").kube()


def test_the_agent_takes_it_without_files_of_its_own() -> None:
    assert parse_config(NODE, "node.yaml").has_api
    for key in ("k8s_token_file", "k8s_ca_file"):
        with pytest.raises(InvalidInput, match=f"{key} needs k8s_api_root, a URL"):
            parse_config(f"{NODE}{key}: /f\n", "node.yaml")


def test_the_plugin_needs_a_kubeconfig_that_the_agent_writes() -> None:
    access = Access(k8s_api_root="in-cluster", datastore_type="kubernetes")
    with pytest.raises(InvalidInput, match="cni_kubeconfig"):
        settings_of(access)
    access = access.model_copy(update={"cni_kubeconfig": "/var/lib/tortie/cni-kubeconfig"})
    found = settings_of(access)["kubernetes"]
    assert found == {"kubeconfig": "/var/lib/tortie/cni-kubeconfig"}
