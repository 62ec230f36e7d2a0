"""The page at its port: readers and server as threads, stopped and joined at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controllers.output import Plain
from controllers.page.pages import Pages, shelves_of
from controllers.page.problems import LastPass
from controllers.page.read import Source
from controllers.page.site import answer
from libtortie.complaint import Complaint
from libtortie.serving import Server
from libtortie.serving_access import Place

JOIN_SECONDS = 5.0
"""How long a reading that hangs is waited for at the end."""


@contextmanager
def page_at(
    place: Place,
    source: Source,
    passes: LastPass | None,
    complain: Callable[[str], None],
) -> Iterator[Server]:
    """Serve it. A port that is taken is told once and tried again; it stops nothing.

    Raises `InvalidInput` for files that let nobody in.
    """
    shelves = shelves_of(source, lambda text: complain(f"page: {text}"))
    pages = Pages(shelves, passes, source.now)
    site = {"/": lambda asked: answer(pages, asked)}
    server = Server(
        place, site, serving=lambda _: None, trouble=Complaint(Plain(complain), "page").about
    )
    server.check()
    readers = [
        threading.Thread(target=one.run, name=f"page {one.name}", daemon=True)
        for one in shelves.all()
    ]
    for thread in readers:
        thread.start()
    front = threading.Thread(target=server.run, name="page")
    front.start()
    try:
        yield server
    finally:
        for one in shelves.all():
            one.stop()
        server.stop()
        front.join()
        for thread in readers:
            thread.join(JOIN_SECONDS)
