"""Rows as text: plain columns for `get`, boxes for `ipam show`, as calicoctl draws them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from libtortie.wording import visible

Row = Sequence[str]

GAP = "   "
_NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?")


def columns(headings: Row, rows: Sequence[Row]) -> str:
    """Left-aligned columns under their headings; no spaces at line ends."""
    rows = _shown(rows)
    widths = _widths(headings, rows)
    lines = [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (headings, *rows)
    ]
    return "\n".join(lines)


def boxed(headings: Row, rows: Sequence[Row]) -> str:
    """A box; headings are centred, numbers stand to the right."""
    rows = _shown(rows)
    widths = _widths(headings, rows)
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    top = _line([name.center(width) for name, width in zip(headings, widths, strict=True)])
    body = [
        _line([_aligned(cell, width) for cell, width in zip(row, widths, strict=True)])
        for row in rows
    ]
    return "\n".join([rule, top, rule, *body, rule] if body else [rule, top, rule])


def _shown(rows: Sequence[Row]) -> list[Row]:
    """Cells that keep their place in the table, whatever a record says."""
    return [tuple(map(visible, row)) for row in rows]


def _widths(headings: Row, rows: Sequence[Row]) -> list[int]:
    return [max(map(len, column)) for column in zip(headings, *rows, strict=True)]


def _aligned(cell: str, width: int) -> str:
    return cell.rjust(width) if _NUMBER.fullmatch(cell) else cell.ljust(width)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
