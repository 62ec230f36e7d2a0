"""`tortiectl ipam configure`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ipam.attempts import DEFAULT_RETRY, Attempts
from ipam.configure import COOLDOWN_LIMIT, MAX_BLOCKS_LIMIT, Change, Changed
from ipam.configure import configure as apply_change
from libtortie.errors import TortieError
from libtortie.model.ipam import Persistence
from tortiectl.connection import Connection, connect
from tortiectl.mended import MendedStore
from tortiectl.options import config_option, examples


@click.command(
    epilog=examples(
        "tortiectl ipam configure --kubevirt-ip-persistence=Enabled",
        "tortiectl ipam configure --strictaffinity=true --max-blocks-per-host=4",
    )
)
@config_option
@click.option(
    "--strictaffinity",
    type=click.Choice(["true", "false"], case_sensitive=False),
    help="Whether a node allocates only from blocks of its own.",
)
@click.option(
    "--max-blocks-per-host",
    type=click.INT,
    metavar="N",
    help=f"Most blocks of a node, 0 (Calico's default, 20 of a family) to {MAX_BLOCKS_LIMIT};"
    " needs strict affinity.",
)
@click.option(
    "--kubevirt-ip-persistence",
    type=click.Choice([value.value for value in Persistence]),
    help="Whether a VM keeps its addresses through restart and migration.",
)
@click.option(
    "--ip-cooldown-seconds",
    type=click.INT,
    metavar="N",
    help=f"How long a released address is not given to anybody, 0 to {COOLDOWN_LIMIT}.",
)
@click.pass_context
def configure(
    ctx: click.Context,
    *,
    config: str,
    strictaffinity: str | None,
    max_blocks_per_host: int | None,
    kubevirt_ip_persistence: str | None,
    ip_cooldown_seconds: int | None,
) -> None:
    """Change how addresses are allocated; at least one option is needed.

    Address persistence is also set by kubectl on the API's IPAMConfiguration, which decides. So
    where an API is configured that has it, it is written there first, then to the datastore.
    """
    change = Change(
        strict_affinity=None if strictaffinity is None else strictaffinity == "true",
        max_blocks_per_host=max_blocks_per_host,
        persistence=Persistence(kubevirt_ip_persistence) if kubevirt_ip_persistence else None,
        cooldown_seconds=ip_cooldown_seconds,
    )
    if change == Change():
        options = [option for p in configure.params for option in p.opts if option[:2] == "--"]
        known = ", ".join(option for option in options if option != "--config")
        raise click.UsageError(f"nothing to set; give at least one of {known}", ctx)
    to = connect(ctx, config)
    kube = to.kube if change.persistence is not None else None
    with _time_told():
        store = MendedStore(to.store, to.config.datastore, change)
        attempts = Attempts(store, DEFAULT_RETRY, time.monotonic, time.sleep)
        done = apply_change(store, kube, change, attempts)
    for line in _report(change, done, to):
        click.echo(line)


@contextmanager
def _time_told() -> Iterator[None]:
    """Say how long was tried: the error itself knows the last attempt only."""
    began = time.monotonic()
    try:
        yield
    except TortieError as error:
        took = time.monotonic() - began
        if took < 1:
            raise
        raise TortieError(f"after {took:.0f} s of attempts: {error}") from error


def _report(change: Change, done: Changed, to: Connection) -> list[str]:
    """Calico's line for each setting, then where it was written."""
    config = done.config
    said: list[tuple[str, object, object]] = [
        ("StrictAffinity", change.strict_affinity, str(config.strict_affinity).lower()),
        ("MaxBlocksPerHost", change.max_blocks_per_host, config.max_blocks_per_host),
        ("KubeVirtVMAddressPersistence", change.persistence, config.kubevirt_persistence),
        ("IPCooldownSeconds", change.cooldown_seconds, config.cooldown_seconds),
    ]
    lines = [
        f"Successfully set {name} to: {value}" for name, asked, value in said if asked is not None
    ]
    if change.persistence is not None:
        lines.append(_api_line(done.api_place, to))
    return [*lines, f"  in the datastore ({to.name})"]


def _api_line(place: str, to: Connection) -> str:
    if to.kube is None:
        return "  in no Kubernetes API: none is configured here; one that sets it would decide"
    if not place:
        return f"  not in the Kubernetes API at {to.kube.server}: it does not serve the kind"
    return f"  in {place} (Kubernetes API at {to.kube.server}), which decides"
