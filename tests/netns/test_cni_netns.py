"""The plugin in real network namespaces: what the kernel makes of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni_plugin.durable import replace_file
from cni_plugin.errors import AttachmentConflict, InvalidEnvironment
from cni_plugin.plugin import Plugin
from cni_plugin.policy_gate import DISPATCH
from cni_plugin.program import executable
from cni_plugin.skel import CmdArgs
from cni_plugin.types import Result
from ipam.client import IPAMClient
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.linux import netns
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.netns import Netns
from libtortie.model import names
from libtortie.model.names import status_file_name
from libtortie.model.resources import IPPool, IPPoolSpec
from tests.fakes.cni_world import CniWorld, conf, first_address
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

POOL = "10.65.0.0/24"


def run(*command: str, inside: str = "", check: bool = True) -> str:
    enter = ["nsenter", f"--net=/run/netns/{inside}"] if inside else []
    done = subprocess.run(
        [*enter, *command], capture_output=True, text=True, check=False, timeout=120
    )
    if check and done.returncode:
        raise AssertionError(f"{command}: {done.stderr or done.stdout}")
    return done.stdout


def ip(inside: str, *command: str) -> Any:
    text = run("ip", "-j", "-d", *command, inside=inside)
    return json.loads(text) if text.strip() else []


class RealNode:
    """A namespace that is the node, a world's store and API, a plugin on real netlink."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """`stack` takes away what is made here."""
        self.prefix = fresh_name("cni")
        stack.callback(self._delete_namespaces)
        self.world = CniWorld(directory)
        self.name = self.make("node")
        run("ip", "link", "set", "lo", "up", inside=self.name)
        run("ip", "addr", "add", "172.31.9.1/32", "dev", "lo", inside=self.name)
        self.kernel = NetlinkKernel(f"/run/netns/{self.name}")
        stack.callback(self.kernel.close)
        self.made = 0
        fake = self.world.node()
        fake.gate.policed = self.interfaces  # type: ignore[method-assign]  # all have rules here
        self.plugin = Plugin(fake.ports(kernel=self.kernel, namespaces=Netns(), sleep=time.sleep))

    def interfaces(self) -> frozenset[str]:
        """The links of the node."""
        return frozenset(link.name for link in self.kernel.links())

    def make(self, name: str) -> str:
        netns.create(f"{self.prefix}-{name}")
        return f"{self.prefix}-{name}"

    def path(self, name: str) -> str:
        return f"/run/netns/{self.prefix}-{name}"

    def args(self, pod: str, container: str, ifname: str = "eth0") -> CmdArgs:
        known = {"K8S_POD_NAME": pod, "K8S_POD_NAMESPACE": "default"} if pod else {}
        return CmdArgs(container, self.path(container), ifname, known)

    def add(self, pod: str, container: str, **settings: Any) -> Result:
        if not Path(self.path(container)).exists():
            self.make(container)
        return self.plugin.cmd_add(self.args(pod, container), conf(**settings))

    def delete(self, pod: str, container: str) -> None:
        self.plugin.cmd_del(self.args(pod, container), conf())

    def _delete_namespaces(self) -> None:
        for entry in Path("/run/netns").glob(f"{self.prefix}-*"):
            with suppress(FileNotFoundError):
                netns.delete(entry.name)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    with ExitStack() as stack:
        yield RealNode(tmp_path, stack)


def gateway_answers(node: RealNode, container: str) -> bool:
    """Whether the pod resolves its gateway by ARP."""
    inside = f"{node.prefix}-{container}"
    for _ in range(100):
        run("ping", "-c1", "-W0.1", "169.254.1.1", inside=inside, check=False)
        found = ip(inside, "neigh", "show", "169.254.1.1")
        if found and found[0].get("lladdr") == "ee:ee:ee:ee:ee:ee":
            return True
    return False


