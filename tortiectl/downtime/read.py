"""Which kind of figures a text holds, and the figures. Pure."""

from __future__ import annotations

import json

from libtortie.errors import InvalidInput, NotFound
from tortiectl.downtime.domjobinfo import parse_domjobinfo
from tortiectl.downtime.job import Job
from tortiectl.downtime.qmp import parse_query_migrate
from tortiectl.downtime.records import is_report, parse_records


def parse_figures(text: str, where: str, vm: str = "") -> Job:
    """virsh's, QEMU's or our own figures. Raises `InvalidInput`, `NotFound`, naming `where`."""
    try:
        if not text.strip():
            raise InvalidInput("empty")
        if text.lstrip().startswith("{"):
            return parse_records(text, vm) if _ours(text) else parse_query_migrate(text)
        return parse_domjobinfo(text)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    except NotFound as error:
        raise type(error)(f"{where}: {error}") from None


def _ours(text: str) -> bool:
    """Whether JSON is a demo's report or a log's lines, not QMP's."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return False
    return is_report(value) or (isinstance(value, dict) and "event" in value and "level" in value)
