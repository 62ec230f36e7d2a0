"""Where `tortiectl` finds datastore and API: file, environment, the node's own file; strictness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from libtortie.access import Access, read_access
from libtortie.client_config import (
    REFUSED,
    VARIABLES,
    ClientConfig,
    Surroundings,
    client_config,
    parse_file,
)
from libtortie.errors import InvalidInput

HEAD: dict[str, Any] = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig"}


def document(**spec: Any) -> str:
    return yaml.safe_dump({**HEAD, "metadata": {}, "spec": spec})


def kubeconfig(path: Path, *contexts: str) -> Path:
    body = {
        "kind": "Config",
        "current-context": contexts[0],
        "clusters": [
            {"name": name, "cluster": {"server": f"https://{name}:6443"}} for name in contexts
        ],
        "contexts": [{"name": name, "context": {"cluster": name}} for name in contexts],
    }
    path.write_text(yaml.safe_dump(body))
    return path


class Machine:
    """A directory that stands for a machine's files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.node_file = root / "node.yaml"
        self.default = root / "tortiectl.cfg"
        self.sqlite = root / "tortie.db"

    def config(self, path: str = "", context: str = "", **environ: str) -> ClientConfig:
        around = Surroundings(
            {"HOME": str(self.root), **environ}, self.node_file, self.default, self.sqlite
        )
        return client_config(path, context, around)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_file_that_is_there_is_all_that_counts(machine: Machine) -> None:
    machine.default.write_text(document(datastoreType="sqlite", sqlitePath="/a.db"))
    machine.node_file.write_text("sqlite_path: /b.db\nk8s_api_root: http://n:1\n")
    found = machine.config(TORTIE_SQLITE_PATH="/c.db", K8S_API_ENDPOINT="http://e:1")
    assert found.datastore.sqlite_path == Path("/a.db")
    assert found.kube() is None
    assert found.source == str(machine.default)


def test_a_named_file_comes_before_the_default_one(machine: Machine, tmp_path: Path) -> None:
    machine.default.write_text("this is not read")
    other = tmp_path / "mine.json"
    other.write_text(
        '{"apiVersion":"projectcalico.org/v3","kind":"CalicoAPIConfig",'
        '"spec":{"sqlitePath":"/d.db","sqliteShared":true}}'
    )
    found = machine.config(str(other))
    assert (found.datastore.type, found.datastore.sqlite_path) == ("sqlite", Path("/d.db"))
    assert found.datastore.shared
    with pytest.raises(InvalidInput, match=r"none\.cfg"):
        machine.config(str(tmp_path / "none.cfg"))


def test_without_anything_the_nodes_file_counts(machine: Machine) -> None:
    machine.node_file.write_text(
        "nodename: n1\nsqlite_path: /n.db\nk8s_api_root: http://172.31.0.10:6443\n"
        "bird: {mode: off}\n"
    )
    found = machine.config()
    assert found.datastore.sqlite_path == Path("/n.db")
    assert found.datastore.node == ""
    api = found.kube()
    assert api is not None
    assert api.server == "http://172.31.0.10:6443"
    assert found.source == str(machine.node_file)


def test_an_agent_without_a_file_has_the_default_datastore(machine: Machine) -> None:
    assert machine.config().datastore.type == "kubernetes"
    machine.sqlite.write_bytes(b"x")
    found = machine.config()
    assert (found.datastore.type, found.datastore.sqlite_path) == ("sqlite", machine.sqlite)
    assert found.kube() is None


def test_datastore_and_api_are_two_questions(machine: Machine, tmp_path: Path) -> None:
    machine.node_file.write_text("sqlite_path: /n.db\nk8s_api_root: http://n:1\n")
    mine = kubeconfig(tmp_path / "kc", "a", "b")
    found = machine.config(KUBECONFIG=str(mine))
    assert (found.datastore.type, found.datastore.sqlite_path) == ("sqlite", Path("/n.db"))
    api = found.kube()
    assert api is not None
    assert api.server == "https://a:6443"
    found = machine.config(TORTIE_SQLITE_PATH="/e.db")
    assert found.datastore.sqlite_path == Path("/e.db")
    api = found.kube()
    assert api is not None
    assert api.server == "http://n:1"
    api = machine.config(context="b", KUBECONFIG=str(mine)).kube()
    assert api is not None
    assert api.server == "https://b:6443"


def test_a_context_is_never_ignored(machine: Machine, tmp_path: Path) -> None:
    machine.node_file.write_text("k8s_api_root: http://n:1\n")
    with pytest.raises(InvalidInput, match="context b: no kubeconfig"):
        machine.config(context="b").kube()
    machine.node_file.write_text(f"kubeconfig: {kubeconfig(tmp_path / 'kc', 'a', 'b')}\n")
    api = machine.config(context="b").kube()
    assert api is not None
    assert api.server == "https://b:6443"
    machine.default.write_text(document(sqlitePath="/a.db"))
    with pytest.raises(InvalidInput, match="context b: no kubeconfig"):
        machine.config(context="b").kube()
    machine.default.write_text(document(k8sAPIEndpoint="http://e:1"))
    with pytest.raises(InvalidInput, match="a context is of a kubeconfig"):
        machine.config(context="b")