def test_the_wire_is_calicos(node: RealNode) -> None:
    run("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1", inside=node.name)
    node.world.put_pod("web-0")
    result = node.add("web-0", "c1", mtu=1442)
    address, host = first_address(result), names.host_ifname("default", "web-0")
    (link,) = ip(node.name, "link", "show", host)
    assert (link["address"], link["mtu"]) == ("ee:ee:ee:ee:ee:ee", 1442)
    assert link["operstate"] == "UP"
    (route,) = ip(node.name, "route", "show", f"{address}/32")
    assert (route["dev"], route["metric"], route["protocol"], route["scope"]) == (
        host,
        1024,
        "boot",
        "link",
    )
    for name, value in {
        f"ipv4.conf.{host}.proxy_arp": "1",
        f"ipv4.conf.{host}.forwarding": "1",
        f"ipv4.conf.{host}.route_localnet": "1",
        f"ipv4.conf.{host}.rp_filter": "0",
        "ipv4.conf.all.rp_filter": "0",
        f"ipv4.neigh.{host}.proxy_delay": "0",
        f"ipv6.conf.{host}.accept_ra": "0",
    }.items():
        assert run("sysctl", "-n", f"net.{name}", inside=node.name).strip() == value, name
    inside = f"{node.prefix}-c1"
    (pod_link,) = ip(inside, "link", "show", "eth0")
    assert pod_link["mtu"] == 1442
    assert pod_link["address"] == result.interfaces[1].mac
    routes = {r["dst"]: r for r in ip(inside, "route")}
    assert routes["default"]["gateway"] == "169.254.1.1"
    assert routes["169.254.1.1"]["scope"] == "link"
    node.delete("web-0", "c1")
    assert ip(node.name, "route", "show", f"{address}/32") == []
    assert not [x for x in ip(node.name, "link") if x["ifname"].startswith("cali")]
    assert not [x for x in ip(inside, "link") if x["ifname"] == "eth0"]
    assert node.world.nothing_left()


def test_pods_reach_each_other_on_a_node_without_a_default_route(node: RealNode) -> None:
    for number in range(2):
        node.world.put_pod(f"web-{number}")
    first, second = node.add("web-0", "c1"), node.add("web-1", "c2")
    assert gateway_answers(node, "c1")
    run("ping", "-c1", "-w60", first_address(second), inside=f"{node.prefix}-c1")
    run("ping", "-c1", "-w60", first_address(first), inside=f"{node.prefix}-c2")
    run("ping", "-c1", "-w60", first_address(first), inside=node.name)


def test_a_migration_targets_gateway_answers_though_its_address_is_routed_elsewhere(
    node: RealNode,
) -> None:
    """Strict reverse-path filtering would swallow the ARP request: no route leads back."""
    for where in ("all", "default"):
        run("sysctl", "-qw", f"net.ipv4.conf.{where}.rp_filter=1", inside=node.name)
    world = node.world
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    source = world.node("elsewhere").add("virt-launcher-db-a", "c9")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    target = node.add("virt-launcher-db-b", "c1")
    assert target.addresses == source.addresses
    assert ip(node.name, "route", "show", str(target.addresses[0])) == []
    assert gateway_answers(node, "c1")


def test_a_migrated_guests_full_sized_packets_pass_where_the_mtu_was_lowered(
    node: RealNode,
) -> None:
    """It booted with the source's MTU and does not hear of another."""
    world = node.world
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.node("elsewhere").add("virt-launcher-db-a", "c9", conf={"mtu": 1500})
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    target = node.add("virt-launcher-db-b", "c1", mtu=1400)
    host = names.host_ifname("default", "virt-launcher-db-b")
    assert [ip(node.name, "link", "show", host)[0]["mtu"], target.interfaces[1].mtu] == [1500] * 2
    run("ip", "route", "add", first_address(target), "dev", host, inside=node.name)  # the agent's
    full = ["ping", "-c1", "-w60", "-M", "do", "-s", str(1500 - 28)]
    run(*full, "172.31.9.1", inside=f"{node.prefix}-c1")
    run(*full, first_address(target), inside=node.name)


def settled(inside: str) -> bool:
    """Whether no IPv6 address waits for anything."""
    return not ip(inside, "-6", "addr", "show", "tentative")


def test_dual_stack(node: RealNode) -> None:
    run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", inside=node.name)  # the agent's
    node.world.pool("pool-6", "fd00:10:65::/112")
    for number in range(2):
        node.world.put_pod(f"web-{number}")
    both = {"ipam": {"assign_ipv6": "true"}}
    node.add("web-0", "c1", **both)
    other = node.add("web-1", "c2", **both).addresses[1]
    for inside in (node.name, f"{node.prefix}-c1", f"{node.prefix}-c2"):
        for path in run("sh", "-c", "echo /proc/sys/net/ipv6/conf/[ce]*", inside=inside).split():
            duplicates = run("cat", f"{path}/accept_dad", inside=inside).strip()
            assert duplicates == "0", f"{path}: for two seconds nobody would be answered"
        until("the kernel has begun with all addresses", partial(settled, inside))
    run("ping", "-6", "-c1", "-w60", str(other.ip), inside=f"{node.prefix}-c1")
    routes = ip(f"{node.prefix}-c1", "-6", "route", "show", "default")
    assert routes[0]["gateway"] == "fe80::ecee:eeff:feee:eeee"


