"""The agent's metrics are of calls as they were; CHECK on a real node."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from libtortie.errors import Unavailable
from libtortie.history import history
from libtortie.past_migrations import PastMigration, migrations
from tests.fakes import frames
from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import ip, until

pytestmark = pytest.mark.root
PORT = 9091


def scrape(port: int, path: str = "/metrics", host: str = "127.0.0.1") -> tuple[str, str]:
    """The content type and body of a scrape. Raises HTTPError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{host}:{port}{path}", timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_calls_of_a_real_agent_are_counted_and_checked(tmp_path: Path) -> None:
    kubeconfig = str(tmp_path / "host" / "kubeconfig")
    node = CalledNode(tmp_path, fresh_name("am"), metrics_port=PORT, cni_kubeconfig=kubeconfig)
    with closing(node):
        node.world.put_pod("web-0")
        node.start()
        added = node.done("ADD", "web-0", "c1", policy_setup_timeout_seconds=100)
        assert node.done("STATUS", "web-0", "c1").body is None
        node.done("CHECK", "web-0", "c1", prevResult=added.body)
        body = scraped(node)
        assert 'tortie_cni_calls_total{command="ADD",code="0"} 1' in body
        for phase in ("lock", "identity", "ipam", "wiring", "endpoint", "policy_wait"):
            assert f'tortie_cni_phase_seconds_count{{command="ADD",phase="{phase}"}} 1' in body
        assert "\ntortie_cni_kubeconfig_unchecked_seconds " in body
        (line,) = node.lines("cni_add")
        assert line["pod"] == "web-0"
        assert line["ipam_ms"] > 0
        spoil(node, added.body)
        stranger = node.call("ADD", "nobody", "c2")
        assert stranger.code == 101
        assert 'tortie_cni_refusals_total{reason="identity"} 1' in scraped(node)
        (line,) = node.lines("cni_error")[-1:]
        assert (line["pod"], line["code"]) == ("nobody", 101)


def test_an_arrival_is_measured_until_bird_has_its_route_and_what_is_forged_is_counted(
    tmp_path: Path,
) -> None:
    node = CalledNode(tmp_path, fresh_name("av"), metrics_port=PORT, bird={"mode": "supervised"})
    with closing(node):
        address, pod = node.vm_elsewhere(), "virt-launcher-db-1"
        node.world.put_migration("m1", phase="Running")
        node.world.put_launcher(pod, migration="m1")
        node.start()
        answer = node.done("ADD", pod, "ctr1", policy_setup_timeout_seconds=100)
        mac = answer.body["interfaces"][1]["mac"]
        until("the agent listens", lambda: node.lines("sniffer_open"))
        node.send("ctr1", frames.arp(mac, "10.65.0.250", "10.65.0.250"))
        node.send("ctr1", frames.rarp(mac))
        until("it is raised", lambda: node.metrics(pod) == [512])
        last = f'last_network_downtime_seconds{{namespace="default",pod="{pod}"}} '
        said = until("BIRD has it", lambda: _with(f"\ntortie_migration_{last}", scraped(node)))
        for series in (
            'tortie_vm_signs_total{kind="rarp"} 1',
            "tortie_migration_sign_to_route_seconds_count 1",
            "tortie_migration_route_to_bgp_seconds_count 1",
            "tortie_migration_network_downtime_seconds_count 1",
            'tortie_migration_transitions_total{from="target",to="live"} 1',
            "tortie_raised_routes 1",
            'tortie_endpoints{state="live"} 1',
        ):
            assert f"\n{series}\n" in said, series
        assert address
        until("it owns", lambda: "\ntortie_owner_swap_seconds_count 1\n" in scraped(node))
        assert "\ntortie_owner_swaps_pending 0\n" in scraped(node)
        (move,) = until("the history has it", lambda: measured(node))
        assert (move.migration_uid, move.vm) == ("vmim-m1", "db")
        seconds = float(said.partition(last)[2].splitlines()[0])
        assert move.downtime_ms == pytest.approx(seconds * 1000, abs=0.01), "as the metric has it"
        forged = '\ntortie_forged_frames_total{reason="arp"} '
        until("the forgery is counted", lambda: f"{forged}0\n" not in scraped(node))


def measured(node: CalledNode) -> list[PastMigration]:
    """Migrations whose downtime is in the history."""
    found = migrations(history(node.store).facts)
    return [one for one in found if one.downtime_ms is not None]


def _with(part: str, page: str) -> str:
    return page if part in page else ""


def scraped(node: CalledNode) -> str:
    """What the agent's port says, once it listens: CNI does not wait for that."""

    def scraping() -> str:
        try:
            return scrape(PORT)[1]
        except OSError as error:
            raise Unavailable(str(error)) from error

    return until("metrics are served", lambda: node.inside(scraping))


def spoil(node: CalledNode, added: Any) -> None:
    """CHECK names everything that is wrong, with the agent and without."""
    sandbox = node.sandbox("c1").rpartition("/")[2]
    address = added["ips"][0]["address"]
    for words in (("route", "del", "default"), ("address", "del", address, "dev", "eth0")):
        ip("-n", sandbox, *words)
    answer = node.call("CHECK", "web-0", "c1", prevResult=added)
    assert answer.code == 110
    for text in (f", not {address}", "the pod has no route 0.0.0.0/0 dev eth0"):
        assert text in answer.body["details"], answer.body


def test_without_agent_and_rules_check_and_status_say_so(tmp_path: Path) -> None:
    node = CalledNode(tmp_path, fresh_name("ar"))
    with closing(node):
        node.world.put_pod("web-0")
        node.start()
        added = node.done("ADD", "web-0", "c1", policy_setup_timeout_seconds=100)
        node.stop()
        node.done("CHECK", "web-0", "c1", prevResult=added.body)
        answer = node.call("STATUS", "web-0", "c1")
        assert (answer.code, "no agent listens" in answer.body["msg"]) == (50, True), answer.body
        nft = ["nsenter", f"--net=/run/netns/{node.name}", "nft", "flush", "ruleset"]
        subprocess.run(nft, check=True, capture_output=True)
        answer = node.call("CHECK", "web-0", "c1", prevResult=added.body)
        assert (answer.code, "no rules for" in answer.body["msg"]) == (110, True), answer.body
        assert node.call("STATUS", "web-0", "c1").code == 51
        assert node.call("ADD", "web-0", "c2").code == 11
        node.done("DEL", "web-0", "c1")
        assert node.call("STATUS", "web-0", "c1").code == 50
