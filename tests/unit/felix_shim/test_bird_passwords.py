"""Passwords of BGP sessions: read by name, kept through trouble, never told."""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest

from felix_shim.bird_passwords import (
    REFUSED_SECONDS,
    PasswordSource,
    Secret,
    SecretKey,
    password_in,
)
from felix_shim.events import BgpTold, Event
from libtortie import errors
from libtortie.kube.objects import Meta
from tests.fakes.agent_world import RecordingLog

KEY = ("bgp", "tor")


class Api:
    """An API that has Secrets of one namespace, or fails."""

    def __init__(self, **secrets: dict[str, bytes]) -> None:
        self.secrets = secrets
        self.failing: errors.TortieError | None = None
        self.asked: list[str] = []

    def get(self, model: type[Any], name: str, namespace: str = "") -> Any:
        assert namespace == "kube-system"
        assert model is Secret
        self.asked.append(name)
        if self.failing is not None:
            raise self.failing
        if name not in self.secrets:
            raise errors.NotFound(name)
        data = {key: base64.b64encode(one).decode() for key, one in self.secrets[name].items()}
        return Secret(metadata=Meta(name=name), data=data)


class Rig:
    def __init__(self, api: Api) -> None:
        self.posted: list[Event] = []
        self.log = RecordingLog()
        self.now = 100.0
        self.source = PasswordSource(
            api,  # type: ignore[arg-type]  # one verb of the port
            "kube-system",
            self.posted.append,
            self.log,
            lambda: self.now,
        )

    def look(self, *keys: SecretKey) -> dict[SecretKey, str | None] | None:
        """What a look posted; None when it posted nothing."""
        self.posted.clear()
        self.source.look(frozenset(keys))
        if not self.posted:
            return None
        (told,) = self.posted
        assert isinstance(told, BgpTold)
        return dict(told.passwords or {})


def test_what_is_there_and_what_is_not() -> None:
    api = Api(bgp={"tor": b"hush\n", "binary": b"\xff\xfe"})
    rig = Rig(api)
    keys = (KEY, ("bgp", "other"), ("bgp", "binary"), ("none", "k"))
    assert rig.look(*keys) == {
        KEY: "hush",
        ("bgp", "other"): None,
        ("bgp", "binary"): None,
        ("none", "k"): None,
    }
    assert sorted(api.asked) == ["bgp", "none"], "each Secret once"
    assert rig.look(*keys) is None, "nothing new is not told again"
    api.secrets["bgp"] = {"tor": b"other"}
    assert rig.look(KEY) == {KEY: "other"}


@pytest.mark.parametrize("error", [errors.Unavailable("down"), errors.Unauthorized("forbidden")])
def test_trouble_keeps_what_was_known_and_answers_nothing_new(error: errors.TortieError) -> None:
    api = Api(bgp={"tor": b"hush"})
    rig = Rig(api)
    assert rig.look(KEY) == {KEY: "hush"}
    api.failing = error
    assert rig.look(KEY, ("more", "k")) is None
    rig.look(KEY, ("more", "k"))
    (said,) = rig.log.of("bgp_password_unreadable")
    assert "kube-system/bgp" in str(said)
    api.failing = None
    assert rig.look(KEY, ("more", "k")) == {KEY: "hush", ("more", "k"): None}


@pytest.mark.parametrize("error", [
    errors.Unauthorized("forbidden"), errors.InvalidInput("no such name"), errors.Malformed("x"),
])  # fmt: skip
def test_a_refusal_that_lasts_is_the_answer_for_what_was_never_read(
    error: errors.TortieError,
) -> None:
    """Else BIRD would wait for it for ever, with all of its other sessions."""
    api = Api(bgp={"tor": b"hush"})
    rig = Rig(api)
    rig.look(KEY)
    api.failing = error
    keys = (KEY, ("bgp", "other"), ("more", "k"))
    for _ in range(2):
        assert rig.look(*keys) is None
        rig.now += REFUSED_SECONDS - 0.5
    assert rig.look(*keys) == {KEY: "hush", ("bgp", "other"): None, ("more", "k"): None}
    api.failing = None
    api.secrets["more"] = {"k": b"late"}
    assert rig.look(*keys) == {KEY: "hush", ("bgp", "other"): None, ("more", "k"): "late"}
    api.failing = error
    assert rig.look(("third", "k")) == {}
    assert rig.look(("third", "k")) is None, "each has its own minute"


def test_silence_is_no_answer_however_long_it_lasts() -> None:
    api = Api()
    rig = Rig(api)
    api.failing = errors.Unavailable("down")
    for _ in range(3):
        assert rig.look(KEY) is None
        rig.now += 10 * REFUSED_SECONDS


def test_a_password_is_in_no_text() -> None:
    api = Api(bgp={"tor": b"hush"})
    rig = Rig(api)
    rig.look(KEY)
    texts = [repr(rig.posted), repr(rig.source), repr(api.get(Secret, "bgp", "kube-system"))]
    assert not any("hush" in text or "aHVzaA" in text for text in texts)


def test_not_base64_is_none() -> None:
    assert password_in(Secret(data={"k": "***"}), "k") is None


def test_a_new_key_is_asked_for_at_once_and_the_thread_ends_when_told() -> None:
    api = Api(bgp={"tor": b"hush"})
    told = threading.Event()
    source = PasswordSource(api, "kube-system", lambda _: told.set(), RecordingLog())  # type: ignore[arg-type]  # one verb of the port
    thread = threading.Thread(target=source.run)
    thread.start()
    source.want(frozenset({KEY}))
    assert told.wait(60)
    source.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_the_event_is_equal_by_value() -> None:
    assert BgpTold({KEY: "a"}) == BgpTold({KEY: "a"}) != BgpTold({KEY: "b"})
