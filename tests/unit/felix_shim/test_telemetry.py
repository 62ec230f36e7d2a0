"""What the agent's log is told, as numbers."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from felix_shim import telemetry
from felix_shim.migration import Machine, State, why_dropped
from felix_shim.model import EndpointId
from felix_shim.telemetry import Telemetry
from libtortie.jsonlog import JsonLog
from libtortie.metrics import exposition
from libtortie.model.names import host_ifname
from tests.fakes.agent_world import NAMESPACE, endpoint_record
from tests.fakes.migrating_bench import target_bench

VM = EndpointId("team", "virt-launcher-a")
NET = ip_network("10.65.0.9/32")


class Bench:
    def __init__(self) -> None:
        self.now = 1000.0
        self.telemetry = Telemetry(lambda: self.now, lambda: self.now)

    def tell(self, event: str, **fields: object) -> None:
        self.telemetry.told(event, fields)

    def scraped(self) -> dict[str, float]:
        lines = exposition(self.telemetry.all()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def hear(self, seconds_ago: float = 0.0) -> None:
        stamp = int((self.now - seconds_ago) * 1e9)
        self.tell("sign", endpoint=VM, kind="rarp", kernel_ns=stamp)


def test_a_raise_at_once_is_timed_by_the_frame_that_caused_it() -> None:
    bench = Bench()
    bench.hear(0.25)
    bench.tell("route_raised", endpoint=VM, dst=NET, latency_ms=3.0, kernel_ns=1)
    said = bench.scraped()
    assert said["tortie_migration_sign_to_route_seconds_count"] == 1
    assert said["tortie_migration_sign_to_route_seconds_sum"] == pytest.approx(0.003)
    assert said["tortie_migration_network_downtime_seconds_sum"] == pytest.approx(0.003)
    of_vm = 'tortie_migration_last_network_downtime_seconds{namespace="team",pod="virt-launcher-a"}'
    assert said[of_vm] == pytest.approx(0.003)
    assert said['tortie_vm_signs_total{kind="rarp"}'] == 1


def test_a_raise_that_waited_for_policy_is_timed_from_the_frame_on() -> None:
    bench = Bench()
    bench.hear()
    bench.now += 0.4
    bench.tell("policy_gate_opened", endpoint=VM, waited_ms=400.0)
    bench.tell("route_raised", endpoint=VM, dst=NET)
    bench.tell("route_raised", endpoint=VM, dst=NET)  # the second family's
    said = bench.scraped()
    assert said["tortie_migration_sign_to_route_seconds_count"] == 1
    assert said["tortie_migration_sign_to_route_seconds_sum"] == pytest.approx(0.4)
    assert said['tortie_policy_gate_wait_seconds_sum{result="ready"}'] == pytest.approx(0.4)


def test_a_raise_without_a_frame_is_not_timed() -> None:
    bench = Bench()
    bench.tell("route_raised", endpoint=VM, dst=NET)
    assert "tortie_migration_sign_to_route_seconds_count" not in bench.scraped()


def test_a_frame_that_came_to_nothing_times_no_later_raise() -> None:
    bench = Bench()
    bench.hear()
    bench.tell("migration_transition", **{"endpoint": VM, "from": "live", "to": "suppressed"})
    bench.now += 100
    bench.tell("route_raised", endpoint=VM, dst=NET)
    assert "tortie_migration_sign_to_route_seconds_count" not in bench.scraped()


def test_where_there_is_bird_the_downtime_ends_when_it_has_the_route() -> None:
    bench = Bench()
    expected: list[tuple[Any, ...]] = []
    bench.telemetry.export = lambda *args: expected.append(args)
    bench.hear()
    bench.tell("route_raised", endpoint=VM, dst=NET, latency_ms=2.0, kernel_ns=1)
    assert expected == [(VM, NET, 1000.0, 1000.002)]
    assert "tortie_migration_network_downtime_seconds_count" not in bench.scraped()
    bench.telemetry.exported(VM, 1000.0, 1000.002, 1000.012)
    said = bench.scraped()
    assert said["tortie_migration_route_to_bgp_seconds_sum"] == pytest.approx(0.010)
    assert said["tortie_migration_network_downtime_seconds_sum"] == pytest.approx(0.012)


def test_the_old_node_times_a_raise_from_its_notice_to_its_own_departure() -> None:
    bench = Bench()
    moved = {"endpoint": VM, "from": "base", "to": "departed"}
    bench.tell("cut_over_noticed", endpoint=VM)
    bench.now += 0.05
    bench.tell("migration_transition", **moved)
    bench.tell("migration_transition", **moved)
    said = bench.scraped()
    assert said["tortie_migration_route_to_peer_seconds_count"] == 1
    assert said["tortie_migration_route_to_peer_seconds_sum"] == pytest.approx(0.05)
    assert said['tortie_migration_transitions_total{from="base",to="departed"}'] == 2


def test_an_owners_swap_is_timed_from_the_arrival_and_forgotten_with_it() -> None:
    bench = Bench()
    live = {"endpoint": VM, "from": "target", "to": "live"}
    bench.tell("migration_transition", **live)
    bench.now += 0.3
    bench.tell("owner_swapped", endpoint=VM)
    assert bench.scraped()["tortie_owner_swap_seconds_sum"] == pytest.approx(0.3)
    bench.tell("migration_transition", **live)
    bench.tell("migration_transition", **{"endpoint": VM, "from": "live", "to": "suppressed"})
    bench.now += 500
    bench.tell("owner_swapped", endpoint=VM)
    assert bench.scraped()["tortie_owner_swap_seconds_count"] == 1


def test_the_oldest_raise_is_of_the_one_that_is_still_raised() -> None:
    bench = Bench()
    assert bench.scraped()["tortie_raised_route_oldest_seconds"] == 0
    bench.tell("migration_begun", endpoint=VM, state=State.LIVE)
    bench.now += 10
    bench.tell("migration_transition", **{"endpoint": VM, "from": "live", "to": "time-wait"})
    bench.tell("migration_begun", endpoint="another", state=State.TARGET)
    assert bench.scraped()["tortie_raised_route_oldest_seconds"] == 10
    bench.tell("migration_transition", **{"endpoint": VM, "from": "time-wait", "to": "base"})
    assert bench.scraped()["tortie_raised_route_oldest_seconds"] == 0


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "another sandbox"])
def test_nothing_of_a_pod_that_goes_while_raised_is_kept(anew: bool) -> None:
    agent, bench = target_bench(), Bench()
    agent.sign("tgt")
    assert agent.metrics("tgt") == [512]
    if anew:
        agent.kernel.delete_link(host_ifname(NAMESPACE, "tgt"))
        agent.attach(endpoint_record("tgt", container="another", vm=False))
    else:
        agent.detach(endpoint_record("tgt", migration="m1"))
    for event, fields in agent.log.lines:
        bench.tell(event, **fields)
    bench.now += 700
    assert bench.scraped()["tortie_raised_route_oldest_seconds"] == 0
    bench.tell("owner_swapped", endpoint=EndpointId(NAMESPACE, "tgt"))
    assert bench.scraped().get("tortie_owner_swap_seconds_count", 0) == 0


def test_failures_by_what_failed() -> None:
    bench = Bench()
    bench.tell("apply_failed", work="policy", reason="nft")
    bench.tell("route_failed", endpoint=VM, reason="EPERM")
    bench.tell("watch_lost", scope="x")
    bench.tell("watch_lost_still", scope="x")
    bench.tell("api_watch_lost", kind="pods")
    bench.tell("api_watch_lost_still", kind="pods")
    bench.tell("owner_swap_failed")
    bench.tell("sign_dropped", reason="refused_pod")
    bench.telemetry.waited(True, 0.002)
    said = bench.scraped()
    assert said['tortie_apply_failures_total{work="policy"}'] == 1
    assert said["tortie_route_failures_total"] == 1
    assert said['tortie_watch_failures_total{source="datastore"}'] == 2
    assert said['tortie_watch_failures_total{source="api"}'] == 2
    assert said["tortie_owner_swap_failures_total"] == 1
    assert said['tortie_vm_signs_dropped_total{reason="refused_pod"}'] == 1
    assert said['tortie_reconciler_queue_seconds_count{queue="signs"}'] == 1


def test_arrivals_without_end_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_PENDING", 5)
    bench = Bench()
    for number in range(telemetry.MOST_RECENT + 20):
        vm = EndpointId("team", f"vm-{number}")
        bench.tell("migration_begun", endpoint=vm, state="live")
        bench.tell("sign", endpoint=vm, kind="ip", kernel_ns=1)
        bench.tell("route_raised", endpoint=vm, dst=NET, latency_ms=1.0)
    kept = [name for name in bench.scraped() if "last_network_downtime" in name]
    assert len(kept) == telemetry.MOST_RECENT
    assert not any('"vm-0"' in name for name in kept)
    assert len(bench.telemetry._raises._since) == 5


@pytest.mark.parametrize("event", sorted(Telemetry()._hear))
def test_no_event_can_make_the_log_fail(event: str) -> None:
    bench = Bench()
    for fields in ({}, {"kernel_ns": "x", "waited_ms": None, "latency_ms": "y", "endpoint": None}):
        bench.telemetry.told(event, fields)


def test_events_below_the_logs_level_are_counted_all_the_same() -> None:
    class Nowhere:
        def write(self, text: str, /) -> object:
            raise AssertionError(text)

        def flush(self) -> object: ...

    bench = Bench()
    log = JsonLog(Nowhere(), level="error")
    log.listen(bench.telemetry.told)
    log.debug("sign_dropped", reason="late")
    assert bench.scraped()['tortie_vm_signs_dropped_total{reason="late"}'] == 1


def test_why_a_sign_was_dropped() -> None:
    assert why_dropped(Machine(State.REFUSED, episode=3), 3) == "refused_pod"
    assert why_dropped(Machine(State.LIVE, episode=3), 2) == "late"
    assert why_dropped(Machine(State.LIVE, episode=3), 3) == "not_awaited"
