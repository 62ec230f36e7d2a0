"""What becomes of a configuration: shared parts, node name, Kubernetes client."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni_plugin import wiring
from cni_plugin.agreement import Agreement
from cni_plugin.errors import InvalidConfig
from cni_plugin.undo import silent
from cni_plugin.wiring import build_plugin, node_name
from ipam.block import assign, new_block
from libtortie.datastore.open import DatastoreConfig
from libtortie.errors import Unavailable
from libtortie.history_spool import HISTORY_SPOOL, read_facts
from libtortie.kube.config import direct
from libtortie.model.history import What
from libtortie.model.plain_ip import plain_network
from tests.fakes.cni_world import CniWorld, conf, first_address
from tests.fakes.ipam_world import START, plain_pod


def test_a_plugin_from_the_agents_parts(tmp_path: Path) -> None:
    world = CniWorld(tmp_path)
    world.put_pod("web-0")
    settings = conf(policy_setup_timeout_seconds=0)
    args = world.node().args("web-0", "c1")
    result = build_plugin(settings, shared=world.node().shared()).cmd_add(args, settings)
    assert first_address(result) in world.allocated()
    build_plugin(settings, shared=world.node().shared()).cmd_del(args, settings)
    assert world.nothing_left()
    unready = world.node().shared(table_ready=lambda: False)
    with pytest.raises(Unavailable):
        build_plugin(settings, shared=unready).cmd_add(args, settings)


def test_the_agents_node_name_must_be_the_configurations(tmp_path: Path) -> None:
    world = CniWorld(tmp_path)
    with pytest.raises(InvalidConfig, match="'other' is not the agent's 'node1'"):
        build_plugin(conf(nodename="other"), shared=world.node().shared())
    build_plugin(conf(nodename="node1"), shared=world.node().shared())


def api(url: str) -> dict[str, Any]:
    return {"kubernetes": {"k8s_api_root": url}}


V1 = "crd.projectcalico.org/v1"
SQLITE = DatastoreConfig(type="sqlite", sqlite_path=Path("/var/lib/tortie/tortie.db"))
API = direct("https://api")
CRDS = DatastoreConfig(type="kubernetes", kube=API, calico_api_group="projectcalico.org/v3")
FOUND = replace(CRDS, calico_api_group="")
ETCD = DatastoreConfig(type="etcdv3", etcd_endpoints="https://a:2379,https://b:2379")


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        (SQLITE, {}),
        (SQLITE, {"datastore_type": "sqlite"}),
        (SQLITE, {"sqlite_path": "/var/lib/../lib/tortie/tortie.db"}),
        (SQLITE, {"datastore_type": "sqlite", **api("https://API:443/")}),
        (CRDS, {}),
        (FOUND, api("https://api")),
        (CRDS, {"calico_api_group": "projectcalico.org/V3", **api("https://api")}),
        (ETCD, {}),
        (ETCD, {"etcd_endpoints": "https://b:2379/, https://c:2379"}),
        (ETCD, {"datastore_type": "etcdv3"}),
    ],
)
def test_what_agrees_with_the_agents_is_served(
    tmp_path: Path, agent: DatastoreConfig, settings: dict[str, Any]
) -> None:
    world = CniWorld(tmp_path)
    shared = world.node().shared()
    agreement = Agreement(agent, "https://api", shared.log)
    build_plugin(conf(**settings), shared=replace(shared, agreement=agreement))


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        (ETCD, {"datastore_type": "sqlite"}, "datastore_type: 'sqlite' is not .*'etcdv3'"),
        (SQLITE, {"datastore_type": "etcdv3"}, "datastore_type: 'etcdv3' is not .*'sqlite'"),
        (SQLITE, {"etcd_endpoints": "http://h:1"}, "etcd_endpoints: 'etcdv3' is not .*'sqlite'"),
        (ETCD, {"sqlite_path": "/x.db"}, "sqlite_path: 'sqlite' is not .*'etcdv3'"),
        (SQLITE, {"sqlite_path": "/x.db"}, "sqlite_path: '/x.db' is not .*/var/lib/tortie"),
        (
            ETCD,
            {"etcd_endpoints": "https://c:2379"},
            "etcd_endpoints: 'https://c:2379' is not .*a:",
        ),
        (FOUND, api("https://b"), "kubernetes: 'https://b' .*api'"),
        (FOUND, api("http://api"), "kubernetes: 'http://api'"),
        (CRDS, api("https://api"), "calico_api_group: 'none, which is found out' is not"),
        (FOUND, {"calico_api_group": V1, **api("https://api")}, f"calico_api_group: '{V1}' is not"),
        (SQLITE, api("https://api"), "kubernetes: without datastore_type .*'sqlite'"),
        (ETCD, api("https://api"), "kubernetes: without datastore_type .*'etcdv3'"),
        (CRDS, {"datastore_type": "sqlite"}, "datastore_type: 'sqlite' is not .*'kubernetes'"),
        (CRDS, {"calico_api_group": V1, **api("https://api")}, f"calico_api_group: '{V1}' is not"),
    ],
)
def test_a_configuration_that_means_another_datastore_or_api_is_refused(
    tmp_path: Path, agent: DatastoreConfig, settings: dict[str, Any], message: str
) -> None:
    shared = CniWorld(tmp_path).node().shared()
    shared = replace(shared, agreement=Agreement(agent, "https://api", shared.log))
    with pytest.raises(InvalidConfig, match=message):
        build_plugin(conf(**settings), shared=shared)


def test_an_agent_without_an_api_does_not_serve_a_configuration_with_one(tmp_path: Path) -> None:
    agreement = Agreement(SQLITE, "", silent)
    with pytest.raises(InvalidConfig, match="'http://h:1' is not the agent's 'no Kubernetes API'"):
        agreement.require(conf(datastore_type="sqlite", **api("http://h:1")))


def test_the_kubeconfig_is_read_again_when_it_changes_and_warned_of_once(tmp_path: Path) -> None:
    lines: list[tuple[str, dict[str, object]]] = []

    def log(event: str, /, **fields: object) -> None:
        lines.append((event, fields))

    agreement = Agreement(SQLITE, "https://api", log)
    file = tmp_path / "kubeconfig"
    settings = conf(datastore_type="sqlite", kubernetes={"kubeconfig": str(file)})
    for _ in range(3):
        agreement.require(settings)
    assert [event for event, _ in lines] == ["kubeconfig_unreadable"]
    assert lines[0][1]["path"] == str(file)
    for server, agrees in (("https://api:443", True), ("https://other-api", False)):
        cluster = {"name": "c", "cluster": {"server": server}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        document = {
            "current-context": "x",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "u", "user": {}}],
        }
        file.write_text(json.dumps(document))
        for _ in range(2):
            if agrees:
                agreement.require(settings)
            else:
                with pytest.raises(InvalidConfig, match="other-api"):
                    agreement.require(settings)


def fallback(shell: str, **env: str) -> tuple[int, dict[str, Any], str]:
    """`tortie-cni`, started by a shell command that has $0 for it."""
    program = f"{sys.executable} -m cni_plugin.wiring"
    variables = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/x", "CNI_IFNAME": "eth0", **env}
    done = subprocess.run(
        ["/bin/sh", "-c", shell.replace("$0", program)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), **variables},
        capture_output=True,
        check=False,
        timeout=180,
    )
    return done.returncode, json.loads(done.stdout or b"{}"), done.stderr.decode()


REPOSITORY = Path(wiring.__file__).parents[1]


@pytest.mark.parametrize("how", ["<&-", "<&- 2>&-", "0>/dev/null", "</dev/null"])
@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS"])
def test_without_standard_input_the_fallback_says_so(how: str, verb: str) -> None:
    status, body, errors = fallback(f"$0 {how}", CNI_COMMAND=verb)
    assert (status, body["code"]) == (1, 6)
    assert "stdin is empty" in body["msg"]
    assert "Traceback" not in errors


def test_without_standard_input_there_is_still_a_version() -> None:
    assert "1.1.0" in fallback("$0 <&-", CNI_COMMAND="VERSION")[1]["supportedVersions"]


def test_without_standard_output_the_fallback_just_fails() -> None:
    status, _, errors = fallback("$0 </dev/null >&-", CNI_COMMAND="ADD")
    assert status == 1
    assert "Traceback" not in errors


def test_arguments_that_are_no_text_are_named_by_the_fallback() -> None:
    command = "CNI_ARGS=$(printf 'K8S_POD_UID=\\377') exec $0"
    status, body, _ = fallback(f"echo '{{}}' | {command}", CNI_COMMAND="ADD")
    assert (status, body["code"]) == (1, 4)
    assert "CNI_ARGS" in body["msg"]


def test_a_bug_of_the_fallback_is_an_answer_too(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(wiring, "JsonLines", broken)
    monkeypatch.setattr(wiring, "_read_stdin", lambda: b"{}")
    with pytest.raises(SystemExit) as ended:
        wiring.main()
    assert ended.value.code == 1
    body = json.loads(capfdbinary.readouterr().out)
    assert body["code"] == 999
    assert "RuntimeError: a bug" in body["msg"]


def test_the_status_directory_is_the_configurations(tmp_path: Path) -> None:
    world = CniWorld(tmp_path)
    world.put_pod("web-0")
    status = tmp_path / "status"
    status.mkdir()
    (status / "k8s default%2Fweb-0 eth0").write_text('{"containerID": "c1"}')
    settings = conf(endpoint_status_dir=str(status), policy_setup_timeout_seconds=30)
    node = world.node()
    build_plugin(settings, shared=node.shared()).cmd_add(node.args("web-0", "c1"), settings)
    assert "policy_timeout" not in [event for event, _ in world.node().log]


@pytest.mark.parametrize(
    ("content", "expected"), [("n1\n", "n1"), ("  n1  ", "n1"), ("", ""), ("\n", ""), (None, "")]
)
def test_node_name_from_the_file(tmp_path: Path, content: str | None, expected: str) -> None:
    file = tmp_path / "nodename"
    if content is not None:
        file.write_text(content)
    assert node_name(conf(nodename_file=str(file))) == expected
    assert node_name(conf(nodename_file=str(file), nodename="set")) == "set"


def test_the_fallback_leaves_the_history_to_the_agent(tmp_path: Path) -> None:
    """In the agent's own spool, where there ever was an agent."""
    nodename = tmp_path / "nodename"
    settings = conf(nodename_file=str(nodename))
    assert wiring._annals(settings, "n1") is None
    nodename.write_text("n1\n")
    annals = wiring._annals(settings, "n1")
    assert annals is not None
    block = new_block(plain_network("10.0.0.0/30", strict=True), node="n1", now=START)
    held, _ = assign(block, 1, handle_id="net.c1", owner=plain_pod("web"))
    annals.note([(block, held)])
    (fact,) = read_facts((tmp_path / HISTORY_SPOOL).read_bytes())
    assert (fact.what, fact.by, fact.pod) == (What.GRANTED, "n1", "web")


def test_kubernetes_needs_an_address() -> None:
    with pytest.raises(InvalidConfig, match="kubeconfig or k8s_api_root"):
        wiring._kube(conf(kubernetes={}))
    assert wiring._kube(conf()) is None
    direct = wiring._kube(conf(kubernetes={"k8s_api_root": "http://127.0.0.1:1"}))
    assert direct is not None
