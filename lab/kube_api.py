"""`python -m lab.kube_api`: the lab cluster's API server, with KubeVirt's admission in it."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from lab.admission import Admission
from lab.apiserver import kubeconfig
from lab.apiserver.server import ApiServer
from libtortie.signals import set_on

BOOKMARKS_S = 60.0
"""As the real server's: a hundred agents have a thousand watches, each with bookmarks."""


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="the API server of a lab")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="written for kubectl")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    ended = threading.Event()
    set_on(ended, signal.SIGTERM, signal.SIGINT)
    server = ApiServer(host, int(port), bookmark_interval=BOOKMARKS_S)
    server.api.hooks.append(Admission(server.api))
    with server:
        document = kubeconfig.render(server.url, server.tokens.users(), None)
        kubeconfig.write(options.kubeconfig, document)
        print(server.url, flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
