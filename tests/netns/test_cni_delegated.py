"""Our plugin with the addresses of Debian's IPAM programs, and programs that misbehave."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cni_plugin.child import Finished, run_program
from libtortie.errors import Unavailable
from libtortie.kube.objects import KubeNode
from tests.fakes.agent_world import NODE
from tests.fakes.calling_runtime import NETWORK, CallingNode, ping
from tests.fakes.fresh_names import fresh_name
from tests.fakes.ipam_program import FakeProgram
from tests.fakes.libcni import JSON, PluginError
from tests.fakes.node_process import until

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallingNode]:
    """One node with an agent for all of them."""
    with closing(CallingNode(tmp_path_factory.mktemp("dl") / "node", fresh_name("dl"))) as made:
        spec = {"podCIDRs": ["10.244.7.0/24", "fd00:244:7::/64"]}
        made.world.kube.put({"metadata": {"name": NODE}, "spec": spec}, KubeNode)
        made.start_and_settle()
        yield made


def host_local(files: Path, **more: Any) -> JSON:
    """A section for host-local, whose files are the test's own."""
    return {"type": "host-local", "dataDir": str(files), **more}


def held(files: Path) -> set[str]:
    """The addresses that host-local has given."""
    names = (one.name for one in (files / NETWORK).glob("*"))
    return {name for name in names if name[0].isdigit() or name.startswith("fd")}


def addresses(result: JSON) -> list[str]:
    return [ip["address"] for ip in result["ips"]]


@pytest.mark.parametrize("version", ["0.3.1", "1.0.0", "1.1.0"])
def test_host_local(node: CallingNode, tmp_path: Path, version: str) -> None:
    """Debian's speaks no 1.1.0: it is asked in 1.0.0."""
    before = node.left()
    ipam = host_local(tmp_path, subnet="10.99.0.0/24", routes=[{"dst": "0.0.0.0/0"}])
    network = node.network(version=version, ipam=ipam)
    one, two = node.attachment(), node.attachment()
    first, second = node.runtime.add(network, one), node.runtime.add(network, two)
    assert first["cniVersion"] == version
    assert addresses(first) != addresses(second)
    assert {text.partition("/")[2] for text in addresses(first)} == {"32"}
    assert node.runtime.add(network, one) == first, "a repeat answers the same"
    assert held(tmp_path) == {addresses(r)[0].partition("/")[0] for r in (first, second)}
    ping(node.space, addresses(first)[0].partition("/")[0])
    ping(one.netns, addresses(second)[0].partition("/")[0])
    if version != "0.3.1":
        node.runtime.check(network, one)
    if version == "1.1.0":
        node.runtime.status(network)
        node.runtime.collect(network, [one])
        assert held(tmp_path) == {addresses(first)[0].partition("/")[0]}
    for sandboxed in (one, two, one):
        node.runtime.delete(network, sandboxed)
    assert held(tmp_path) == set()
    node.rest(before)


def test_the_nodes_pod_cidrs(node: CallingNode, tmp_path: Path) -> None:
    before = node.left()
    ranges = [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]
    network = node.network(ipam=host_local(tmp_path, ranges=ranges), kubernetes=api(node))
    one = node.attachment()
    found = addresses(node.runtime.add(network, one))
    assert [text.rpartition(".")[0] or text.rpartition(":")[0] for text in found] == [
        "10.244.7",
        "fd00:244:7:",
    ]
    node.runtime.check(network, one)
    node.runtime.delete(network, one)
    assert held(tmp_path) == set()
    node.rest(before)


def api(node: CallingNode) -> JSON:
    return {"k8s_api_root": node.config["k8s_api_root"]}


def test_what_host_local_gave_an_add_that_was_killed(node: CallingNode, tmp_path: Path) -> None:
    """It refuses a second ADD of the same sandbox: that one is given back first."""
    before = node.left()
    network = node.network(ipam=host_local(tmp_path, subnet="10.99.0.0/24"))
    one = node.attachment()
    stdin = json.dumps({**network["plugins"][0], "name": network["name"], "cniVersion": "1.0.0"})
    env = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": one.container,
        "CNI_NETNS": one.netns,
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(node.bin_dir),
    }
    program = node.bin_dir / "host-local"
    assert run_program(program, env, stdin.encode()).status == 0
    refused = run_program(program, env, stdin.encode())
    assert refused.status == 1, "what the whole test stands on"
    assert b"duplicate allocation" in refused.stdout
    fake = FakeProgram(tmp_path / "fake")
    for _ in range(2):
        told = fake(Path("host-local"), env, stdin.encode())
    assert told.status == 1
    assert b"duplicate allocation" in told.stdout
    node.runtime.add(network, one)
    assert len(held(tmp_path)) == 1
    node.runtime.delete(network, one)
    assert held(tmp_path) == set()
    node.rest(before)


