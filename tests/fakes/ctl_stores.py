"""`tortiectl` on each datastore: the command line is told by its environment where things are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from lab.apiserver import kubeconfig
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import API_VERSION, Resource
from tests.fakes.etcd_client import store_at
from tests.fakes.etcd_server import etcd_members
from tests.fakes.kubernetes_store import kubernetes_api, stores_of
from tortiectl.cli import main


@dataclass
class CtlOn:
    """The command line, a datastore, and a directory for files."""

    root: Path
    store: Datastore
    environ: dict[str, str]

    def run(self, *args: str, status: int = 0, text: str = "") -> Result:
        """Run a command; it must end with this status."""
        done = CliRunner().invoke(main, args, env=self.environ, input=text, catch_exceptions=False)
        assert done.exit_code == status, done.output
        return done

    def file(self, *documents: Any, name: str = "manifest.yaml") -> str:
        """A file with documents."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump_all(documents))
        return str(path)

    def write(self, verb: str, *documents: Any, status: int = 0, args: Any = ()) -> Result:
        """`verb -f` a file with documents."""
        return self.run(verb, "-f", self.file(*documents), *args, status=status)

    def shown(self, kind: Kind, name: str, *args: str) -> dict[str, Any]:
        """What `get -o json` says."""
        found: dict[str, Any] = json.loads(
            self.run("get", kind.value, name, "-o", "json", *args).stdout
        )
        return found

    def stored(self, kind: Kind, name: str, namespace: str = "") -> Resource:
        """What is stored."""
        value = self.store.get(ResourceKey(kind, name, namespace)).value
        assert isinstance(value, Resource)
        return value

    def names(self, kind: Kind) -> list[str]:
        """The names of what is stored of a kind."""
        listing = self.store.list(Resources(kind)).records
        return [record.key.name for record in listing if isinstance(record.key, ResourceKey)]


def thing(kind: Kind, name: str, namespace: str = "", **spec: Any) -> dict[str, Any]:
    """A manifest."""
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": API_VERSION, "kind": kind.value, "metadata": meta, "spec": spec}


@contextmanager
def on_sqlite(root: Path) -> Iterator[CtlOn]:
    path = root / "t.db"
    with closing(SqliteDatastore(path)) as store:
        yield CtlOn(root, store, {"DATASTORE_TYPE": "sqlite", "TORTIE_SQLITE_PATH": str(path)})


@contextmanager
def on_etcd(root: Path) -> Iterator[CtlOn]:
    (root / "etcd").mkdir()
    with etcd_members(root / "etcd") as (member,), closing(store_at(member.url)) as store:
        yield CtlOn(root, store, {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.url})


@contextmanager
def on_server(server: ApiServer, group: Group, root: Path) -> Iterator[CtlOn]:
    """On an API server of the test's own."""
    with stores_of(server, group) as (store,):
        config = root / "kubeconfig"
        kubeconfig.write(config, kubeconfig.render(server.url, {}, None))
        environ = {
            "DATASTORE_TYPE": "kubernetes",
            "KUBECONFIG": str(config),
            "CALICO_API_GROUP": group.value,
        }
        yield CtlOn(root, store, environ)


def on_kubernetes(group: Group) -> Callable[[Path], Any]:
    @contextmanager
    def opened(root: Path) -> Iterator[CtlOn]:
        with kubernetes_api() as server, on_server(server, group, root) as on:
            yield on

    return opened


STORES: dict[str, Callable[[Path], Any]] = {
    "sqlite": on_sqlite,
    "etcd": on_etcd,
    "kubernetes-v1": on_kubernetes(Group.V1),
    "kubernetes-v3": on_kubernetes(Group.V3),
}