def test_pods_reach_each_other_by_either_of_their_interfaces(node: RealNode) -> None:
    """As Multus attaches them: the second network is beside the first, not instead of it."""
    run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", inside=node.name)  # the agent's
    for name, cidr in (
        ("six", "fd00:10:65::/112"),
        ("lan", "10.77.0.0/24"),
        ("lan6", "fd77::/112"),
    ):
        node.world.pool(name, cidr)
    first = {"ipam": {"assign_ipv6": "true", "ipv4_pools": ["pool-4"], "ipv6_pools": ["six"]}}
    ipam = {"assign_ipv6": "true", "ipv4_pools": ["lan"], "ipv6_pools": ["lan6"]}
    second = conf(name="lan", ipam=ipam)
    results = []
    for number in range(2):
        node.world.put_pod(f"web-{number}")
        one = node.add(f"web-{number}", f"c{number}", **first)
        args = node.args(f"web-{number}", f"c{number}", "net1")
        results.append((one, node.plugin.cmd_add(args, second)))
        for result, settings in zip(results[-1], (conf(**first), second), strict=True):
            where = node.args(f"web-{number}", f"c{number}", result.interfaces[1].name)
            told = {"prev_result": result.to_wire("1.1.0")}
            node.plugin.cmd_check(where, settings.model_copy(update=told))
    inside = f"{node.prefix}-c0"
    (way,) = ip(inside, "route", "show", "default")
    assert way["dev"] == "eth0"
    for number, ifname in enumerate(("eth0", "net1")):
        own, other = (pair[number].addresses for pair in results)
        for mine, theirs in zip(own, other, strict=True):
            (way, *_) = ip(inside, "route", "get", str(theirs.ip))
            assert (way["dev"], way["prefsrc"]) == (ifname, str(mine.ip))
            run("ping", "-c1", "-w60", str(theirs.ip), inside=inside)
    node.plugin.cmd_del(node.args("web-0", "c0", "net1"), second)
    run("ping", "-c1", "-w60", first_address(results[1][0]), inside=inside)


def test_check_by_any_path_of_the_same_namespace(node: RealNode) -> None:
    """Runtimes name it by /var/run or /run, or by a process that is in it."""
    node.world.put_pod("web-0")
    told = node.add("web-0", "c1").to_wire("1.1.0")
    inside = ["nsenter", f"--net={node.path('c1')}", "sleep", "infinity"]
    with subprocess.Popen(inside) as process:
        try:
            paths = [f"/var{node.path('c1')}", f"/proc/{process.pid}/ns/net"]
            own = Path(node.path("c1")).stat().st_ino
            while Path(paths[1]).stat().st_ino != own:  # nsenter is on its way
                assert process.poll() is None
            for path in paths:
                args = CmdArgs("c1", path, "eth0", node.args("web-0", "c1").args)
                node.plugin.cmd_check(args, conf(prevResult=told))
        finally:
            process.kill()


def test_the_same_pod_name_again_and_again(node: RealNode) -> None:
    """Each sandbox is taken down while its namespace stays, and the next one comes at once."""
    for number in range(12):
        node.world.put_pod("web-0", uid=f"uid-{number}")
        node.add("web-0", f"c{number}")
        assert gateway_answers(node, f"c{number}")
        node.delete("web-0", f"c{number}")
    assert node.world.nothing_left()


def test_an_old_sandbox_still_there(node: RealNode) -> None:
    node.world.put_pod("web-0")
    node.add("web-0", "c1")
    new = node.add("web-0", "c2")
    node.delete("web-0", "c1")
    assert gateway_answers(node, "c2")
    assert ip(node.name, "route", "show", f"{first_address(new)}/32")


