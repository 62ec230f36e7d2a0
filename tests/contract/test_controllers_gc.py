"""`tortie-controllers gc` as a process: on a SQLite file or a real etcd, and a real API server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ipam.client import AddressRequest
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.history import history
from libtortie.model.history import What
from tests.fakes.gc_site import DEADLINE, Site, furnish, leaked, site_in
from tests.fakes.ipam_world import vm_pod
from tests.fakes.kubernetes_store import kubernetes_api, stores_of
from tests.fakes.node_process import until

ONCE = ("--once", "--grace", "0s")


@pytest.fixture
def site(tmp_path: Path, server: ApiServer) -> Iterator[Site]:
    with site_in(tmp_path, server) as made:
        yield made


def waits(line: str, grace: int) -> bool:
    """Whether it says that it waits for a grace, and for the time that its pass took."""
    found = re.match(r"wait \(in (\d+) s\): ", line)
    return found is not None and grace <= int(found[1]) <= grace + DEADLINE


def test_a_dry_run_explains_and_changes_nothing(site: Site) -> None:
    address = leaked(site)
    out, err = site("--once", "--dry-run")
    said = f": {address} of handle k8s-pod-network.c-web: pod shop/web is gone"
    assert any(waits(line, 900) and line.endswith(said) for line in out)
    assert any("pod shop/app lives and has it" in line for line in out)
    assert out[-1].startswith("pass: ")
    assert "1 wait, 0 would be done; ipam_allocations_in_use 2" in out[-1]
    assert err == ""
    assert leaked(site) == address


def test_once_frees_what_two_observations_agree_on(site: Site) -> None:
    address = leaked(site)
    out, _ = site(*ONCE)
    assert f"free: {address} of handle k8s-pod-network.c-web: pod shop/web is gone" in out
    assert leaked(site) == ""
    assert len(site.town.held) == 1
    site.town.world.audit()
    (kept,) = history(site.town.world.store).facts
    assert (kept.what, kept.by, kept.pod) == (What.RELEASED, "tortie-controllers", "web")
    again, _ = site(*ONCE)
    assert len(again) == 1, "one pass, nothing to tell"


def test_json_is_one_object_for_each_pass(site: Site) -> None:
    address = leaked(site)
    out, _ = site(*ONCE, "-o", "json")
    first, second = (json.loads(line) for line in out)
    assert first["counts"] == {
        "ipam_allocations_in_use": 2,
        "ipam_allocations_borrowed": 0,
        "ipam_allocations_gc_candidates": 1,
        "ipam_allocations_gc_reclamations": 0,
        "ipam_blocks": 1,
    }
    assert second["verdicts"] == [
        {
            "kind": "address",
            "subject": f"{address} of handle k8s-pod-network.c-web",
            "outcome": "free",
            "action": "free",
            "reason": "pod shop/web is gone",
            "seconds": 0.0,
            "unknown": False,
        }
    ]
    assert second["counts"]["ipam_allocations_gc_reclamations"] == 1
    assert (second["dryRun"], second["unreadable"]) == (False, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_frees_and_ends_when_told(site: Site, number: signal.Signals) -> None:
    process = site.start("--grace", "200ms", "--period", "100ms")
    until("the leak is freed", lambda: not leaked(site), seconds=DEADLINE)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(DEADLINE) == 0
    assert "Traceback" not in process.communicate()[1]


def test_a_daemon_that_waits_for_a_long_grace_ends_at_once_when_told(site: Site) -> None:
    process = site.start()
    assert process.stdout is not None
    assert waits(process.stdout.readline(), 900)
    process.terminate()
    assert process.wait(DEADLINE) == 0
    assert leaked(site)


def test_killed_and_started_again_it_takes_a_grace_more(site: Site) -> None:
    process = site.start("--grace", "1h", "--period", "100ms")
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    assert leaked(site)
    out, _ = site(*ONCE, "-o", "json")
    assert [v["outcome"] for line in out for v in json.loads(line)["verdicts"]] == ["wait", "free"]


def test_a_silent_api_frees_nothing(site: Site, server: ApiServer) -> None:
    server.stop()
    out, err = site(*ONCE, status=1)
    assert err.startswith("Error: what the API does not speak for is kept: ")
    assert leaked(site)
    assert any(line.startswith("keep (1): unknown: pod shop/web") for line in out)


def test_without_an_api_it_says_so(site: Site) -> None:
    del site.spec["k8sAPIEndpoint"]
    out, err = site(*ONCE)
    assert err == ("Error: no Kubernetes API is configured: addresses of pods and VMs are kept\n")
    assert leaked(site)
    assert out


def test_a_datastore_that_is_not_there_is_one_message(site: Site, tmp_path: Path) -> None:
    site.spec["sqlitePath"] = str(tmp_path / "none.db")
    out, err = site("--once", status=1)
    assert out == []
    assert err.startswith(f"Error: {tmp_path}/none.db: no such datastore")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--grace", "5"], "'5' is not a duration such as 30s or 1m30s"),
        (["--grace", "-5s"], ""),
        (["--period", ""], "a duration must not be empty"),
        (["--grace", "9999999h"], "the longest are 292 years"),
        (["-c", ""], "is empty"),
        (["-o", "yaml"], "invalid choice"),
        (["extra"], "unrecognized arguments"),
    ],
)
def test_a_wrong_command_line(site: Site, args: list[str], said: str) -> None:
    _, err = site(*args, status=2)
    assert said in err


def test_the_longest_grace_is_waited_for(site: Site) -> None:
    process = site.start("--grace", "2562047h", "--period", "2562047h")
    assert process.stdout is not None
    assert waits(process.stdout.readline(), 9223369200)
    process.terminate()
    assert process.wait(DEADLINE) == 0


def test_without_a_file_the_environment_says_where_all_is(site: Site) -> None:
    """As documented: no option is needed."""
    command = [sys.executable, "-m", "controllers.cli", "gc", *ONCE]
    where = {
        "TORTIE_SQLITE_PATH": site.spec["sqlitePath"],
        "K8S_API_ENDPOINT": site.spec["k8sAPIEndpoint"],
    }
    done = subprocess.run(
        command,
        env={**os.environ, **where},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert leaked(site) == ""


@pytest.mark.parametrize(
    ("closed", "status", "said"),
    [(">&-", 1, "Error: output: Bad file descriptor\n"), ("2>&-", 0, ""), (">&- 2>&-", 1, "")],
)
def test_without_an_output(site: Site, closed: str, status: int, said: str) -> None:
    site.start("--help").communicate(timeout=DEADLINE)  # writes the file
    command = f"{sys.executable} -m controllers.cli gc -c {site.file} --once --dry-run {closed}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.returncode, done.stderr) == (status, said)


def test_a_record_cannot_write_on_the_terminal(site: Site) -> None:
    town = site.town
    (address,) = town.run("evil", "n1")
    pod = "evil\x1b[2J\nfree: everything\x9b31m\x7f\u202e"
    town.rewrite(address, {"namespace": "shop", "pod": pod, "node": "n1"})
    out, _ = site("--once", "--dry-run")
    assert all(line.isprintable() for line in out)
    told = r"pod shop/evil\x1b[2J\nfree: everything\x9b31m\x7f\u202e is gone"
    assert any(line.endswith(told) for line in out)
    (line,), _ = site("--once", "--dry-run", "-o", "json")
    assert line.isprintable()
    assert f"pod shop/{pod} is gone" in [one["reason"] for one in json.loads(line)["verdicts"]]


def test_a_reader_that_goes_away_ends_it_quietly(site: Site) -> None:
    process = site.start("--grace", "10ms", "--period", "10ms")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(DEADLINE) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stdout = None


def test_a_full_disk_stops_no_daemon_and_fails_once(site: Site) -> None:
    with Path("/dev/full").open("w") as full:
        once = site.start(*ONCE, out=full.fileno())
        assert once.communicate(timeout=DEADLINE)[1] == "Error: output: No space left on device\n"
        assert once.returncode == 1
        assert leaked(site)
        process = site.start("--grace", "50ms", "--period", "50ms", out=full.fileno())
        until("the leak is freed", lambda: not leaked(site), seconds=DEADLINE)
        process.terminate()
        assert process.wait(DEADLINE) == 0


def test_an_output_of_few_letters(site: Site) -> None:
    """What an API says may have any letter; not every output does."""
    town = site.town
    town.start("odd")
    town.pod("odd", node="n1", uid="ünbekannt")
    process = site.start("--once", "--dry-run", PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "")
    assert "another now, with UID \\xfcnbekannt" in out


def test_an_empty_cluster_is_only_believed_when_told(site: Site) -> None:
    for pod in ("app", "kube-proxy"):
        site.town.remove_pod(pod)
    _, err = site(*ONCE, status=1)
    assert "no pods at all (tortie-controllers gc --trust-empty-lists believes it)" in err
    assert len(site.town.held) == 2
    site(*ONCE, "--trust-empty-lists")
    assert site.town.held == set()


def test_two_at_once_on_etcd(shared_etcd: Any, server: ApiServer, tmp_path: Path) -> None:
    shared_etcd.remove_all()
    spec = {"etcdEndpoints": shared_etcd.url, "k8sAPIEndpoint": server.url}
    with closing(EtcdDatastore(EtcdConfig(shared_etcd.url))) as store:
        site = Site(furnish(store, server), tmp_path / "gc.cfg", spec)
        for number in range(20):
            site.town.run(f"gone-{number}", "n2")
        try:
            both = [site.start(*ONCE) for _ in range(2)]
            for process in both:
                out, err = process.communicate(timeout=DEADLINE)
                assert process.returncode == 0, out + err
            site(*ONCE)
            assert len(site.town.held) == 1
            site.town.world.audit()
        finally:
            site.close()


@pytest.mark.parametrize("group", list(Group))
def test_on_the_kubernetes_datastore(tmp_path: Path, group: Group) -> None:
    with kubernetes_api() as api, stores_of(api, group) as (store,):
        spec = {
            "datastoreType": "kubernetes",
            "k8sAPIEndpoint": api.url,
            "calicoAPIGroup": group.value,
        }
        site = Site(furnish(store, api, stores_nodes=False), tmp_path / "gc.cfg", spec)
        try:
            address = leaked(site)
            out, _ = site(*ONCE)
            assert f"free: {address} of handle k8s-pod-network.c-web: pod shop/web is gone" in out
            assert len(site.town.held) == 1
            site.town.world.audit()
        finally:
            site.close()


def test_a_cluster_without_kubevirt_and_without_its_vms_is_well(
    site: Site, server: ApiServer
) -> None:
    server.api.catalogue.hide("kubevirt.io")
    _, complaint = site(*ONCE)
    assert complaint == ""


def test_a_daemon_that_was_there_before_kubevirt_frees_a_vms_address_only_when_the_api_knows_vms(
    site: Site, server: ApiServer
) -> None:
    """No kind is no word about anybody; once it is served, a VM that is not there is gone."""
    handle = "k8s-pod-network.vmi.shop.db"
    client = site.town.world.client()
    client.claim_vm(handle, vm_pod("launcher"), AddressRequest())
    client.disown_vm(handle, vm_pod("launcher"), vm_deleting=False)
    server.api.catalogue.hide("kubevirt.io")
    site.start("--grace", "100ms", "--period", "50ms", out=subprocess.DEVNULL)
    until("it collects", lambda: not leaked(site), seconds=DEADLINE)
    for options in (("--dry-run",), ()):
        kept, complaint = site(*ONCE, *options, status=1)
        assert any("the kind is not served" in line and "virtualmachines" in line for line in kept)
        assert "Error: what the API does not speak for is kept: virtualmachine" in complaint
    assert client.by_handle(handle)
    server.api.catalogue.offer("kubevirt.io")
    until("the VM is known to be gone", lambda: not client.by_handle(handle), seconds=DEADLINE)
