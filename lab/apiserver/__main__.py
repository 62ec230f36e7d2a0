"""`python -m lab.apiserver --listen HOST:PORT [...]`: the API server as a process of its own."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from lab.apiserver.server import ApiServer, Tls


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; prints the URL once it listens."""
    parser = argparse.ArgumentParser(prog="python -m lab.apiserver", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:6443", metavar="HOST:PORT")
    parser.add_argument("--token-file", type=Path, help="lines of token,user[,uid[,groups]]")
    parser.add_argument("--data", type=Path, help="keep objects in this file (and FILE.log)")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--client-ca", type=Path, help="believe client certificates of this CA")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="GROUP",
        help="do not serve this API group",
    )
    options = parser.parse_args(arguments)
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit():
        parser.error("--listen wants HOST:PORT")
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together")
    if options.client_ca is not None and options.tls_cert is None:
        parser.error("--client-ca needs --tls-cert and --tls-key")
    tls = Tls(options.tls_cert, options.tls_key, options.client_ca) if options.tls_cert else None
    server = ApiServer(
        host.strip("[]"), int(port), token_file=options.token_file, tls=tls, data=options.data
    )
    server.api.catalogue.hide(*options.without)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with server:
        print(server.url, flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
