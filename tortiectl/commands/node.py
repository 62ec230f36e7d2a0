"""`tortiectl node`: the group; put the CNI plugin on this node, take it away."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from libtortie.datastore import gojson
from libtortie.errors import InvalidInput
from libtortie.wording import NODE_FILE
from tortiectl.lazy import Entry, LazyGroup
from tortiectl.options import examples, node_config_option, not_empty

if TYPE_CHECKING:
    from cni_plugin.install import Kubeconfig
    from libtortie.access import Access

COMMANDS = {
    "checksystem": Entry(
        "tortiectl.commands.node_status:checksystem", "Check this node's kernel and programs."
    ),
    "diags": Entry("tortiectl.commands.diags:node_diags", "Collect diagnostics of this node."),
    "drain-plan": Entry(
        "tortiectl.commands.drain_plan:drain_plan", "Show what a drain does to a node's VMs."
    ),
    "install": Entry("tortiectl.commands.node:install", "Install the CNI plugin."),
    "status": Entry("tortiectl.commands.node_status:status", "Show agent and BGP sessions."),
    "uninstall": Entry("tortiectl.commands.node:uninstall", "Remove the CNI plugin."),
}

_root = click.option(
    "--root",
    default="/",
    metavar="DIR",
    callback=not_empty,
    help="Where the node's file system is mounted.  [default: /]",
)
_bin_dir = click.option(
    "--bin-dir",
    default="/opt/cni/bin",
    show_default=True,
    metavar="DIR",
    callback=not_empty,
    help="Where the runtime looks for plugins.",
)
_conf_dir = click.option(
    "--conf-dir",
    default="/etc/cni/net.d",
    show_default=True,
    metavar="DIR",
    callback=not_empty,
    help="Where the runtime looks for networks.",
)


@click.group(cls=LazyGroup, entries=COMMANDS, name="node")
def node() -> None:
    """Look into this node, install the CNI plugin or remove it."""


@click.command(epilog=examples("tortiectl node install", "tortiectl node install --takeover"))
@_root
@_bin_dir
@_conf_dir
@click.option(
    "--conflist-name",
    default="10-tortie.conflist",
    show_default=True,
    metavar="NAME",
    callback=not_empty,
    help="A runtime takes the first file by name.",
)
@node_config_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=JSON",
    help="Key of the plugin's configuration; KEY=null removes one.",
)
@click.option(
    "--shim",
    type=click.Choice(["auto", "native", "python"]),
    default="auto",
    show_default=True,
    help="The executable; auto: the native one, if it was built.",
)
@click.option(
    "--fallback",
    default="",
    metavar="PATH",
    callback=not_empty,
    help="What to run while no agent listens.  [default: tortie-cni beside this program, with "
    "--root /opt/tortie/bin/tortie-cni]",
)
@click.option(
    "--python",
    default="/usr/bin/python3",
    show_default=True,
    metavar="PATH",
    callback=not_empty,
    help="Interpreter of the Python executable.",
)
@click.option("--takeover", is_flag=True, help="Set aside networks that sort before ours.")
def install(
    *,
    root: str,
    bin_dir: str,
    conf_dir: str,
    conflist_name: str,
    config: str,
    settings: tuple[str, ...],
    shim: str,
    fallback: str,
    python: str,
    takeover: bool,
) -> None:
    """Write executables, kubeconfig and the network's configuration; may be repeated.

    Datastore, API and the agent's socket are as the agent's configuration says. A network of others
    that a runtime would take instead is refused, or set aside with --takeover.
    """
    from cni_plugin import install as installing
    from cni_plugin.conflist import conflist, settings_of
    from cni_plugin.program import Front, program
    from cni_plugin.shim import SOCKET

    access = _access(config)
    chosen = settings_of(access) if access else {}
    chosen |= dict(_setting(text) for text in settings)
    network = conflist(chosen)
    installing.install(
        _below(root, bin_dir),
        _below(root, conf_dir),
        program=program(
            Front(shim),
            socket=chosen.get("agent_socket") or SOCKET,
            fallback=fallback or _fallback(root),
            python=python,
            root=Path(root),
        ),
        conflist=network,
        kubeconfig=_kubeconfig(root, access),
        conflist_name=conflist_name,
        take_over=takeover,
    )


@click.command(epilog=examples("tortiectl node uninstall"))
@_root
@_bin_dir
@_conf_dir
@node_config_option
def uninstall(*, root: str, bin_dir: str, conf_dir: str, config: str) -> None:
    """Remove what `install` wrote and put back what it set aside; may be repeated.

    Stop the agent first: it would write the plugin's kubeconfig again. Pods that are attached
    keep their network until they end.
    """
    from cni_plugin import install as installing

    access = _access(config)
    kept = access.cni_kubeconfig if access else ""
    left = installing.uninstall(
        _below(root, bin_dir),
        _below(root, conf_dir),
        _below(root, kept, follow=False) if kept else None,
    )
    for line in left:
        click.echo(line, err=True)


def _access(config: str) -> Access | None:
    """What the agent's configuration says; None without one. Raises `InvalidInput`."""
    from libtortie.access import read_access

    access = read_access(Path(config or NODE_FILE))
    if access is None and config:
        raise InvalidInput(f"{config}: no such file")
    return access


def _kubeconfig(root: str, access: Access | None) -> Kubeconfig | None:
    """The kubeconfig to write for the plugin, or None. Raises `InvalidInput`."""
    if access is None or not access.cni_kubeconfig:
        return None
    from cni_plugin.install import Kubeconfig
    from cni_plugin.kubeconfig import render
    from libtortie.kube.credentials import load

    api = access.kube()
    if api is None:
        raise InvalidInput("cni_kubeconfig needs kubeconfig or k8s_api_root")
    return Kubeconfig(_below(root, access.cni_kubeconfig, follow=False), render(load(api)))


def _below(root: str, path: str, *, follow: bool = True) -> Path:
    """A path of the node's as it is reached from here. Raises `InvalidInput`."""
    from cni_plugin.rooted import below

    return below(Path(root), path, follow=follow)


def _setting(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidInput(f"--set {text}: want KEY=JSON")
    try:
        return key, gojson.loads(value.encode())
    except ValueError:
        return key, value


def _fallback(root: str) -> str:
    """The fallback of this installation, or where a node that is not ours may have one."""
    from cni_plugin import shim

    if Path(root) != Path("/"):
        return shim.FALLBACK
    beside = Path(sys.executable).with_name("tortie-cni")
    return str(beside) if beside.exists() else shutil.which("tortie-cni") or shim.FALLBACK
