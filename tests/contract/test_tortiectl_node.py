"""`tortiectl node install|uninstall` as a person or an init container runs them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cni_plugin import frame
from cni_plugin.install import EXECUTABLES
from cni_plugin.program import NATIVE
from tests.fakes.shim_node import SECONDS, Agent
from tortiectl.cli import main

TORTIECTL = Path(sys.executable).with_name("tortiectl")
OTHER = '{"name": "x", "plugins": [{"type": "flannel"}]}'


class Host:
    """A host's file system below a directory, where an init container would have it mounted."""

    def __init__(self, root: Path) -> None:
        self.root = root / "host"
        self.root.mkdir()
        self.bins = self.root / "opt/cni/bin"
        self.confs = self.root / "etc/cni/net.d"
        self.config = root / "node.yaml"
        self.config.write_text("{}")

    def says(self, **config: Any) -> None:
        """What the agent's configuration says."""
        self.config.write_text(yaml.safe_dump(config))

    def command(self, verb: str, *args: str) -> list[str]:
        return ["node", verb, "--root", str(self.root), "-c", str(self.config), *args]

    def __call__(self, verb: str, *args: str, ok: bool = True) -> Result:
        done = CliRunner().invoke(main, self.command(verb, *args), catch_exceptions=False)
        assert done.exit_code == (0 if ok else 1), done.output
        assert ok or len(done.stderr.splitlines()) <= 2, "one message, and the way to help"
        return done

    def refuses(self, *args: str) -> str:
        """The message of an installation that must change nothing."""
        before = self.files()
        message = self("install", *args, ok=False).stderr
        assert self.files() == before
        return message

    def files(self) -> dict[str, tuple[bytes, int]]:
        """Every file below the root: its content and mode."""
        found = [path for path in self.root.rglob("*") if path.is_file()]
        return {
            str(path.relative_to(self.root)): (path.read_bytes(), path.stat().st_mode & 0o777)
            for path in found
        }

    def plugin(self, name: str = "10-tortie.conflist") -> Any:
        (plugin,) = json.loads((self.confs / name).read_text())["plugins"]
        return plugin


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_install_and_uninstall(host: Host) -> None:
    host("install")
    assert {name: mode for name, (_, mode) in host.files().items()} == {
        "opt/cni/bin/tortie": 0o755,
        "opt/cni/bin/tortie-ipam": 0o755,
        "etc/cni/net.d/10-tortie.conflist": 0o600,
    }
    program, _ = host.files()["opt/cni/bin/tortie"]
    assert program.startswith(b"\x7fELF"), "built by `make shim`"
    assert b"/opt/tortie/bin/tortie-cni" in program
    before = host.files()
    host("install")
    assert host.files() == before
    host("uninstall")
    assert host.files() == {}
    host("uninstall")


def test_the_nodes_links_lead_to_places_on_the_node(host: Host, tmp_path: Path) -> None:
    """Some distributions have /opt/cni/bin elsewhere; the link to it is absolute."""
    for path, target in (("opt/cni/bin", "/home/cni/bin"), ("etc/cni", "/var/lib/cni-conf")):
        place = host.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    outside = sorted(tmp_path.iterdir())
    host("install")
    assert (host.root / "home/cni/bin/tortie").is_file()
    assert (host.root / "var/lib/cni-conf/net.d/10-tortie.conflist").is_file()
    host("uninstall")
    assert host.files() == {}
    assert sorted(tmp_path.iterdir()) == outside


def test_on_the_node_itself_this_installations_fallback_is_run(host: Host) -> None:
    places = ["--bin-dir", str(host.bins), "--conf-dir", str(host.confs), "-c", str(host.config)]
    CliRunner().invoke(main, ["node", "install", *places], catch_exceptions=False)
    program, _ = host.files()["opt/cni/bin/tortie"]
    assert str(Path(sys.executable).with_name("tortie-cni")).encode() in program


