"""The policy gate: a status file counts for its own container, and is waited for on events."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cni_plugin import policy_gate
from cni_plugin.policy_gate import LOOK, POLL, FilePolicyGate, interfaces_of
from tests.fakes.cni_world import Clock

FILE = "k8s default%2Fweb-0 eth0"


def body(container: str) -> str:
    return json.dumps({"ifaceName": "cali0", "containerID": container})


class FakeWatch:
    """A watched directory in which something happens at every look."""

    def __init__(self, clock: Clock, happens: Callable[[float], bool] = lambda elapsed: False):
        self.clock = clock
        self.happens = happens
        self.asked: list[float] = []
        self.open = 0

    def __call__(self, directory: Path) -> FakeWatch:
        self.open += 1
        return self

    def wait(self, seconds: float) -> None:
        self.asked.append(seconds)
        if not self.happens(self.clock.elapsed):
            self.clock.sleep(seconds)

    def close(self) -> None:
        self.open -= 1


def no_sleep(seconds: float) -> None:
    raise AssertionError("what can be watched is not polled")


def gate(tmp_path: Path, clock: Clock, watch: FakeWatch | None = None) -> FilePolicyGate:
    return FilePolicyGate(
        tmp_path,
        lambda: True,
        monotonic=clock.monotonic,
        sleep=no_sleep,
        watch=watch or FakeWatch(clock),
    )


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (body("c1"), True),
        (body("c0"), False),
        (json.dumps({"ifaceName": "cali0"}), False),
        ("", False),
        ("{", False),
        ("[]", False),
        (None, False),
    ],
)
def test_a_status_file_counts_for_its_own_container_only(
    tmp_path: Path, text: str | None, counts: bool
) -> None:
    clock = Clock()
    watch = FakeWatch(clock)
    if text is not None:
        (tmp_path / FILE).write_text(text)
    assert gate(tmp_path, clock, watch).wait(FILE, "c1", 2.5) is counts
    assert clock.elapsed == (0 if counts else 2.5)
    assert watch.asked == ([] if counts else [LOOK, LOOK, 0.5])
    assert watch.open == 0


def test_an_old_file_is_replaced_while_waiting(tmp_path: Path) -> None:
    path, clock = tmp_path / FILE, Clock()
    path.write_text(body("old"))
    events = iter(["another file", "half of ours", "ours"])

    def happens(elapsed: float) -> bool:
        match next(events):
            case "another file":
                (tmp_path / "k8s default%2Fother eth0").write_text(body("c1"))
            case "half of ours":
                path.write_text(body("c1")[:10])
            case "ours":
                path.write_text(body("c1"))
        return True

    assert gate(tmp_path, clock, FakeWatch(clock, happens)).wait(FILE, "c1", 5)
    assert list(events) == []
    assert clock.elapsed == 0, "it returned at the event"


def test_a_file_that_came_before_the_watch_is_seen(tmp_path: Path) -> None:
    """The agent is quicker: between the first look and the watch."""
    clock = Clock()

    class Late(FakeWatch):
        def __call__(self, directory: Path) -> FakeWatch:
            (tmp_path / FILE).write_text(body("c1"))
            return super().__call__(directory)

    watch = Late(clock)
    assert gate(tmp_path, clock, watch).wait(FILE, "c1", 5)
    assert (watch.asked, watch.open) == ([], 0)


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EMFILE, errno.ENOSPC])
def test_without_a_watch_the_directory_is_looked_at_often(tmp_path: Path, error: int) -> None:
    clock = Clock()
    pauses: list[float] = []

    def watch(directory: Path) -> FakeWatch:
        raise OSError(error, "no watch")

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.sleep(seconds)
        if len(pauses) == 10:
            (tmp_path / FILE).write_text(body("c1"))

    blind = FilePolicyGate(
        tmp_path, lambda: True, monotonic=clock.monotonic, sleep=sleep, watch=watch
    )
    assert blind.wait(FILE, "c1", 5)
    assert pauses == [POLL] * 10
    assert POLL <= 0.005


@pytest.mark.parametrize("how", ["renamed into place", "written in place"])
def test_the_kernel_tells_when_the_file_is_there(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For real, and without a look of its own before its time is over."""
    monkeypatch.setattr(policy_gate, "LOOK", 600.0)
    waiting = threading.Event()

    class Signal(FilePolicyGate):
        def _watched(self, stack):  # type: ignore[no-untyped-def]  # as the class has it
            watch = super()._watched(stack)
            assert watch is not None
            waiting.set()
            return watch

    def write() -> None:
        waiting.wait(60)
        if how == "written in place":
            (tmp_path / FILE).write_text(body("c1"))
        else:
            (tmp_path / ".new").write_text(body("c1"))
            (tmp_path / ".new").rename(tmp_path / FILE)

    writer = threading.Thread(target=write)
    writer.start()
    real = Signal(tmp_path, lambda: True, sleep=no_sleep)
    try:
        assert real.wait(FILE, "c1", 60)
    finally:
        writer.join()


def test_which_interfaces_have_rules() -> None:
    def one(name: str, *interfaces: str) -> dict[str, object]:
        elements = [[each, {"jump": {"target": f"from-{each}"}}] for each in interfaces]
        return {"map": {"name": name, "family": "inet", **({"elem": elements} if elements else {})}}

    def listed(*items: dict[str, object]) -> frozenset[str]:
        return interfaces_of({"nftables": [{"metainfo": {}}, *items]})

    both = one("from-endpoints-3", "cali1", "cali2"), one("to-endpoints-3", "cali2", "cali3")
    assert listed(*both) == {"cali2"}, "what has rules for one way only is not policed"
    assert listed(one("from-endpoints-0", "cali1"), one("to-endpoints-0")) == frozenset()
    assert listed(one("elsewhere-0", "cali1")) == frozenset()
    assert interfaces_of({}) == frozenset()
