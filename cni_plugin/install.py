"""Put the plugin where a container runtime finds it: the executable, then the configuration.

Every file is written beside its place under a name that runtimes ignore, flushed to disk and
renamed, so that a reader, a crash or a power cut sees the old file or the new one. A runtime
takes the first configuration by name; another network's that would come first is refused, or
set aside by `take_over` and put back by `uninstall`. Files of others are never changed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import click

from cni_plugin import shim
from cni_plugin.types import parse_conf
from libtortie.errors import InvalidInput, NotFound, TortieError

EXECUTABLE = "tortie"
CONFLIST = "10-tortie.conflist"
SET_ASIDE = ".tortie-set-aside"
_RUNTIME_READS = (".conf", ".conflist", ".json")


def install(
    cni_bin_dir: Path,
    conf_dir: Path,
    *,
    socket: str = shim.SOCKET,
    fallback: str = shim.FALLBACK,
    python: str = "/usr/bin/python3",
    settings: Mapping[str, Any] | None = None,
    conflist_name: str = CONFLIST,
    take_over: bool = False,
) -> None:
    """Write executable and conflist; idempotent.

    `settings` are keys for our plugin's object in the conflist (None removes one); the result is
    validated before anything is written. Raises `InvalidInput`, `NotFound` for no interpreter.
    """
    if not os.access(python, os.X_OK):
        raise NotFound(f"{python} is not an executable Python: name one with --python")
    text = conflist(settings or {})
    ahead = networks_ahead(conf_dir, conflist_name)
    if ahead and not take_over:
        raise InvalidInput(
            f"{conf_dir / ahead[0]} sorts before {conflist_name}, so the runtime would use it: "
            "remove it, or let it be set aside with --take-over"
        )
    cni_bin_dir.mkdir(parents=True, exist_ok=True)
    conf_dir.mkdir(parents=True, exist_ok=True)
    replace_file(cni_bin_dir / EXECUTABLE, executable(socket, fallback, python), 0o755)
    replace_file(conf_dir / conflist_name, text, 0o600)
    for name in ahead:
        (conf_dir / name).rename(conf_dir / (name + SET_ASIDE))
    for name in _ours(conf_dir):
        if name != conflist_name:
            (conf_dir / name).unlink()


def uninstall(cni_bin_dir: Path, conf_dir: Path) -> None:
    """Remove what `install` wrote and put back what it set aside; idempotent."""
    for name in _ours(conf_dir):
        (conf_dir / name).unlink()
    for path in conf_dir.glob(f"*{SET_ASIDE}"):
        path.rename(path.with_name(path.name.removesuffix(SET_ASIDE)))
    with suppress(FileNotFoundError):
        (cni_bin_dir / EXECUTABLE).unlink()


def conflist(settings: Mapping[str, Any]) -> bytes:
    """The shipped conflist with some keys of our plugin changed. Raises as `parse_conf`."""
    data = json.loads(resources.files("conf").joinpath(CONFLIST).read_text())
    ours = data["plugins"][0]
    for key, value in settings.items():
        if value is None:
            ours.pop(key, None)
        else:
            ours[key] = value
    parse_conf(json.dumps({**ours, "name": data["name"], "cniVersion": "1.1.0"}).encode())
    return json.dumps(data, indent=2).encode() + b"\n"


def executable(socket: str, fallback: str, python: str) -> bytes:
    """The shim's text with its three constants set. Raises `InvalidInput` for unusable ones."""
    for what, value in (("socket", socket), ("fallback", fallback), ("python", python)):
        if not value.startswith("/") or not value.isprintable() or '"' in value or "\\" in value:
            raise InvalidInput(f"{what}: {value!r} is not an absolute path")
    if len(socket) > 107:
        raise InvalidInput(f"socket: {socket!r} is longer than 107 characters")
    if " " in python or len(python) > 100:
        raise InvalidInput(f"python: {python!r} cannot stand in a #! line")
    lines = Path(shim.__file__).read_text().splitlines(keepends=True)
    lines[0] = f"#!{python} -IS\n"
    changed = {"SOCKET = ": f'SOCKET = "{socket}"\n', "FALLBACK = ": f'FALLBACK = "{fallback}"\n'}
    for number, line in enumerate(lines):
        for start, new in changed.items():
            if line.startswith(start):
                lines[number] = new
    return "".join(lines).encode()


def networks_ahead(conf_dir: Path, conflist_name: str) -> list[str]:
    """Other networks' configuration files that sort before ours."""
    ours = set(_ours(conf_dir))
    return [name for name in _readable(conf_dir) if name < conflist_name and name not in ours]


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically and durably."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _readable(conf_dir: Path) -> list[str]:
    if not conf_dir.is_dir():
        return []
    return sorted(path.name for path in conf_dir.iterdir() if path.suffix in _RUNTIME_READS)


def _ours(conf_dir: Path) -> list[str]:
    """Configuration files whose first plugin is ours, whatever their name."""
    return [name for name in _readable(conf_dir) if _first_type(conf_dir / name) == EXECUTABLE]


def _first_type(path: Path) -> object:
    try:
        data = json.loads(path.read_bytes())
        return data.get("plugins", [data])[0].get("type")
    except (OSError, ValueError, AttributeError, IndexError, KeyError, TypeError):
        return None


def _fallback_path() -> str:
    """The fallback of this installation: beside this interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("tortie-cni")
    return str(beside) if beside.exists() else shutil.which("tortie-cni") or shim.FALLBACK


@click.command()
@click.option("--bin-dir", default="/opt/cni/bin", type=click.Path(path_type=Path))
@click.option("--conf-dir", default="/etc/cni/net.d", type=click.Path(path_type=Path))
@click.option("--socket", default=shim.SOCKET, help="The agent's socket.")
@click.option("--fallback", default=None, help="Executable to run while no agent listens.")
@click.option("--python", default="/usr/bin/python3", help="Interpreter of the executable.")
@click.option("--set", "settings", multiple=True, metavar="KEY=JSON", help="Conflist key.")
@click.option("--take-over", is_flag=True, help="Set aside networks that sort before ours.")
@click.option(
    "--uninstall", "remove", is_flag=True, help="Remove, and put back what was set aside."
)
def main(
    *,
    bin_dir: Path,
    conf_dir: Path,
    socket: str,
    fallback: str | None,
    python: str,
    settings: tuple[str, ...],
    take_over: bool,
    remove: bool,
) -> None:
    """Install the Tortie CNI plugin for this node's container runtime."""
    try:
        if remove:
            uninstall(bin_dir, conf_dir)
            return
        install(
            bin_dir,
            conf_dir,
            socket=socket,
            fallback=fallback or _fallback_path(),
            python=python,
            settings=dict(_setting(item) for item in settings),
            take_over=take_over,
        )
    except (TortieError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _setting(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise InvalidInput(f"--set {text}: want KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


if __name__ == "__main__":
    main()
