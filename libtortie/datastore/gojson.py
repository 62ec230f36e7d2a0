"""JSON text as Go's `encoding/json` writes it, so that stored bytes compare equal to Calico's.

Compact, UTF-8, with `<`, `>`, `&`, U+2028 and U+2029 escaped; integers of any size stay
integers; a float without a fraction is written as an integer. (Fractions below 0.0001 are the
one spelling that may differ; no field of Calico's holds such a number.)
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def dumps(value: Any, *, floats: bool = True) -> bytes:
    """A JSON value as Go would write it; mappings keep the order they come in.

    Without `floats` the caller promises that there are none, which saves a walk. ValueError for
    NaN and infinities, TypeError for what JSON cannot hold, RecursionError for what has no end.
    """
    text = _ENCODER.encode(integral(value) if floats else value)
    if "<" in text or ">" in text or "&" in text or not text.isascii():
        text = text.translate(_ESCAPES)
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which Go reads and writes as U+FFFD
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def loads(data: bytes) -> Any:
    """The value of a JSON text. ValueError, naming the place, for anything that is not one."""
    try:
        return _DECODER.decode(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def integral(value: Any) -> Any:
    """The value with integers for the floats that Go writes as such."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    if isinstance(value, dict):
        return {key: item if type(item) is str else integral(item) for key, item in value.items()}
    if isinstance(value, list):
        return [integral(item) for item in value]
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"number {text} is out of range")
    return number


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)
_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
