"""Small questions about what people typed, what they may be shown, and the files they may write.

Imported by command lines at start-up, so it imports nothing of weight.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DEFAULT_CONFIG = "/etc/tortie/tortiectl.cfg"
NODE_FILE = "/etc/tortie/node.yaml"


def is_text(value: str) -> bool:
    """Whether a string of the system's is UTF-8; other bytes arrive as surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def visible(text: str, keep: str = "") -> str:
    """Text for a terminal: what moves the cursor, colours, hides or reorders is escaped.

    Whoever may write a record may have put it there. `keep` are characters that are left alone.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when no known word is near."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
