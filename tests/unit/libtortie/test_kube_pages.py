"""Lists in pages of a server whose `continue` tokens come round."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from libtortie.errors import Malformed
from libtortie.kube import prepare
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Pod
from libtortie.kube.raw import RawObjects


class Circling(HttpKubeClient):
    """Every page names the next one, of `period`; all are empty."""

    def __init__(self, period: int) -> None:
        super().__init__(direct("http://127.0.0.1:1"))
        self.period = period
        self.asked = 0

    def send(self, request: prepare.Request, seconds: float = 0.0) -> bytes:
        self.asked += 1
        query = parse_qs(urlsplit(request.url(self.server)).query)
        last = int(query.get("continue", ["-1"])[0])
        metadata = {"resourceVersion": "7", "continue": str((last + 1) % self.period)}
        return json.dumps({"items": [], "metadata": metadata}).encode()


READERS: dict[str, Callable[[HttpKubeClient], object]] = {
    "objects": lambda client: client.list(Pod),
    "pages": lambda client: list(client.pages(Pod)),
    "their JSON": lambda client: RawObjects(client).list(Pod.api),
}


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("period", [1, 2, 5])
def test_pages_that_lead_back_to_one_that_was_read_end_in_an_error(how: str, period: int) -> None:
    client = Circling(period)
    with pytest.raises(Malformed, match=r"list pods.*goes round in circles"):
        READERS[how](client)
    assert client.asked == period + 1
    client.close()