def test_del_with_the_nodes_own_namespace_or_another_pods(node: RealNode) -> None:
    for pod, container in (("web-0", "c1"), ("web-1", "c2")):
        node.world.put_pod(pod)
        node.add(pod, container)
    before = {x["ifname"] for x in ip("", "link")}
    own = CmdArgs("c8", "/proc/self/ns/net", "lo", {})
    node.plugin.cmd_del(own, conf())
    assert before <= {x["ifname"] for x in ip("", "link")}
    with pytest.raises(InvalidEnvironment):
        node.plugin.cmd_add(own, conf())
    args = node.args("web-0", "c1")
    node.plugin.cmd_del(CmdArgs("c1", node.path("c2"), "eth0", args.args), conf())
    assert gateway_answers(node, "c2")
    assert not [
        x for x in ip(node.name, "link") if x["ifname"] == names.host_ifname("default", "web-0")
    ]


def test_a_route_in_the_way(node: RealNode) -> None:
    node.world.put_pod("web-0")
    node.world.put_pod("web-1", annotations={"cni.projectcalico.org/ipAddrs": '["10.65.0.77"]'})
    host = node.add("web-0", "c1").interfaces[0].name
    run("ip", "route", "add", "10.65.0.77/32", "dev", host, inside=node.name)
    with pytest.raises(AttachmentConflict, match=host):
        node.add("web-1", "c2")
    assert not [x for x in ip(f"{node.prefix}-c2", "link") if x["ifname"] == "eth0"]
    assert "10.65.0.77" not in node.world.allocated()
    run("ip", "route", "del", "10.65.0.77/32", inside=node.name)
    assert first_address(node.add("web-1", "c2")) == "10.65.0.77"


def test_check_after_what_kubevirt_does(node: RealNode) -> None:
    node.world.put_vm()
    node.world.put_launcher("virt-launcher-db-a")
    result = node.add("virt-launcher-db-a", "c1")
    inside, address = f"{node.prefix}-c1", str(result.addresses[0])
    for command in (
        "ip link add k6t-eth0 type bridge",
        "ip link set eth0 down",
        "ip link set eth0 name eth0-nic",
        "ip addr flush dev eth0-nic",
        "ip link set eth0-nic address 02:00:00:00:00:99",
        "ip link set eth0-nic master k6t-eth0 up",
        "ip link add eth0 type bridge",  # KubeVirt's is a dummy
        f"ip addr add {address} dev eth0",
    ):
        run(*command.split(), inside=inside)
    args = node.args("virt-launcher-db-a", "c1")
    node.plugin.cmd_check(args, conf(prevResult=result.to_wire("1.1.0")))
    node.delete("virt-launcher-db-a", "c1")
    assert not [x for x in ip(node.name, "link") if x["ifname"].startswith("cali")]


# --- the fallback, as a runtime runs it ------------------------------------------------------


