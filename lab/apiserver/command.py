"""The API server as a process of its own: `lab apiserver`, `python -m lab.apiserver`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import cast

import click

from lab.apiserver import kubeconfig as configs
from lab.apiserver.rbac import MODES, Mode
from lab.apiserver.server import ApiServer, Tls
from libtortie.signals import set_on

_FILE = click.Path(path_type=Path, dir_okay=False)


class Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT; an IPv6 host in brackets."""

    name = "host:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Split it, or fail."""
        if isinstance(value, tuple):
            return cast(tuple[str, int], value)
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdigit():
            self.fail("wants HOST:PORT", param, ctx)
        return host.strip("[]"), int(port)


@click.command("apiserver")
@click.option("--listen", type=Address(), default="127.0.0.1:6443", show_default=True)
@click.option("--token-file", type=_FILE, help="Lines of token,user[,uid[,groups]].")
@click.option("--data", type=_FILE, help="Keep objects in this file (and FILE.log).")
@click.option("--tls-cert", type=_FILE)
@click.option("--tls-key", type=_FILE)
@click.option("--tls-ca", type=_FILE, help="Who signed it, for the kubeconfig. Default: itself.")
@click.option("--client-ca", type=_FILE, help="Believe client certificates of this CA.")
@click.option("--without", multiple=True, metavar="GROUP", help="Do not serve this API group.")
@click.option(
    "--authorization-mode",
    type=click.Choice(MODES),
    default="AlwaysAllow",
    show_default=True,
    help="RBAC: by roles and bindings. AllowUntilRBAC: the same, but everybody may do everything"
    " as long as nobody has made any.",
)
@click.option("--kubeconfig", type=_FILE, help="Write a kubeconfig for kubectl to this file.")
def apiserver(
    *,
    listen: tuple[str, int],
    token_file: Path | None,
    data: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    client_ca: Path | None,
    without: tuple[str, ...],
    authorization_mode: Mode,
    kubeconfig: Path | None,
) -> None:
    """Serve the Kubernetes API alone, until SIGTERM or SIGINT; prints the URL once it listens."""
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if client_ca is not None and tls_cert is None:
        raise click.UsageError("--client-ca needs --tls-cert and --tls-key")
    if tls_ca is not None and (kubeconfig is None or tls_cert is None):
        raise click.UsageError("--tls-ca needs --tls-cert and --kubeconfig")
    if kubeconfig is not None and token_file is not None and tls_cert is None:
        raise click.UsageError(
            "--kubeconfig and --token-file need --tls-cert: kubectl sends no token without TLS"
        )
    tls = Tls(tls_cert, tls_key, client_ca) if tls_cert and tls_key else None
    host, port = listen
    ended = threading.Event()
    set_on(ended, signal.SIGTERM, signal.SIGINT)
    try:
        server = ApiServer(
            host,
            port,
            token_file=token_file,
            tls=tls,
            data=data,
            authorization=authorization_mode,
        )
        server.api.catalogue.hide(*without)
        with server:
            if kubeconfig is not None:
                users = server.tokens.users()
                configs.write(kubeconfig, configs.render(server.url, users, tls_ca or tls_cert))
            click.echo(server.url)
            ended.wait()
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
