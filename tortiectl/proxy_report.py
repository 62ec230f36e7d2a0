"""The migration proxy's status as text; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from libtortie.wording import visible
from tortiectl.text_tables import columns

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STREAMS = ("STREAM", "PORT", "SOCKET", "OPEN", "NOW", "EVER", "OUT", "IN")
_CONNECTIONS = ("STREAM", "PEER", "NAME", "PHASE", "SINCE", "OUT", "IN")


def report(status: dict[str, Any]) -> str:
    """The whole page."""
    lines = [*_head(status)]
    for one in status["migrations"]:
        lines += ["", *_migration(one)]
    if not status["migrations"]:
        lines += ["", "no migrations"]
    return "\n".join(lines)


def troubled(status: dict[str, Any]) -> bool:
    """Whether anything on the page needs somebody."""
    return any(files["trouble"] for files in status["tls"].values()) or any(
        one["findings"] for one in status["migrations"]
    )


def size(count: float) -> str:
    """Bytes for people: `1.5 GiB`."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit holds everything")


def _head(status: dict[str, Any]) -> Iterator[str]:
    state = "draining, takes no new migrations" if status["shutting_down"] else "serving"
    yield visible(f"migration proxy: {state}; target listeners on {status['listen']}")
    if status["disable_tls"]:
        yield "TLS: OFF (disable_tls): memory of VMs is readable between the nodes"
    for role, files in status["tls"].items():
        end = f"valid until {files['not_after']}" if "not_after" in files else "not usable"
        yield visible(f"TLS, {role}: {end}" + (f"; {files['trouble']}" if files["trouble"] else ""))


def _migration(one: dict[str, Any]) -> Iterator[str]:
    way = "to" if one["side"] == "source" else "on"
    tls = "TLS" if one["tls"] else "no TLS"
    yield visible(
        f"migration {one['migration']}, {one['side']}: {way} {one['address']}, {tls}, "
        f"since {one['since']}, generation {one['generation']}"
    )
    yield (
        f"  moved {size(one['bytes_out'])} out, {size(one['bytes_in'])} in, "
        f"now {size(one['bytes_per_second'])}/s"
    )
    yield from _indented(columns(_STREAMS, [_stream(each) for each in one["streams"]]))
    rows = [
        (
            each["stream"],
            end["peer"],
            end["peer_name"] or "-",
            end["phase"],
            end["since"],
            size(end["bytes_out"]),
            size(end["bytes_in"]),
        )
        for each in one["streams"]
        for end in each["connections"]
    ]
    if rows:
        yield from _indented(columns(_CONNECTIONS, rows))
    for finding in one["findings"]:
        yield visible(f"  ! {finding}")


def _stream(each: dict[str, Any]) -> tuple[str, ...]:
    return (
        each["stream"],
        str(each["port"]),
        each["path"],
        "yes" if each["open"] else "NO",
        str(len(each["connections"])),
        str(each["streams_ever"]),
        size(each["bytes_out"]),
        size(each["bytes_in"]),
    )


def _indented(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield f"  {line}"