def test_the_kubernetes_datastore_looks_where_kubectl_does(machine: Machine) -> None:
    with pytest.raises(InvalidInput, match="not in a cluster"):
        machine.config(DATASTORE_TYPE="kubernetes").kube()
    (machine.root / ".kube").mkdir()
    kubeconfig(machine.root / ".kube" / "config", "home")
    api = machine.config(DATASTORE_TYPE="kubernetes").kube()
    assert api is not None
    assert api.server == "https://home:6443"
    assert machine.config(DATASTORE_TYPE="sqlite").kube() is None


def test_prefixed_variables_win_and_every_variable_is_read(machine: Machine) -> None:
    found = machine.config(TORTIE_SQLITE_PATH="/a.db", CALICO_TORTIE_SQLITE_PATH="/b.db")
    assert found.datastore.sqlite_path == Path("/b.db")
    assert machine.config(TORTIE_SQLITE_SHARED="true").datastore.shared
    api = machine.config(
        K8S_API_ENDPOINT="https://e:1",
        CALICO_K8SAPITOKEN="secret",
        K8S_CA_FILE="/ca",
        K8S_CERT_FILE="/cert",
        K8S_KEY_FILE="/key",
    ).kube()
    assert api is not None
    assert (api.server, api.token) == ("https://e:1", "secret")
    assert [m.path for m in (api.ca, api.client_cert, api.client_key) if m] == [
        Path("/ca"),
        Path("/cert"),
        Path("/key"),
    ]
    api = machine.config(
        K8S_API_ENDPOINT="https://e:1", K8S_INSECURE_SKIP_TLS_VERIFY="1", DATASTORE_TYPE="sqlite"
    ).kube()
    assert api is not None
    assert api.insecure
    with pytest.raises(InvalidInput, match="K8S_INSECURE_SKIP_TLS_VERIFY: want true or false"):
        machine.config(K8S_INSECURE_SKIP_TLS_VERIFY="maybe")


def test_etcd_endpoints_mean_etcd_and_not_this_nodes_file(machine: Machine) -> None:
    machine.node_file.write_text("sqlite_path: /n.db\n")
    found = machine.config(
        ETCD_ENDPOINTS="https://h:1",
        CALICO_ETCD_CA_CERT_FILE="/ca",
        ETCD_CA_CERT_FILE="/other",
        ETCD_CERT_FILE="/cert",
        ETCD_KEY_FILE="/key",
        ETCD_USERNAME="u",
        ETCD_PASSWORD="secret",
    ).datastore
    assert found.type == "etcdv3"
    assert found.etcd_settings() == ("https://h:1", "/ca", "/cert", "/key", "u", "secret")
    assert "secret" not in repr(found)


def test_variables_of_an_etcd_that_runs_here_are_not_ours(machine: Machine) -> None:
    machine.node_file.write_text("sqlite_path: /n.db\n")
    found = machine.config(ETCD_ENDPOINTS="http://127.0.0.1:2379", DATASTORE_TYPE="sqlite")
    assert found.datastore.type == "sqlite"
    assert not any(found.datastore.etcd_settings())
    assert machine.config(ETCD_CERT_FILE="/c").datastore.sqlite_path == Path("/n.db")
    with pytest.raises(InvalidInput, match="ETCD_DISCOVERY_SRV is not supported: name the"):
        machine.config(ETCD_DISCOVERY_SRV="example.org")


def test_etcd_in_the_file() -> None:
    keys = {"etcdEndpoints": "https://h:1", "etcdCACertFile": "/ca", "etcdUsername": "u"}
    spec = parse_file(document(**keys, etcdPassword="secret"), "f.cfg")
    assert (spec.etcd_endpoints, spec.etcd_ca_cert_file) == ("https://h:1", "/ca")
    assert "secret" not in repr(spec)


