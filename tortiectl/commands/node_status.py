"""`tortiectl node status` and `tortiectl node checksystem`."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from libtortie.access import NODE_FILE, parse_yaml, present, text_of
from libtortie.errors import InvalidInput, TortieError
from libtortie.wording import visible
from tortiectl.bird_status import HEADINGS, Session, ask, sessions
from tortiectl.options import examples, node_config_option, text_option
from tortiectl.system_check import Mark, Sources, check
from tortiectl.text_tables import boxed

RUN_DIR = "/run/tortie"


@click.command(epilog=examples("tortiectl node status"))
@node_config_option
@text_option(
    "--socket",
    "control",
    metavar="PATH",
    said="BIRD's control socket.  [default: as the agent's configuration says]",
)
@click.pass_context
def status(ctx: click.Context, *, config: str, control: str) -> None:
    """Show whether the agent and BIRD run on this node, and its BGP sessions.

    Exit status 1 when one of them does not, with the cause on standard error.
    """
    places = _places(config)
    agent = _agent_problem(places.agent)
    click.echo("Tortie process is running." if not agent else "Tortie process is not running.")
    try:
        found = list(sessions(ask(control or places.bird, "show protocols all")))
    except TortieError as error:
        if agent:
            click.echo(visible(agent), err=True)
        raise TortieError(f"BIRD's status is not known: {error}") from error
    for version in (4, 6):
        click.echo(f"\nIPv{version} BGP status")
        _show([one for one in found if _version(one) == version], version)
    if agent:
        raise TortieError(agent)


class _Places:
    """Where a node's daemons listen."""

    def __init__(self, run_dir: str, bird: str) -> None:
        self.agent = str(Path(run_dir) / "cni.sock")
        self.bird = bird or str(Path(run_dir) / "bird.ctl")


def _places(config: str) -> _Places:
    file = Path(config or NODE_FILE)
    if not config and not present(file):
        return _Places(RUN_DIR, "")
    body = parse_yaml(text_of(file), str(file)) or {}
    if not isinstance(body, dict):
        raise InvalidInput(f"{file}: expected a mapping of keys")
    bird = body.get("bird")
    own = bird.get("control_socket") if isinstance(bird, dict) else ""
    return _Places(str(body.get("run_dir") or RUN_DIR), str(own or ""))


def _agent_problem(path: str) -> str:
    """Why the agent does not listen; empty: it does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(path)
        except FileNotFoundError:
            return f"{path}: there is no such socket: the agent has not been started here"
        except ConnectionRefusedError:
            return f"{path}: the agent that made it has ended"
        except PermissionError:
            return f"{path}: permission denied: ask as root"
        except OSError as error:
            return f"{path}: {error.strerror or 'no answer: the agent hangs'}"
    return ""


def _version(session: Session) -> int:
    return session.address.version if session.address is not None else 4


def _show(found: list[Session], version: int) -> None:
    if not found:
        click.echo(f"No IPv{version} peers found.")
        return
    click.echo(boxed(HEADINGS, [one.cells() for one in found]))


@click.command(epilog=examples("tortiectl node checksystem"))
@text_option(
    "-f",
    "--kernel-config",
    metavar="FILE",
    said="The kernel's configuration.  [default: /proc/config.gz, else /boot/config-RELEASE]",
)
@click.pass_context
def checksystem(ctx: click.Context, kernel_config: str) -> None:
    """Check that this node's kernel and programs are what the agent needs.

    Exit status 1 when something it needs is not there.
    """
    group = ""
    failed = []
    for one in check(Sources.here(kernel_config)):
        if one.group != group:
            group = one.group
            click.echo(f"Checking {group}...")
        click.echo(f"    {visible(one.name):<24} {one.mark}")
        if one.mark is Mark.FAIL:
            failed.append(one.name)
    if failed:
        raise TortieError(f"this node lacks {', '.join(failed)}")
    click.echo("System meets the requirements.")
