"""`tortie-controllers gc --leader-elect` as processes: one works, whatever becomes of others."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controllers.candidate import boot_time
from lab.apiserver.server import ApiServer
from libtortie.errors import NotFound
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.leases import Lease, LeaseSpec
from tests.contract.test_controllers_metrics import probed, scraped
from tests.fakes.gc_site import DEADLINE, Site, leaked, site_in
from tests.fakes.node_process import until
from tests.fakes.ports import free_ports

PLACE = ("tortie-controllers", "kube-system")
GC = ("--leader-elect", "--grace", "100ms", "--period", "50ms")
LONG = ("--leader-elect-lease-duration=300s", "--leader-elect-renew-deadline=240s")
"""For tests in which nobody may lose the lease, however long a process stands still."""
RENEW = 1.5
"""Seconds."""
SHORT = (
    "--leader-elect-lease-duration=2s",
    f"--leader-elect-renew-deadline={RENEW}s",
    "--leader-elect-retry-period=100ms",
)


@pytest.fixture
def site(tmp_path: Path, server: ApiServer) -> Iterator[Site]:
    with site_in(tmp_path, server) as made:
        yield made


def spec(server: ApiServer) -> LeaseSpec:
    with closing(HttpKubeClient(direct(server.url))) as client:
        try:
            return client.get(Lease, *PLACE).spec
        except NotFound:
            return LeaseSpec()


def edit(server: ApiServer, **changes: Any) -> None:
    with closing(HttpKubeClient(direct(server.url))) as client:
        client.patch(Lease, *PLACE, {"spec": changes})


IDENTITIES: dict[int, str] = {}


def first(site: Site, server: ApiServer, *args: str) -> subprocess.Popen[str]:
    """An instance that leads: nobody else is there yet, or they wait."""
    before = spec(server).holder_identity
    process = site.start(*GC, *args)
    found = until(
        "it leads",
        lambda: (now := spec(server).holder_identity) not in ("", before) and now,
    )
    IDENTITIES[process.pid] = str(found)
    return process


def ready(port: int) -> bool:
    return probed(port, "/readyz").startswith("ok\n")


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.terminate()
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert "Traceback" not in err
    return out, err


def test_one_of_three_works_and_gives_the_lease_up_when_told(site: Site, server: ApiServer) -> None:
    one = first(site, server, *LONG)
    others = [site.start(*GC, *LONG) for _ in range(2)]
    for process in others:
        assert process.stderr is not None
        assert process.stderr.readline().endswith(f"held by {IDENTITIES[one.pid]}\n")
    until("the leak is freed", lambda: not leaked(site))
    held = spec(server)
    assert (held.lease_duration_seconds, held.lease_transitions) == (300, 0)
    for process in others:
        out, err = ended(process)
        assert out == "", "a standby looks at nothing"
        assert "given up" not in err
    out, err = ended(one)
    assert "pass: " in out
    assert "given up" in err
    assert spec(server).holder_identity == ""


def test_probes_and_metrics_tell_a_leader_from_one_that_waits(
    site: Site, server: ApiServer
) -> None:
    ports = free_ports(2)
    one = first(site, server, *LONG, f"--metrics-port={ports[0]}")
    two = site.start(*GC, *LONG, f"--metrics-port={ports[1]}")
    for port, leads in zip(ports, (1, 0), strict=True):
        until("it is ready", partial(ready, port))
        assert probed(port, "/livez").startswith("ok\n")
        assert "[+]election" in probed(port, "/livez")
        assert f"\ntortie_leader {leads}\n" in scraped(port)
    server.stop()
    until("what fails is named", lambda: "[-]election: lease" in probed(ports[1], "/readyz"))
    assert probed(ports[1], "/livez").startswith("ok\n"), "nothing that a restart cures"
    for process in (one, two):
        process.terminate()
        process.communicate(timeout=DEADLINE)
        assert process.returncode == 0


def test_a_successor_takes_over_at_once_from_one_that_was_told(
    site: Site, server: ApiServer
) -> None:
    one = first(site, server, *LONG)
    two = site.start(*GC, *LONG, "--leader-elect-retry-period=100ms")
    held = spec(server).holder_identity
    ended(one)
    now = until(
        "the other leads", lambda: (h := spec(server).holder_identity) not in ("", held) and h
    )
    assert now != held
    assert spec(server).lease_transitions == 1
    until("it works", lambda: not leaked(site))
    ended(two)


def test_a_killed_leader_is_followed_when_its_lease_is_over(site: Site, server: ApiServer) -> None:
    one = first(site, server, *SHORT)
    two = site.start(*GC, *SHORT)
    one.kill()
    one.wait()
    held = IDENTITIES[one.pid]
    until("the other leads", lambda: spec(server).holder_identity != held)
    until("it works", lambda: not leaked(site))
    ended(two)


def test_a_leader_that_was_stopped_does_nothing_when_it_wakes(
    site: Site, server: ApiServer
) -> None:
    one = first(site, server, *SHORT)
    until("the leak is freed", lambda: not leaked(site))
    one.send_signal(signal.SIGSTOP)
    stopped = boot_time()
    site.town.start("web")
    site.town.remove_pod("web")
    edit(server, holderIdentity="another", leaseDurationSeconds=300)
    held = spec(server)
    until("its time is over", lambda: boot_time() > stopped + RENEW)
    one.send_signal(signal.SIGCONT)
    assert one.stderr is not None
    while not one.stderr.readline().endswith("held by another\n"):
        pass
    ended(one)
    assert leaked(site), "what a leader would have freed"
    assert spec(server) == held


def test_an_api_that_is_away_ends_no_process(site: Site, server: ApiServer) -> None:
    one = first(site, server, *SHORT)
    until("the leak is freed", lambda: not leaked(site))
    server.stop()
    assert one.stderr is not None
    for line in one.stderr:
        if line.startswith("Error: lease kube-system/tortie-controllers: "):
            break
    assert one.poll() is None
    server.start()
    renewed = spec(server).renew_time
    until("it renews again", lambda: spec(server).renew_time != renewed)
    ended(one)


def test_a_lease_edited_by_hand_is_obeyed(site: Site, server: ApiServer) -> None:
    one = first(site, server, *SHORT)
    edit(server, holderIdentity="somebody", leaseDurationSeconds=1)
    assert one.stderr is not None
    said = ""
    while not said.endswith("held by somebody\n"):
        said = one.stderr.readline()
    until("it leads again", lambda: spec(server).holder_identity == IDENTITIES[one.pid])
    ended(one)


def test_no_right_to_the_lease_is_named(site: Site, server: ApiServer) -> None:
    with ApiServer(tokens={"0123456789": "gc"}, authorization="RBAC", api=server.api) as guarded:
        site.spec |= {"k8sAPIEndpoint": guarded.url, "k8sAPIToken": "0123456789"}
        process = site.start(*GC)
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith("Error: lease kube-system/tortie-controllers: ")
        assert 'cannot get resource "leases"' in said
        out, _ = ended(process)
        assert out == "", "it works on nothing"


def test_without_an_api_there_is_one_instance_and_it_says_so(site: Site) -> None:
    del site.spec["k8sAPIEndpoint"]
    process = site.start(*GC)
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said == (
        "Error: --leader-elect: no Kubernetes API is configured, so no leader is elected: "
        "this must be the only instance\n"
    )
    assert process.stdout is not None
    assert process.stdout.readline(), "it works"
    ended(process)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--leader-elect", "--once"], "--leader-elect is for what runs on"),
        (["--leader-elect-retry-period=1s"], "--leader-elect-retry-period needs --leader-elect"),
        (["--leader-elect-resource-name=x"], "--leader-elect-resource-name needs"),
        ([*GC, "--leader-elect-lease-duration=10s"], "longer than the renewal deadline"),
        ([*GC, "--leader-elect-retry-period=x"], "is not a duration"),
    ],
)
def test_a_wrong_command_line(site: Site, args: list[str], said: str) -> None:
    _, err = site(*args, status=2)
    assert said in err


def test_another_name_and_namespace(site: Site, server: ApiServer) -> None:
    process = site.start(
        *GC, "--leader-elect-resource-name=other", "--leader-elect-resource-namespace=kube-system"
    )

    def made() -> bool:
        with closing(HttpKubeClient(direct(server.url))) as client, suppress(NotFound):
            return bool(client.get(Lease, "other", PLACE[1]).spec.holder_identity)
        return False

    until("the lease", made)
    ended(process)
    assert spec(server) == LeaseSpec()
