"""Whether a node's kernel and programs are what the agent needs. Pure, but for `Sources.here`.

A module is OK where it is loaded, built in, or said to be there by the kernel's own configuration;
FAIL where that says that it is not; SKIP where nothing says anything.
"""

from __future__ import annotations

import gzip
import platform
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from libtortie.errors import InvalidInput

LEAST_KERNEL = (5, 10)
"""nftables with what the agent's table says of it."""
NEEDED = {
    "nf_tables": "CONFIG_NF_TABLES",
    "nf_tables_inet": "CONFIG_NF_TABLES_INET",
    "nf_conntrack": "CONFIG_NF_CONNTRACK",
    "nf_conntrack_netlink": "CONFIG_NF_CT_NETLINK",
    "nft_ct": "CONFIG_NFT_CT",
    "nft_masq": "CONFIG_NFT_MASQ",
    "nft_nat": "CONFIG_NFT_NAT",
    "veth": "CONFIG_VETH",
    "af_packet": "CONFIG_PACKET",
}
OPTIONAL = {"ipip": "CONFIG_NET_IPIP", "vxlan": "CONFIG_VXLAN", "wireguard": "CONFIG_WIREGUARD"}
"""Used by pools and settings that ask for them."""
PROGRAMS = ("nft", "bird", "ip")


class Mark(StrEnum):
    """What became of a check."""

    OK = "OK"
    SKIP = "SKIP"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Sources:
    """What is known of a kernel. `config` is empty where nobody has it."""

    release: str
    loaded: frozenset[str] = frozenset()
    built_in: frozenset[str] = frozenset()
    config: Mapping[str, str] = field(default_factory=dict)
    which: Callable[[str], str | None] = shutil.which

    @staticmethod
    def here(config: str = "") -> Sources:
        """This machine's. `config` is a file with the kernel's configuration."""
        release = platform.release()
        modules = Path("/lib/modules") / release
        return Sources(
            release,
            frozenset(line.split()[0] for line in _lines(Path("/proc/modules"))),
            frozenset(_module(line) for line in _lines(modules / "modules.builtin")),
            _config(config, release),
        )


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    group: str
    name: str
    mark: Mark


def check(sources: Sources) -> tuple[Check, ...]:
    """Every check, in order."""
    found = [Check("kernel version", sources.release, _version(sources.release))]
    found += [
        Check("kernel modules", name, _state(sources, name, option, needed=True))
        for name, option in NEEDED.items()
    ]
    found += [
        Check("kernel modules (optional)", name, _state(sources, name, option, needed=False))
        for name, option in OPTIONAL.items()
    ]
    found += [
        Check("programs", name, Mark.OK if sources.which(name) else Mark.FAIL) for name in PROGRAMS
    ]
    return tuple(found)


def parse_config(text: str) -> dict[str, str]:
    """The options of a kernel's configuration that are set."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(CONFIG_\w+)=(.*)", line.strip())
        if match:
            found[match[1]] = match[2]
    return found


def _version(release: str) -> Mark:
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        return Mark.SKIP
    return Mark.OK if (int(match[1]), int(match[2])) >= LEAST_KERNEL else Mark.FAIL


def _state(sources: Sources, name: str, option: str, *, needed: bool) -> Mark:
    if name in sources.loaded or name in sources.built_in or option in sources.config:
        return Mark.OK
    return Mark.FAIL if needed and sources.config else Mark.SKIP


def _module(path: str) -> str:
    return Path(path).name.partition(".")[0].replace("-", "_")


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.strip()]
    except OSError:
        return []


def _config(file: str, release: str) -> dict[str, str]:
    if file:
        try:
            return parse_config(_text(Path(file)))
        except (OSError, EOFError) as error:
            raise InvalidInput(f"{file}: {error}") from error
    for path in (Path("/proc/config.gz"), Path(f"/boot/config-{release}")):
        try:
            return parse_config(_text(path))
        except OSError:
            continue
    return {}


def _text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")