def test_places_and_constants(host: Host) -> None:
    options = ["--bin-dir", "/usr/lib/cni", "--conf-dir", "/etc/net.d", "--shim", "python"]
    constants = [
        "--set",
        "agent_socket=/run/t/s",
        "--fallback",
        "/opt/f",
        "--python",
        "/usr/bin/python3",
    ]
    python = host.root / "usr/bin/python3"
    assert "/usr/bin/python3 is not an executable Python" in host.refuses(*options, *constants)
    python.parent.mkdir(parents=True)
    python.touch(0o755)
    host("install", *options, *constants, "--conflist-name", "01-x.conflist")
    text = host.files()["usr/lib/cni/tortie"][0].decode()
    assert text.startswith("#!/usr/bin/python3 -IS\n")
    assert 'SOCKET = "/run/t/s"' in text
    assert 'FALLBACK = "/opt/f"' in text
    body = json.loads((host.root / "etc/net.d/01-x.conflist").read_text())
    assert body["plugins"][0]["agent_socket"] == "/run/t/s"
    host("uninstall", *options[:4])
    assert list(host.files()) == ["usr/bin/python3"]


def test_keys_of_the_plugin(host: Host) -> None:
    host("install", "--set", "mtu=1400", "--set", "nodename=n1", "--set", 'policy={"type":""}')
    plugin = host.plugin()
    assert (plugin["mtu"], plugin["nodename"], plugin["policy"]) == (1400, "n1", {"type": ""})
    assert "want KEY=JSON" in host.refuses("--set", "mtu")
    assert "did you mean mtu" in host.refuses("--set", "mtuu=1400")
    assert "mtu" in host.refuses("--set", 'mtu="1400"')
    host("install", "--set", "kubernetes=null")
    assert "kubernetes" not in host.plugin()


def test_another_network(host: Host) -> None:
    host.confs.mkdir(parents=True)
    (host.confs / "05-cilium.conflist").write_text(OTHER)
    before = host.files()
    message = host.refuses()
    assert "05-cilium.conflist" in message
    assert "--takeover" in message
    host("install", "--takeover")
    assert set(host.files()) >= {"etc/cni/net.d/05-cilium.conflist.tortie-set-aside"}
    host("uninstall")
    assert host.files() == before
    host("install", "--takeover")
    (host.confs / "05-cilium.conflist").write_text(OTHER + " ")
    assert "there is another 05-cilium.conflist by now" in host("uninstall").stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--bin-dir", "bin"], "bin is not an absolute path"),
        (["--conf-dir", ""], "--conf-dir"),
        (["--shim", "perl"], "perl"),
        (["--set", "agent_socket=run/s"], "agent_socket: want an absolute path"),
        (
            ["--set", "agent_socket=/run/\N{SNOWMAN}"],
            "socket: '/run/\N{SNOWMAN}' is not an absolute",
        ),
        (["--conflist-name", "tortie.conf"], "not the name of a conflist"),
        (["--root", ""], "--root"),
        (["-c", "/no/such/node.yaml"], "/no/such/node.yaml: no such file"),
    ],
)
def test_options_that_cannot_be_obeyed(host: Host, args: list[str], message: str) -> None:
    assert message in host.refuses(*args)


# --- what the agent's configuration says -----------------------------------------------------


def test_the_plugin_is_where_the_agent_is(host: Host) -> None:
    host.says(
        datastore_type="etcdv3", etcd_endpoints="http://192.0.2.1:2379", k8s_api_root="http://a:1"
    )
    host("install")
    plugin = host.plugin()
    assert plugin["datastore_type"] == "etcdv3"
    assert plugin["etcd_endpoints"] == "http://192.0.2.1:2379"
    assert plugin["kubernetes"] == {"k8s_api_root": "http://a:1"}
    host("install", "--set", "etcd_endpoints=http://192.0.2.2:2379")
    assert host.plugin()["etcd_endpoints"] == "http://192.0.2.2:2379"
    host.says(datastore_type="sqlite")
    host("install")
    assert "kubernetes" not in host.plugin()
    host.says(kubeconfig="/etc/k", run_dir="/run/other", nodename_file="/etc/nodename")
    host("install")
    assert host.plugin()["nodename_file"] == "/etc/nodename"
    assert host.plugin()["endpoint_status_dir"] == "/run/other/endpoint-status"
    assert host.plugin()["agent_socket"] == "/run/other/cni.sock"
    assert b"/run/other/cni.sock" in host.files()["opt/cni/bin/tortie"][0]
    assert host.plugin()["kubernetes"] == {"kubeconfig": "/etc/k"}


