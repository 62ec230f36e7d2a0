"""Values under /proc/sys, in the calling thread's network namespace.

Names are paths, `net/ipv4/conf/eth0.5/rp_filter`: dots are part of interface names. Only
`net/` differs between network namespaces.
"""

from __future__ import annotations

import errno
import os

from libtortie.errors import InvalidInput, KernelError, NotFound

ROOT = "/proc/sys"
_LONGEST = 4096
"""Bytes of a value; the kernel gives no more than a page at once."""


def read_sysctl(name: str) -> str:
    """The value, stripped. Raises NotFound, KernelError, InvalidInput for no path below ROOT."""
    path = path_of(name)
    try:
        return _read(path).decode().strip()
    except OSError as error:
        raise _translated(error, "read", name) from error


def write_sysctl(name: str, value: str) -> None:
    """Set a value; no write when it has that value already. Raises as `read_sysctl`.

    A pod's ADD does this ten times, so without the layers of `open`.
    """
    path = path_of(name)
    if read_sysctl(name).split() == value.split():
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _translated(error, f"write {value!r} to", name) from error


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LONGEST)
    finally:
        os.close(descriptor)


def path_of(name: str) -> str:
    """The file of a sysctl. Raises InvalidInput for a name that would leave /proc/sys."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(f"{name!r} is no sysctl path such as net/ipv4/ip_forward")
    return f"{ROOT}/{name}"


def _translated(error: OSError, verb: str, name: str) -> KernelError | NotFound:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV):
        return NotFound(f"no sysctl {name} in this namespace")
    return KernelError(f"cannot {verb} sysctl {name}: {error.strerror}")
