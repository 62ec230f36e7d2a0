"""A headless Chromium that is told what to do by its own protocol, over a pair of pipes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from libtortie.errors import Unavailable
from tests.fakes.node_process import until

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-extensions", "--disable-background-networking",
    "--disable-sync", "--no-proxy-server", "--remote-debugging-pipe",
)  # fmt: skip
DEADLINE = 120.0


class Chromium:
    """One tab. `events` are what it told unasked, by method."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._left = b""
        self._ids = count(1)
        self.events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: Any) -> Any:
        """A command to the tab."""
        return self._ask(method, params, sessionId=self._session)

    def _ask(self, method: str, params: dict[str, Any], **more: str) -> Any:
        number = next(self._ids)
        body = {"id": number, "method": method, "params": params, **more}
        os.write(self._send, json.dumps(body).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == number:
                if "error" in told:  # the page it was asked of is being left, most often
                    raise Unavailable(f"{method}: {told['error']}")
                return told["result"]
            self.events.append(told)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = os.read(self._receive, 1 << 16)
            assert piece, "the browser ended"
            self._left += piece
        text, _, self._left = self._left.partition(b"\0")
        found = json.loads(text)
        assert isinstance(found, dict)
        return found

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        done = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def go(self, url: str) -> None:
        """Open an address and wait until it is loaded."""
        until(f"{url} opens", lambda: not self.fails(url), seconds=DEADLINE)
        self.until("it is loaded", "document.readyState === 'complete'")

    def fails(self, url: str) -> str:
        """Open an address; why it cannot be, "" when it can."""
        return str(self("Page.navigate", url=url).get("errorText", ""))

    def until(self, what: str, script: str) -> None:
        """Wait until an expression holds."""
        until(what, lambda: bool(self.run(script)), seconds=DEADLINE)

    def told(self, method: str) -> list[dict[str, Any]]:
        """What it told unasked of one kind."""
        self.run("0")
        return [one["params"] for one in self.events if one.get("method") == method]


@contextmanager
def chromium(directory: Path) -> Iterator[Chromium]:
    """A browser with a profile of its own; all of its processes are ended afterwards."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    process = _started(directory, theirs_in, theirs_out)
    try:
        os.close(theirs_in)
        os.close(theirs_out)
        yield Chromium(ours_out, ours_in)
    finally:
        os.close(ours_out)  # it ends with its pipe
        try:
            process.wait(DEADLINE)
        finally:
            process.kill()
            process.wait()
            os.close(ours_in)


def _started(directory: Path, receive: int, send: int) -> subprocess.Popen[bytes]:
    """It wants its pipes as descriptors 3 and 4."""
    return subprocess.Popen(
        [
            *("bash", "-c", f'exec "$@" 3<&{receive} 4>&{send}', "bash"),
            *("chromium", *FLAGS, f"--user-data-dir={directory / 'profile'}"),
        ],
        pass_fds=(receive, send),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(directory)},
    )
