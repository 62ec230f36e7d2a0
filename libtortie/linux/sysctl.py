"""Values under /proc/sys, in the calling thread's network namespace.

Names are paths, `net/ipv4/conf/eth0.5/rp_filter`: dots are part of interface names. Only
`net/` differs between network namespaces.
"""

from __future__ import annotations

import errno
from pathlib import Path

from libtortie.errors import InvalidInput, KernelError, NotFound

ROOT = Path("/proc/sys")


def read_sysctl(name: str) -> str:
    """The value, stripped. Raises NotFound, KernelError, InvalidInput for no path below ROOT."""
    path = path_of(name)
    try:
        return path.read_text().strip()
    except OSError as error:
        raise _translated(error, "read", name) from error


def write_sysctl(name: str, value: str) -> None:
    """Set a value; no write when it has that value already. Raises as `read_sysctl`."""
    path = path_of(name)
    if read_sysctl(name).split() == value.split():
        return
    try:
        with path.open("w") as file:
            file.write(value)
    except OSError as error:
        raise _translated(error, f"write {value!r} to", name) from error


def path_of(name: str) -> Path:
    """The file of a sysctl. Raises InvalidInput for a name that would leave /proc/sys."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(f"{name!r} is no sysctl path such as net/ipv4/ip_forward")
    return ROOT.joinpath(*parts)


def _translated(error: OSError, verb: str, name: str) -> KernelError | NotFound:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
        return NotFound(f"no sysctl {name} in this namespace")
    return KernelError(f"cannot {verb} sysctl {name}: {error.strerror}")
