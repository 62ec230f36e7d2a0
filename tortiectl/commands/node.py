"""`tortiectl node`: the group; put the CNI plugin on this node, take it away."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from libtortie.datastore import gojson
from libtortie.errors import InvalidInput
from libtortie.wording import NODE_FILE
from tortiectl.lazy import Entry, LazyGroup
from tortiectl.options import examples, node_config_option, not_empty

if TYPE_CHECKING:
    from cni_plugin.install import Kubeconfig, Runtime
    from cni_plugin.units import Units
    from libtortie.access import Access

C = TypeVar("C", bound="Callable[..., Any] | click.Command")
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


def _directory(option: str, default: str, text: str) -> Callable[[C], C]:
    return click.option(
        option, default=default, show_default=True, metavar="DIR", callback=not_empty, help=text
    )


_root = _directory("--root", "/", "Where the node's file system is mounted.")
_bin_dir = _directory("--bin-dir", "/opt/cni/bin", "Where the runtime looks for plugins.")
_conf_dir = _directory("--conf-dir", "/etc/cni/net.d", "Where the runtime looks for networks.")
_prefix = _directory("--prefix", "/opt/tortie", "Where versions of a bundle stand side by side.")
_unit_dir = _directory("--unit-dir", "/etc/systemd/system", "Where systemd's units are.")


@click.group(cls=LazyGroup, entries=COMMANDS, name="node")
def node() -> None:
    """Look into this node, install the CNI plugin or remove it."""


@click.command(
    epilog=examples(
        "tortiectl node install",
        "tortiectl node install --root /host --bundle /opt/tortie/bundle",
        "tortiectl node install --bundle ./bundle --systemd",
    )
)
@_root
@_bin_dir
@_conf_dir
@_prefix
@_unit_dir
@click.option("--systemd", is_flag=True, help="Write systemd's units, too; they are not enabled.")
@click.option(
    "--bundle",
    "source",
    default="",
    metavar="DIR",
    callback=not_empty,
    help="Bring this bundle, interpreter and all, to the node for the fallback.",
)
@click.option(
    "--keep",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="Versions of a bundle that stay, the one in use among them.",
)
@click.option(
    "--conflist-name",
    default="10-tortie.conflist",
    show_default=True,
    metavar="NAME",
    callback=not_empty,
    help="A runtime takes the first file by name.",
)
@click.option(
    "--conflist",
    "template",
    default="",
    metavar="FILE",
    callback=not_empty,
    help="Conflist to install in place of the shipped one, with our plugin in it.",
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
    "--root or --bundle bin/tortie-cni of --prefix]",
)
@click.option(
    "--python",
    default="",
    metavar="PATH",
    callback=not_empty,
    help="Interpreter of the Python executable.  [default: /usr/bin/python3, with --bundle "
    "bin/python3 of --prefix]",
)
@click.option("--takeover", is_flag=True, help="Set aside networks that sort before ours.")
def install(
    *,
    root: str,
    bin_dir: str,
    conf_dir: str,
    prefix: str,
    unit_dir: str,
    systemd: bool,
    source: str,
    keep: int,
    conflist_name: str,
    template: str,
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
    network = conflist(chosen, Path(template) if template else None)
    runtime = _runtime(root, prefix, source, keep)
    there = runtime and not python
    units = _units(root, unit_dir, prefix, source) if systemd else None
    if units:
        units.check()
    installing.install(
        _below(root, bin_dir),
        _below(root, conf_dir),
        program=program(
            Front(shim),
            socket=chosen.get("agent_socket") or SOCKET,
            fallback=fallback or _fallback(root, prefix, source),
            python=python or (f"{prefix}/bin/python3" if source else "/usr/bin/python3"),
            root=Path(root),
            interpreter=Path(source, "bin/python3") if there else None,
        ),
        conflist=network,
        kubeconfig=_kubeconfig(root, access),
        runtime=runtime,
        conflist_name=conflist_name,
        take_over=takeover,
    )
    if units:
        units.write()


@click.command(epilog=examples("tortiectl node uninstall"))
@_root
@_bin_dir
@_conf_dir
@_prefix
@_unit_dir
@node_config_option
def uninstall(
    *, root: str, bin_dir: str, conf_dir: str, prefix: str, unit_dir: str, config: str
) -> None:
    """Remove what `install` wrote and put back what it set aside; may be repeated.

    Stop the agent first: it would write the plugin's kubeconfig again. Pods that are attached
    keep their network until they end.
    """
    from cni_plugin import install as installing
    from cni_plugin.bundle import Home
    from cni_plugin.units import Units

    access = _access(config)
    kept = access.cni_kubeconfig if access else ""
    left = Units(_below(root, unit_dir)).remove()
    left += installing.uninstall(
        _below(root, bin_dir),
        _below(root, conf_dir),
        _below(root, kept, follow=False) if kept else None,
        Home(_below(root, prefix)),
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


def _runtime(root: str, prefix: str, source: str, keep: int) -> Runtime | None:
    """The bundle and its place on the node, if one is to be brought. Raises `InvalidInput`."""
    if not source:
        return None
    from cni_plugin.bundle import Home, read_bundle
    from cni_plugin.install import Runtime

    return Runtime(read_bundle(Path(source), os.uname().machine), Home(_below(root, prefix)), keep)


def _units(root: str, unit_dir: str, prefix: str, source: str) -> Units:
    """The units, for the programs of the bundle or, without one, those beside this one."""
    from cni_plugin.units import Units

    beside = Path(sys.executable).with_name("tortie-node").parent
    if not source and not (beside / "tortie-node").exists():
        raise InvalidInput(f"no tortie-node in {beside}: name a bundle with --bundle")
    return Units(_below(root, unit_dir), f"{prefix}/bin" if source else str(beside))


def _fallback(root: str, prefix: str, source: str) -> str:
    """The fallback of this installation, or where a node that is not ours may have one."""
    from cni_plugin import shim

    if source or Path(root) != Path("/"):
        return f"{prefix}/bin/tortie-cni"
    beside = Path(sys.executable).with_name("tortie-cni")
    return str(beside) if beside.exists() else shutil.which("tortie-cni") or shim.FALLBACK