def test_a_kubeconfig_with_the_agents_token(host: Host, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0k3n")
    path = "/etc/cni/net.d/tortie-kubeconfig"
    api = {"k8s_api_root": "http://a:1", "k8s_token_file": str(tmp_path / "token")}
    host.says(**api)
    assert "cni_kubeconfig" in host.refuses()
    host.says(**api, cni_kubeconfig=path)
    host("install")
    assert host.plugin()["kubernetes"] == {"kubeconfig": path}
    text, mode = host.files()[path.lstrip("/")]
    assert mode == 0o600
    assert b"t0k3n" in text
    assert b"t0k3n" not in (host.confs / "10-tortie.conflist").read_bytes()
    host("uninstall")
    assert host.files() == {}
    (tmp_path / "token").unlink()
    assert str(tmp_path / "token") in host.refuses()
    host.says(cni_kubeconfig=path)
    assert "cni_kubeconfig needs kubeconfig or k8s_api_root" in host.refuses()


# --- at once ---------------------------------------------------------------------------------


def test_installations_at_once(host: Host) -> None:
    """Executables and conflist are of one of them; an uninstall between them is whole, too."""

    def run(number: int) -> int:
        verb = "uninstall" if number % 3 == 2 else "install"
        options = ["--set", f"agent_socket=/run/{number}/s"] if verb == "install" else []
        command = [str(TORTIECTL), *host.command(verb, *options)]
        return subprocess.run(command, check=False, timeout=SECONDS).returncode

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(run, range(6))) == {0}
    found = host.files()
    if found:
        socket = host.plugin()["agent_socket"].encode()
        assert all(socket in found[f"opt/cni/bin/{name}"][0] for name in EXECUTABLES)
        assert len(found) == len(EXECUTABLES) + 1


REINSTALL = """
import sys
from pathlib import Path
from cni_plugin.conflist import conflist
from cni_plugin.install import install
from cni_plugin.program import Front, program
root, socket = sys.argv[1:]
for number in range(50):
    front = Front.NATIVE if number >= 25 else Front.PYTHON
    made = program(front, socket=socket, fallback=f"/none/{number:02}")
    install(Path(root, "bin"), Path(root, "net.d"), program=made, conflist=conflist({}))
    print(number, flush=True)
"""


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Agent]:
    def handle(connection: Any) -> None:
        frame.read_request(connection)
        connection.sendall(frame.encode_response(0, b"{}"))

    agent = Agent(tmp_path / "s", handle, backlog=64)
    yield agent
    agent.close()


def test_reinstalled_fifty_times_under_calls(answering: Agent, tmp_path: Path) -> None:
    """Never busy, never half: every call is answered, by the old executable or the new one."""
    assert NATIVE.exists(), "`make shim` builds it"
    command = [sys.executable, "-c", REINSTALL, str(tmp_path), str(answering.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as installer:
        assert installer.stdout is not None
        installer.stdout.readline()
        over = threading.Event()

        def call() -> set[tuple[int, bytes, bytes]]:
            seen = set()
            while not over.is_set():
                done = subprocess.run(
                    [tmp_path / "bin" / "tortie"],
                    env={"CNI_COMMAND": "ADD"},
                    input=b"{}",
                    capture_output=True,
                    check=False,
                    timeout=SECONDS,
                )
                seen.add((done.returncode, done.stdout, done.stderr))
            return seen

        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(call) for _ in range(2)]
            installed = installer.stdout.read().split()
            over.set()
            assert [call.result() for call in calls] == [{(0, b"{}", b"")}] * 2
    assert installed[-1] == "49"
