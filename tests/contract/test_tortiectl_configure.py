"""`ipam configure` on every datastore: one setting at a time, and two who set one at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipam.attempts import Attempts, Retry
from ipam.configure import Change, configure
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey
from tests.fakes.ctl_stores import STORES, CtlOn


@pytest.fixture(params=list(STORES))
def on(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CtlOn]:
    with STORES[request.param](tmp_path) as made:
        yield made


def config(on: CtlOn) -> IPAMConfig:
    found = on.store.get(IPAMConfigKey()).value
    assert isinstance(found, IPAMConfig)
    return found


def test_one_setting_leaves_the_others_as_they_are(on: CtlOn) -> None:
    on.run("ipam", "configure", "--strictaffinity=true", "--max-blocks-per-host=3")
    on.run("ipam", "configure", "--ip-cooldown-seconds=9")
    said = on.run("ipam", "configure", "--kubevirt-ip-persistence=Disabled").output
    assert "Successfully set KubeVirtVMAddressPersistence to: Disabled\n" in said
    found = config(on)
    assert (found.strict_affinity, found.max_blocks_per_host) == (True, 3)
    assert (found.cooldown_seconds, found.kubevirt_persistence) == (9, Persistence.DISABLED)


@pytest.mark.parametrize("value", ["enabled", "ENABLED", "On", "true", ""])
def test_values_that_are_none_change_nothing(on: CtlOn, value: str) -> None:
    on.run("ipam", "configure", "--kubevirt-ip-persistence=Disabled")
    done = on.run("ipam", "configure", f"--kubevirt-ip-persistence={value}", status=1)
    assert "is not one of 'Enabled', 'Disabled'" in done.stderr or "empty" in done.stderr
    assert config(on).kubevirt_persistence is Persistence.DISABLED


def test_two_who_set_different_things_at_once(on: CtlOn) -> None:
    together = threading.Barrier(2)
    failed: list[BaseException] = []

    def change(wanted: Change) -> None:
        attempts = Attempts(on.store, Retry(attempts=1000, seconds=120), time.monotonic, time.sleep)
        together.wait()
        try:
            configure(on.store, None, wanted, attempts)
        except BaseException as error:
            failed.append(error)

    wanted = (Change(cooldown_seconds=7), Change(persistence=Persistence.DISABLED))
    threads = [threading.Thread(target=change, args=(one,)) for one in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    found = config(on)
    assert (found.cooldown_seconds, found.kubevirt_persistence) == (7, Persistence.DISABLED)
