"""The rights that are shipped for the controllers are enough for the page, and each is told of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from typing import Any

import pytest
import yaml

from controllers.page.read import Source
from lab.apiserver.server import ApiServer
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import Unauthorized
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from tests.fakes.kubernetes_store import kubernetes_api, put_object
from tests.fakes.page_site import job, vmi

TOKEN = "0123456789"
USER = "tortie-controllers"
GROUP = "rbac.authorization.k8s.io"


def shipped() -> list[dict[str, Any]]:
    """The rules of the roles that the page needs."""
    documents = yaml.safe_load_all(files("conf").joinpath("rbac", "controllers.yaml").read_text())
    roles = (USER, f"{USER}-page")
    return [
        rule
        for one in documents
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] in roles
        for rule in one["rules"]
    ]


@contextmanager
def source_with(rules: list[dict[str, Any]]) -> Iterator[Source]:
    """The page's source over an API with a VM and a migration, for somebody with these rules."""
    with kubernetes_api() as server:
        put_object(server, "virtualmachineinstances.kubevirt.io", vmi("web"))
        put_object(server, "virtualmachineinstancemigrations.kubevirt.io", job("move", "web"))
        api = server.api
        made = {"metadata": {"name": "page"}, "rules": rules}
        api.create(api.kind(GROUP, "v1", "clusterroles"), "", made)
        binding = {
            "metadata": {"name": "page"},
            "roleRef": {"kind": "ClusterRole", "name": "page"},
            "subjects": [{"kind": "User", "name": USER}],
        }
        api.create(api.kind(GROUP, "v1", "clusterrolebindings"), "", binding)
        with (
            ApiServer(tokens={TOKEN: USER}, authorization="RBAC", api=api) as guarded,
            closing(HttpKubeClient(direct(guarded.url, TOKEN))) as client,
        ):
            yield Source(MemoryDatastore(), client)


def test_they_are_enough() -> None:
    with source_with(shipped()) as source:
        assert [one.name for one in source.instances().found] == ["web"]
        assert [one.metadata.name for one in source.jobs().found] == ["move"]
        assert source.health().findings == ()


@pytest.mark.parametrize("kind", ["virtualmachineinstances", "virtualmachineinstancemigrations"])
def test_without_one_of_them_the_page_says_which(kind: str) -> None:
    rules = [
        {**rule, "resources": [one for one in rule["resources"] if one != kind]}
        for rule in shipped()
    ]
    with source_with(rules) as source:
        read = source.jobs if "migrations" in kind else source.instances
        with pytest.raises(Unauthorized, match=f"cannot list resource.*{kind}"):
            read()
