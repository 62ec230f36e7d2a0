"""Running the machine's own tools (`ip`, `nsenter`, `bird`), one error form for all of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from libtortie.errors import TortieError

NEEDED = (
    *("ip", "bridge", "nsenter", "unshare", "mount", "umount", "sysctl"),
    *("bird", "birdc", "nft", "openssl"),
)


class LabError(TortieError):
    """The lab cannot do what was asked; the text names the command or the object."""


def missing_tools() -> tuple[str, ...]:
    """Tools the lab needs and does not find."""
    return tuple(tool for tool in NEEDED if shutil.which(tool) is None)


def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a tool and return its output. Raises `LabError` with the tool's own last words."""
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=None if env is None else dict(env),
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(argv)}: no end after {timeout:g} s") from error
    except OSError as error:
        raise LabError(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()
        raise LabError(f"{' '.join(argv)}: exit {done.returncode}: {words}")
    return done.stdout


def ip_batch(netns: str, lines: Iterable[str]) -> None:
    """Run `ip` commands inside a namespace, in order, stopping at the first that fails."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        run(["ip", "-netns", netns, "-batch", "-"], stdin=text)
    except LabError as error:
        raise LabError(f"{error} (batch was: {text.strip()!r})") from error


def set_sysctls(netns: str, settings: Mapping[str, str]) -> None:
    """Set `net.*` values of a namespace."""
    if settings:
        pairs = [f"{name}={value}" for name, value in settings.items()]
        run(["nsenter", f"--net=/run/netns/{netns}", "sysctl", "-q", "-w", *pairs])
