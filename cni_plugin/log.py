"""The fallback's log: one JSON object per line, to standard error and, when named, a file.

Never standard output, which is the CNI result; never stdin or tokens. A log that cannot be
written does not fail the call.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cni_plugin.types import NetConf

_RANK = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_LEVEL_OF = {
    "cni_error": "error",
    "undo_failed": "error",
    "cni_gc_failed": "error",
    "policy_timeout": "warning",
    "vm_state_unknown": "warning",
    "sysctl_skipped": "debug",
}


class JsonLines:
    """An `undo.Log`. Before a configuration is known it writes to standard error at `info`."""

    def __init__(self) -> None:
        self._level = "info"
        self._path = ""

    def configure(self, conf: NetConf) -> None:
        """Obey `log_level` and `log_file_path`."""
        self._level, self._path = conf.log_level, conf.log_file_path

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
            with suppress(OSError), Path(self._path).open("a", encoding="utf-8") as file:
                file.write(line)
