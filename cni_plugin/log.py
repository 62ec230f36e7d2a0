"""The fallback's log: one JSON object per line, to standard error and, when named, a file.

Never standard output, which is the CNI result; never stdin or tokens. A file that is full is set
aside, whichever of the processes that write to it finds it full. A log that cannot be written
does not fail the call.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from cni_plugin.types import NetConf
from libtortie.rotating import Limits, RotatingFile

_RANK = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_LEVEL_OF = {
    "cni_error": "error",
    "undo_failed": "error",
    "cni_gc_failed": "error",
    "policy_timeout": "warning",
    "handle_of_another": "warning",
    "vm_state_unknown": "warning",
    "sysctl_skipped": "debug",
}


class JsonLines:
    """An `undo.Log`. Before a configuration is known it writes to standard error at `info`."""

    def __init__(self) -> None:
        self._level = "info"
        self._path = ""
        self._limits = Limits()

    def configure(self, conf: NetConf) -> None:
        """Obey `log_level`, `log_file_path` and its limits."""
        self._level, self._path = conf.log_level, conf.log_file_path
        self._limits = limits_of(conf)

    def __call__(self, event: str, /, **fields: object) -> None:
        """Write one line."""
        level = _LEVEL_OF.get(event, "info")
        if _RANK[level] < _RANK[self._level]:
            return
        head = {"time": datetime.now(UTC).isoformat(), "level": level, "event": event}
        line = json.dumps({**head, **fields}, default=str) + "\n"
        with suppress(OSError, AttributeError):  # closed
            sys.stderr.write(line)
        if self._path:
            with suppress(OSError), closing(RotatingFile(Path(self._path), self._limits)) as file:
                file.write(line)


def limits_of(conf: NetConf) -> Limits:
    """`log_file_max_size` (MB), `_max_age` (days) and `_max_count`."""
    return Limits(
        conf.log_file_max_size << 20, conf.log_file_max_age * 86400.0, conf.log_file_max_count
    )