def test_the_fake_answers_as_host_local_does(node: CallingNode, tmp_path: Path) -> None:
    """Status, code, and the forms of results: what `delegate` goes by."""
    fake = FakeProgram(tmp_path / "fake")
    ipam = host_local(tmp_path, subnet="10.97.0.0/24")
    base = {"name": "n", "type": "tortie", "ipam": ipam}

    def both(verb: str, version: str = "1.0.0", container: str = "c1") -> list[Finished]:
        stdin = json.dumps({**base, "cniVersion": version}).encode()
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": "/proc/self/ns/net",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/",
        }
        real = run_program(node.bin_dir / "host-local", env, stdin)
        return [real, fake(Path("host-local"), env, stdin)]

    def outcome(one: Finished) -> tuple[int, object]:
        body = json.loads(one.stdout) if one.stdout.strip() else {}
        return one.status, body.get("code") if one.status else sorted(body)

    for verb, version in (
        ("CHECK", "1.0.0"),
        ("DEL", "1.0.0"),
        ("ADD", "1.1.0"),
        ("ADD", "1.0.0"),
        ("ADD", "1.0.0"),
        ("CHECK", "1.0.0"),
        ("DEL", "1.0.0"),
        ("DEL", "1.0.0"),
        ("GC", "1.0.0"),
        ("STATUS", "1.0.0"),
    ):
        real, pretended = both(verb, version)
        assert outcome(real) == outcome(pretended), (verb, version, real)


def test_both_families_and_routes_of_the_static_program(node: CallingNode) -> None:
    before = node.left()
    ipam = {
        "type": "static",
        "addresses": [{"address": "10.98.0.5/16"}, {"address": "fd00:98::5/64"}],
        "routes": [{"dst": "10.0.0.0/8"}, {"dst": "fd00::/8"}],
        "dns": {"nameservers": ["10.98.0.53"]},
    }
    network, one = node.network(ipam=ipam), node.attachment()
    result = node.runtime.add(network, one)
    assert addresses(result) == ["10.98.0.5/32", "fd00:98::5/128"]
    assert result["dns"]["nameservers"] == ["10.98.0.53"]
    assert {route["dst"] for route in result["routes"]} == {"10.0.0.0/8", "fd00::/8"}
    assert node.runtime.add(network, one) == result
    node.runtime.check(network, one)
    inside = one.netns.rpartition("/")[2]
    shown = subprocess.run(
        ["ip", "-n", inside, "-j", "route"], check=True, capture_output=True, timeout=120
    )
    assert {one["dst"] for one in json.loads(shown.stdout)} == {"169.254.1.1", "10.0.0.0/8"}
    node.runtime.delete(network, one)
    node.rest(before)


def test_a_full_range_leaves_nothing(node: CallingNode, tmp_path: Path) -> None:
    before = node.left()
    ipam = host_local(tmp_path, subnet="10.96.0.0/24", rangeStart="10.96.0.9", rangeEnd="10.96.0.9")
    network, one, two = node.network(ipam=ipam), node.attachment(), node.attachment()
    node.runtime.add(network, one)
    with pytest.raises(PluginError, match="no IP addresses available") as refused:
        node.runtime.add(network, two)
    assert refused.value.code == 109
    node.runtime.delete(network, two)
    node.runtime.delete(network, one)
    assert held(tmp_path) == set()
    node.rest(before)


def script(node: CallingNode, name: str, text: str) -> JSON:
    """A program in CNI_PATH."""
    path = node.bin_dir / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return {"type": name}


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("exit 3\n", 109, "it ended with status 3"),
        ("echo nonsense\n", 109, "its result cannot be read"),
        ("echo oops >&2; kill -9 $$\n", 109, "it ended with status -9: oops"),
        ('echo \'{"code": 11, "msg": "later"}\'; exit 1\n', 11, "later"),
        ("cat >/dev/null; echo '{}'\n", 109, "it gave no address"),
    ],
)
def test_programs_that_misbehave(node: CallingNode, text: str, code: int, message: str) -> None:
    before = node.left()
    network, one = node.network(ipam=script(node, fresh_name("p"), text)), node.attachment()
    with pytest.raises(PluginError, match=message) as refused:
        node.runtime.add(network, one)
    assert refused.value.code == code
    node.rest(before)


def test_a_program_that_is_missing(node: CallingNode) -> None:
    network, one = node.network(ipam={"type": "no-such-ipam"}), node.attachment()
    with pytest.raises(PluginError, match="there is no program 'no-such-ipam' in") as refused:
        node.runtime.add(network, one)
    assert refused.value.code == 7


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    program, pids = tmp_path / "slow", tmp_path / "pids"
    program.write_text(
        f"#!/bin/sh\nsleep 1000 &\necho $! $$ >{pids}.new\nmv {pids}.new {pids}\nwait\n"
    )
    program.chmod(0o755)
    with pytest.raises(Unavailable, match=r"slow takes longer than 3 s"):
        run_program(program, {"CNI_COMMAND": "ADD"}, b"{}" * 100_000, seconds=3)
    if pids.exists():  # else it was killed before it had any
        child, leader = pids.read_text().split()
        until("both are gone", lambda: not any(lives(pid, leader) for pid in (child, leader)))


def lives(pid: str, session: str) -> bool:
    """Whether a process of this session runs; a zombie, which waits for its parent, does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    state, _, _, its = stat.rpartition(")")[2].split()[:4]
    return state != "Z" and its == session


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    program = tmp_path / "odd"
    program.write_bytes(b"\x7fnothing")
    program.chmod(0o755)
    with pytest.raises(Unavailable, match="odd cannot be started: Exec format error"):
        run_program(program, {}, b"")


def test_a_program_that_does_not_read_its_input(tmp_path: Path) -> None:
    program = tmp_path / "deaf"
    program.write_text("#!/bin/sh\nexec <&-\necho '{}'\n")
    program.chmod(0o755)
    done = run_program(program, {}, b"x" * 1_000_000)
    assert (done.status, done.stdout) == (0, b"{}\n")
