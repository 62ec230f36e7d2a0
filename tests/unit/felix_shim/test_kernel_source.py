"""The kernel's notifications, whenever the thread that reads them comes to run."""

from __future__ import annotations

import threading

from felix_shim.events import Event, NetworkChanged, Surveyed
from felix_shim.sources import KernelSource
from libtortie.linux.port import LinkChanged
from tests.fakes.by_hand import Clock
from tests.fakes.kernel import FakeKernel


def test_what_changes_after_a_survey_is_told_by_a_thread_that_runs_late() -> None:
    kernel, told, posted = FakeKernel(), threading.Event(), list[Event]()

    def post(event: Event) -> None:
        posted.append(event)
        told.set()

    source = KernelSource(kernel, post, Clock())
    source.survey()
    kernel.add_link("cali1")
    told.clear()
    thread = threading.Thread(target=source.run, daemon=True)
    thread.start()
    try:
        assert told.wait(60)
    finally:
        kernel.close()
        thread.join(60)
    survey, news = posted[:2]
    assert isinstance(survey, Surveyed)
    assert "cali1" not in [link.name for link in survey.links]
    assert isinstance(news, NetworkChanged)
    assert isinstance(news.event, LinkChanged)
    assert news.event.link.name == "cali1"
