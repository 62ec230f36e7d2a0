"""A migration as a picture: its time, and what was sent. SVG, or a page around it. Pure.

Nothing in it is loaded or run; every text is escaped by `libtortie.svg`.
"""

from __future__ import annotations

from collections.abc import Iterator

from libtortie.svg import Markup, Scale, drawing, fitting, join, shown, tag, ticks
from tortiectl.downtime.amounts import duration, rate, size
from tortiectl.downtime.job import Job

WIDTH, LEFT, RIGHT = 800.0, 130.0, 780.0
_STYLE = Markup(
    "text{font:13px sans-serif;fill:#222}.t{font-weight:bold;font-size:15px}"
    ".copy{fill:#9ec3e6}.setup{fill:#d5e5f5}.pause{fill:#f28e8c}.net{fill:#fbb46a}"
    ".zero{fill:#bab0ac}.rest{fill:#eeeeee}.axis{stroke:#999}.n{fill:#555}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_Part = tuple[str, float, str]


def chart(job: Job, title: str) -> Markup:
    """The `<svg>` of a migration."""
    rows: list[Markup] = [tag("style", _STYLE), tag("text", title, x=10, y=24, class_="t")]
    height = 50.0
    for name, parts, form in _bands(job):
        total = sum(amount for _, amount, _ in parts)
        rows.append(_band(name, parts, total, form, height))
        height += 72
    if height == 50.0:
        rows.append(tag("text", "no figures to draw", x=LEFT, y=height))
        height += 30
    return drawing(WIDTH, height, title, *rows)


def page(job: Job, title: str) -> str:
    """An HTML page with the picture and the chief figures."""
    figures = [
        tag("li", f"{name}: {form(value)}")
        for name, value, form in (
            ("total time", job.total_ms, duration),
            ("downtime", job.downtime_ms, duration),
            ("network downtime", job.network_downtime_ms, duration),
            ("data processed", job.data_processed, size),
            ("bandwidth", job.bandwidth or job.average_bandwidth, rate),
        )
        if value is not None
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
    )
    body = tag("body", chart(job, title), tag("ul", *figures))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _bands(job: Job) -> Iterator[tuple[str, list[_Part], str]]:
    """Rows of the picture: name, parts, and whether they are times or sizes."""
    if job.total_ms:
        yield "time", list(_times(job, job.total_ms)), "ms"
    pause = [
        part
        for part in (
            ("the guest stands still", job.downtime_ms, "pause"),
            ("the network's own", job.network_downtime_ms, "net"),
        )
        if part[1]
    ]
    if pause:
        yield "downtime", [(name, amount or 0, class_) for name, amount, class_ in pause], "ms"
    if job.data_total or job.data_processed:
        yield "data", list(_data(job)), "B"


def _times(job: Job, total: float) -> Iterator[_Part]:
    setup, pause = job.setup_ms or 0.0, job.downtime_ms or 0.0
    if setup > 0:
        yield "setup", setup, "setup"
    yield "copying while the guest runs", max(0.0, total - setup - pause), "copy"
    if pause > 0:
        yield "downtime", pause, "pause"


def _data(job: Job) -> Iterator[_Part]:
    disks, sent = job.file_processed or 0.0, job.data_processed or 0.0
    if disks:
        yield "disks", disks, "setup"
    yield "memory" if disks else "sent", max(0.0, sent - disks), "copy"
    zero = (job.constant_pages or 0.0) * (job.page_size or 4096)
    if zero:
        yield "zero pages, not sent", zero, "zero"


def _band(name: str, parts: list[_Part], total: float, form: str, y: float) -> Markup:
    scale = Scale(0.0, total, LEFT, RIGHT)
    drawn: list[object] = [tag("text", name, x=10, y=y + 19)]
    at = 0.0
    for what, amount, class_ in parts:
        text = f"{what}: {duration(amount) if form == 'ms' else size(amount)}"
        x, end = scale.at(at), scale.at(at + amount)
        box = tag("title", text)
        drawn.append(tag("rect", box, x=x, y=y, width=max(1.0, end - x), height=28, class_=class_))
        drawn.append(tag("text", fitting(text, end - x - 8, 7.0), x=x + 4, y=y + 19))
        at += amount
    drawn.append(_axis(scale, total, form, y + 28))
    return tag("g", join(drawn))


def _axis(scale: Scale, total: float, form: str, y: float) -> Markup:
    unit, factor = _unit(total, form)
    marks = [tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="axis")]
    for value in ticks(0.0, total / factor, 8):
        x = scale.at(value * factor)
        marks.append(tag("line", x1=x, x2=x, y1=y, y2=y + 4, class_="axis"))
        marks.append(tag("text", shown(value), x=x, y=y + 18, text_anchor="middle", class_="n"))
    marks.append(tag("text", unit, x=LEFT - 8, y=y + 18, text_anchor="end", class_="n"))
    return join(marks)


def _unit(total: float, form: str) -> tuple[str, float]:
    if form == "ms":
        return ("s", 1000.0) if total >= 2000 else ("ms", 1.0)
    power = next((power for power in (3, 2, 1) if total >= 1024**power), 0)
    return ("B", "KiB", "MiB", "GiB")[power], float(1024**power)
