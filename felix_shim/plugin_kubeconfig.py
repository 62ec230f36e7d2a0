"""The plugin's kubeconfig, kept as fresh as the agent's own credentials.

The fallback runs on the host, where the token that a kubelet renews in the agent's pod cannot be
read: so the agent writes it into a kubeconfig there, whenever it is another. A kubelet renews a
token at the latest when a fifth of its life is left, which is two minutes or more: looking every
`LOOK_SECONDS` of a clock that only goes forward is in time, whatever the wall clock says. No
failure ends the looking; one that lasts is told once. A look that hangs, as on a dead mount, can
tell nothing: so a metric says how long ago the last good one was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from cni_plugin.kubeconfig import keep
from libtortie.complaint import Complaint
from libtortie.errors import TortieError, first_line
from libtortie.jsonlog import Log
from libtortie.kube.config import KubeConfig
from libtortie.kube.credentials import load
from libtortie.metrics import Gauge

LOOK_SECONDS = 5.0


class KubeconfigKeeper:
    """Writes one file from one identity, on a thread of its own."""

    def __init__(
        self,
        path: Path,
        config: KubeConfig,
        log: Log,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._right_at = monotonic()
        self._path = path
        self._config = config
        self._log = log
        self._complaint = Complaint(log, "cni_kubeconfig_stale")
        self._stopped = threading.Event()

    def run(self) -> None:
        """A thread's body, until `stop`."""
        while True:
            self.look()
            if self._stopped.wait(LOOK_SECONDS):
                return

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopped.set()

    def metric(self) -> Gauge:
        """For how many seconds nobody has known whether the file is right."""
        return Gauge(
            "tortie_cni_kubeconfig_unchecked_seconds",
            "Since the plugin's kubeconfig was last seen to say what the agent's credentials say.",
            lambda: self._monotonic() - self._right_at,
        )

    def look(self) -> None:
        """Write the file if it says anything else than it should; never raises."""
        try:
            written = keep(self._path, load(self._config))
        except (TortieError, OSError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            self._complaint.about(reason, path=str(self._path))
            return
        self._right_at = self._monotonic()
        self._complaint.about("")
        if written:
            self._log.info("cni_kubeconfig_written", path=str(self._path))
