"""`tortiectl node diags` and `tortiectl cluster diags`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import click

from libtortie.access import NODE_FILE
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind, Resources
from tortiectl.bird_status import ask
from tortiectl.diags import NODE_COMMANDS, Said, archive, files, run, told, without_secrets
from tortiectl.lazy import Entry, LazyGroup
from tortiectl.options import config_option, examples, not_empty

COMMANDS = {"diags": Entry("tortiectl.commands.diags:cluster_diags", "Collect diagnostics.")}
LOGS = "/var/log/tortie"
PODS = "app.kubernetes.io/part-of=tortie"
"""The label of what our manifests run."""
_BIRD = ("show status", "show protocols all", "show route all")
_SPAN = re.compile(r"\d+(s|m|h)")

_output = click.option(
    "--output-dir",
    default="",
    metavar="DIR",
    callback=not_empty,
    help="Where the archive is written.  [default: a new directory for temporary files]",
)


@click.group(cls=LazyGroup, entries=COMMANDS)
def cluster() -> None:
    """Work on the cluster as a whole."""


@click.command(
    name="diags", epilog=examples("tortiectl node diags", "tortiectl node diags --output-dir /root")
)
@click.option(
    "--log-dir",
    default=LOGS,
    show_default=True,
    metavar="DIR",
    callback=not_empty,
    help="Logs to take along.",
)
@click.option(
    "--run-dir", default="/run/tortie", show_default=True, metavar="DIR", callback=not_empty,
    help="Where the agent's sockets and status files are.",
)  # fmt: skip
@_output
def node_diags(*, log_dir: str, run_dir: str, output_dir: str) -> None:
    """Collect what is needed to understand this node, in one archive, without secrets."""
    path = archive(_of_node(Path(log_dir), Path(run_dir)), datetime.now().astimezone(), output_dir)
    click.echo(f"Diags saved to {path}")


def _asked(control: str, question: str) -> str:
    return "\n".join(ask(control, question))


def _of_node(logs: Path, running: Path) -> Iterator[Said]:
    for name, command in NODE_COMMANDS.items():
        yield run(name, command)
    for number, question in enumerate(_BIRD):
        control = str(running / "bird.ctl")
        yield told(f"bird/{number}.txt", partial(_asked, control, question))
    yield from files(running / "endpoint-status", "endpoint-status")
    for file in (NODE_FILE, Path("/var/lib/tortie/nodename"), Path("/var/lib/tortie/mtu")):
        try:
            yield f"files/{file.name}", without_secrets(file.read_text()).encode()
        except (OSError, UnicodeDecodeError) as error:
            yield f"files/{file.name}", f"{error}\n".encode()
    yield from files(logs, "logs")


@click.command(
    name="diags",
    epilog=examples(
        "tortiectl cluster diags",
        "tortiectl cluster diags --since 1h --focus-nodes n1,n2 --max-logs 20",
    ),
)
@click.option(
    "--since", default="0s", show_default=True, help="Logs of this time: 30m, 2h; 0s: all."
)
@click.option(
    "--max-logs",
    type=click.IntRange(0, 10000),
    default=5,
    show_default=True,
    help="Pods whose logs are taken, those of --focus-nodes first.",
)
@click.option("--focus-nodes", default="", metavar="NODE,...", callback=not_empty)
@_output
@config_option
@click.pass_context
def cluster_diags(
    ctx: click.Context, *, since: str, max_logs: int, focus_nodes: str, output_dir: str, config: str
) -> None:
    """Collect what is stored, and (where kubectl works) pods and logs, in one archive."""
    if not _SPAN.fullmatch(since):
        raise InvalidInput(f"--since: {since!r} is not a time such as 30m or 2h")
    from tortiectl.connection import connect

    store = connect(ctx, config).store
    said = _of_cluster(store, since, max_logs, [one for one in focus_nodes.split(",") if one])
    click.echo(f"Diags saved to {archive(said, datetime.now().astimezone(), output_dir)}")


def _of_cluster(store: Datastore, since: str, most: int, focus: list[str]) -> Iterator[Said]:
    for kind in Kind:
        yield told(f"resources/{kind.plural}.yaml", partial(_listed, store, kind))
    yield told("ipam/blocks.txt", lambda: _blocks(store))
    kubectl = ("kubectl", "--request-timeout=10s")
    yield run("kubernetes/nodes", (*kubectl, "get", "nodes", "-o", "wide"))
    yield run("kubernetes/pods", (*kubectl, "get", "pods", "-A", "-l", PODS, "-o", "wide"))
    yield run("kubernetes/events", (*kubectl, "get", "events", "-A"))
    where = "{range .items[*]}{.spec.nodeName} {.metadata.namespace} {.metadata.name}{'\\n'}{end}"
    form = f"jsonpath={where}"
    _, text = run("pods", (*kubectl, "get", "pods", "-A", "-l", PODS, "-o", form))
    pods = [line.split() for line in text.decode(errors="replace").splitlines()[1:]]
    pods = sorted((pod for pod in pods if len(pod) == 3), key=lambda pod: pod[0] not in focus)
    span = () if since == "0s" else (f"--since={since}",)
    for node, namespace, name in pods[:most]:
        logs = (*kubectl, "logs", "-n", namespace, name, "--all-containers", *span)
        yield run(f"logs/{node}-{name}", logs)


def _listed(store: Datastore, kind: Kind) -> str:
    from tortiectl.output import Asked, Form, render, wire_of

    listing = store.list(Resources(kind))
    text = render(Asked(kind), [wire_of(record) for record in listing.records], Form("yaml"))
    return "\n".join([text, *(f"# {one}" for one in listing.malformed)])


def _blocks(store: Datastore) -> str:
    from libtortie.model.ipam import Block
    from libtortie.model.keys import Blocks

    return "\n".join(
        f"{one.cidr} {one.affinity or '-'} {sum(i is not None for i in one.allocations)} used"
        for version in (4, 6)
        for record in store.list(Blocks(version)).records
        if isinstance(one := record.value, Block)
    )