def test_a_file_with_endpoints_means_etcd_and_nothing_else(
    machine: Machine, tmp_path: Path
) -> None:
    file = tmp_path / "own.cfg"
    file.write_text(document(etcdEndpoints="https://h:1", etcdCACertFile="/ca"))
    found = client_config(str(file), "", Surroundings({})).datastore
    assert (found.type, found.etcd_endpoints) == ("etcdv3", "https://h:1")
    for spec, words in (
        ({"datastoreType": "sqlite", "etcdEndpoints": "http://h:1"}, "are for datastoreType etcd"),
        ({"sqlitePath": "/a", "etcdEndpoints": "http://h:1"}, "are for datastoreType sqlite"),
    ):
        file.write_text(document(**spec))
        with pytest.raises(InvalidInput, match=words):
            client_config(str(file), "", Surroundings({}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "want a mapping"),
        ("- 1", "want a mapping"),
        ("a: [", "line 1"),
        ("apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nkind: X\n", "line 3: duplicate"),
        (document(sqlitePath="/a") + "  sqlitePath: /b\n", "line 6: duplicate key sqlitePath"),
        (yaml.safe_dump({**HEAD, "apiVersion": "v1"}), "apiVersion"),
        (yaml.safe_dump({**HEAD, "kind": "Config"}), "kind"),
        (yaml.safe_dump({"kind": "CalicoAPIConfig", "spec": {}}), "apiVersion"),
        (yaml.safe_dump({**HEAD, "sepc": {}}), "unknown key sepc; did you mean spec"),
        (document(sqlitepath="/a"), "unknown key spec.sqlitepath; did you mean sqlitePath"),
        (document(sqlitePath=7), "spec.sqlitePath"),
        (document(sqliteShared="yes"), "spec.sqliteShared"),
        (document(kubeconfig="/a", k8sAPIEndpoint="http://b"), "not both"),
        (document(k8sAPIToken="secret"), "k8sAPIToken needs k8sAPIEndpoint"),
        (document(k8sCAFile="/a"), "k8sCAFile needs k8sAPIEndpoint"),
        (document(k8sAPIEndpoint="http://b", k8sCertFile="/a"), "belong together"),
        *((document(**{key: "x"}), f"spec.{key} is not supported") for key in REFUSED),
    ],
)
def test_strictness(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_file(text, "f.cfg")
    assert str(caught.value).startswith("f.cfg: ")
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_token_is_in_no_message_and_no_repr() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_file(document(k8sAPIEndpoint="http://b", k8sAPIToken=["secret"]), "f.cfg")
    assert "secret" not in str(caught.value)
    spec = parse_file(document(k8sAPIEndpoint="http://b", k8sAPIToken="secret"), "f.cfg")
    assert "secret" not in repr(spec)


def test_unknown_datastore(machine: Machine) -> None:
    for kind in ("memory", "mongo"):
        with pytest.raises(InvalidInput, match=f"unknown datastore type: {kind}"):
            machine.config(DATASTORE_TYPE=kind)
    with pytest.raises(InvalidInput, match="are for datastoreType sqlite"):
        machine.config(DATASTORE_TYPE="kubernetes", TORTIE_SQLITE_PATH="/a.db")


def test_the_api_group_of_a_datastore_in_kubernetes(machine: Machine) -> None:
    found = machine.config(DATASTORE_TYPE="kubernetes", CALICO_API_GROUP="projectcalico.org/V3")
    assert found.datastore.calico_api_group == "projectcalico.org/v3"
    with pytest.raises(InvalidInput, match="environment: calico_api_group: 'v3' is none of"):
        machine.config(DATASTORE_TYPE="kubernetes", CALICO_API_GROUP="v3")
    other = {"DATASTORE_TYPE": "sqlite", "TORTIE_SQLITE_PATH": "/a.db"}
    assert machine.config(**other, CALICO_API_GROUP="v3").datastore.calico_api_group == ""
    file = machine.root / "f.cfg"
    file.write_text(document(datastoreType="sqlite", calicoAPIGroup="projectcalico.org/v3"))
    with pytest.raises(InvalidInput, match="calicoAPIGroup is for datastoreType kubernetes"):
        client_config(str(file), "", Surroundings({}))


def test_every_key_of_the_file_has_a_variable() -> None:
    from libtortie.client_config import Spec

    assert {field.alias or name for name, field in Spec.model_fields.items()} == set(VARIABLES)


@pytest.mark.parametrize(
    "text",
    ["a: [", "- x", "sqlite_shared: [1]", "a: 1\na: 2", "[" * 3000, "a: !!timestamp 2001-99-99"],
)
def test_a_broken_node_file_is_an_error_not_an_absent_one(machine: Machine, text: str) -> None:
    machine.node_file.write_text(text)
    with pytest.raises(InvalidInput, match=r"node\.yaml"):
        machine.config()


@pytest.mark.parametrize("text", ["[" * 3000, "a: !!timestamp 2001-99-99"])
def test_a_kubeconfig_that_python_cannot_hold(machine: Machine, text: str) -> None:
    path = machine.root / "kc"
    path.write_text(text)
    machine.node_file.write_text(f"kubeconfig: {path}\n")
    for found in (machine.config(), machine.config(KUBECONFIG=str(path))):
        with pytest.raises(InvalidInput, match="kc is not a kubeconfig"):
            found.kube()


def test_an_empty_node_file_means_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("")
    assert read_access(tmp_path / "node.yaml") == Access()
    assert read_access(tmp_path / "other.yaml") is None


def test_a_nodes_token_file(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text("k8s_api_root: https://n:1\nk8s_token_file: /t\n")
    access = read_access(tmp_path / "node.yaml")
    assert access is not None
    api = access.kube()
    assert api is not None
    assert (api.server, api.token_file) == ("https://n:1", Path("/t"))