class Runtime:
    """The installed executable on a node without an agent: every call goes to the fallback."""

    def __init__(self, node: RealNode, directory: Path) -> None:
        self.node = node
        self.directory = directory
        self.program = directory / "tortie"
        fallback = directory / "fallback"
        repo = Path(__file__).resolve().parents[2]
        script = (
            f"#!{sys.executable}\n"
            f"import sys\nsys.path.insert(0, {str(repo)!r})\n"
            "from cni_plugin.wiring import main\nmain()\n"
        )
        replace_file(fallback, script.encode(), 0o755)
        text = executable(str(directory / "cni.sock"), str(fallback), "/usr/bin/python3")
        replace_file(self.program, text, 0o755)
        (directory / "nodename").write_text("node1\n")
        store = SqliteDatastore(directory / "t.db", node="node1")
        pool = IPPool(metadata={"name": "p"}, spec=IPPoolSpec(cidr=POOL))  # type: ignore[arg-type]  # pydantic reads the dict
        store.create(pool.key, pool)
        store.close()

    def call(
        self, command: str, container: str, version: str = "1.1.0", **settings: Any
    ) -> tuple[int, Any]:
        configuration = {
            "cniVersion": version,
            "name": "net",
            "type": "tortie",
            "nodename_file": str(self.directory / "nodename"),
            "datastore_type": "sqlite",
            "sqlite_path": str(self.directory / "t.db"),
            "agent_socket": str(self.directory / "cni.sock"),
            "endpoint_status_dir": str(self.directory),
            **settings,
        }
        env = {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": self.node.path(container),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
        }
        done = subprocess.run(
            ["nsenter", f"--net=/run/netns/{self.node.name}", str(self.program)],
            input=json.dumps(configuration).encode(),
            env=env,
            capture_output=True,
            timeout=240,
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    def addresses(self) -> int:
        store = SqliteDatastore(self.directory / "t.db")
        try:
            from datetime import UTC, datetime

            client = IPAMClient(store, "node1", now=lambda: datetime.now(UTC))
            return len(client.by_handle("net.c1"))
        finally:
            store.close()


def police(node: RealNode, directory: Path, container: str, interface: str) -> None:
    """What an agent leaves for an endpoint: rules both ways, and its word on them."""
    for name in DISPATCH:
        table = ("inet", "tortie", f"{name}-1")
        run("nft", "add", "map", *table, "{ type ifname : verdict ; }", inside=node.name)
        element = f'{{ "{interface}" : drop }}'
        run("nft", "add", "element", *table, element, inside=node.name)
    status = directory / status_file_name("cni", container, "eth0")
    status.write_text(json.dumps({"containerID": container}))


def test_the_fallback_serves_while_no_agent_does(node: RealNode, tmp_path: Path) -> None:
    runtime = Runtime(node, tmp_path)
    node.make("c1")
    assert "1.1.0" in runtime.call("VERSION", "c1")[1]["supportedVersions"]
    status, body = runtime.call("ADD", "c1")
    assert (status, body["code"]) == (1, 11), "no packet filter, no pod"
    assert "tortie-node" in body["msg"]
    assert runtime.call("STATUS", "c1")[1]["code"] == 50
    assert runtime.call("DEL", "c1")[0] == 0
    run("nft", "add", "table", "inet", "tortie", inside=node.name)  # as an agent left it

    status, result = runtime.call("ADD", "c1", policy_setup_timeout_seconds=0.2)
    assert status == 0, result
    assert runtime.addresses() == 1
    assert runtime.call("ADD", "c1")[1] == result, "a repeat returns the first result"
    body = runtime.call("STATUS", "c1")[1]
    assert (body["code"], "no agent listens" in body["msg"]) == (50, True), body
    with closing(socket.socket(socket.AF_UNIX)) as agent:
        agent.bind(str(tmp_path / "just-back"))  # since the executable found none
        agent.listen()
        assert runtime.call("STATUS", "c1", agent_socket=agent.getsockname())[0] == 0
    status, body = runtime.call("CHECK", "c1", prevResult=result)
    assert (status, body["code"]) == (1, 110), "no agent has made rules for it"
    police(node, tmp_path, "c1", result["interfaces"][0]["name"])
    status, body = runtime.call("CHECK", "c1", prevResult=result)
    assert status == 0, body
    address = result["ips"][0]["address"]
    run("ping", "-c1", "-w60", address.split("/")[0], inside=node.name)
    run("ip", "addr", "flush", "dev", "eth0", inside=f"{node.prefix}-c1")
    status, body = runtime.call("CHECK", "c1", prevResult=result)
    assert (status, body["code"]) == (1, 110)
    assert runtime.call("DEL", "c1")[0] == 0
    assert runtime.call("DEL", "c1")[0] == 0
    assert runtime.addresses() == 0
    assert not [x for x in ip(node.name, "link") if x["ifname"].startswith("cali")]
    assert not list(tmp_path.glob("locks/*.lock"))


def test_before_the_agents_first_start_there_is_no_node_name(
    node: RealNode, tmp_path: Path
) -> None:
    runtime = Runtime(node, tmp_path)
    node.make("c1")
    run("nft", "add", "table", "inet", "tortie", inside=node.name)
    for content in (None, "", "\n"):
        (tmp_path / "nodename").unlink(missing_ok=True)
        if content is not None:
            (tmp_path / "nodename").write_text(content)
        settings: dict[str, Any] = {"sqlite_shared": True}
        assert runtime.call("ADD", "c1", **settings)[1]["code"] == 11
        assert runtime.call("STATUS", "c1", **settings)[1]["code"] == 50
        assert runtime.call("DEL", "c1", **settings)[0] == 0


def test_bad_configurations_over_the_whole_path(node: RealNode, tmp_path: Path) -> None:
    runtime = Runtime(node, tmp_path)
    status, body = runtime.call("ADD", "c1", datastore_type="mongo")
    assert (status, body["code"]) == (1, 7)
    assert "mongo" in body["msg"]
    assert "sqlite" in body["msg"]
    status, body = runtime.call("ADD", "c1", version="3.0.0")
    assert (status, body["code"]) == (1, 1)
    status, body = runtime.call("ADD", "c1", kubernetes={})
    assert (status, body["code"]) == (1, 7)
    assert "kubeconfig" in body["msg"]
