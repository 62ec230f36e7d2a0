"""Put the rules into the kernel: one nft transaction per change, old rules kept on any failure.

The first apply replaces our rules whole, which the kernel does in one step: each packet meets
the old rules or the new ones. Later ones send only the difference. Every commit to nftables, by
anyone, raises the kernel's generation by one; when it is not where our last commit left it, the
tables are read and, unless they are as we left them, replaced whole. Other tables are never read.

What they look like is read only when they have been quiet for a while, for that takes two `nft`
processes and is long with many pods; if somebody commits before, ours are replaced.

One `nft` process per change costs about 4 ms here (15 when chains are deleted, which nobody waits
for). libnftables in this process would save 3 of them and put a C parser, without a deadline, into
the agent.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping

from felix_shim.drivers.nftables_change import TABLE
from felix_shim.drivers.nftables_text import (
    FIRST_TAG,
    free_tag,
    render,
    render_anew,
    render_check,
    render_delta,
    render_sweep,
)
from felix_shim.policy import PolicySet
from felix_shim.policy_sets import Elements
from felix_shim.rules import Chain, SetKey
from libtortie.deadline import Deadline, communicate, given
from libtortie.errors import KernelError, first_line

__all__ = ["Nftables", "read_generation", "render", "render_delta"]

QUIET_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_NETLINK_NETFILTER = 12
_NFT_MSG_GETGEN = (10 << 8) | 16  # NFNL_SUBSYS_NFTABLES
_NFTA_GEN_ID = 1
_NLM_F_REQUEST = 1


class Nftables:
    """Owner of `table inet tortie` and `table arp tortie` in this thread's network namespace.

    Not thread-safe: one lane owns it. `deadline` bounds each nft process, in seconds; `quiet` is
    how long (s) there must have been no change before the tables are read.
    """

    def __init__(
        self,
        *,
        binary: str = "nft",
        deadline: float = 10.0,
        quiet: float = QUIET_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._binary = binary
        self._deadline = deadline
        self._quiet = quiet
        self._monotonic = monotonic
        self._changed = 0.0
        self._applied: PolicySet | None = None
        self._tag = FIRST_TAG
        self._generation: int | None = None
        self._listing: str | None = None
        self._healthy = False

    def ready(self) -> bool:
        """Whether the kernel has the rules of the last apply; False after a failed one."""
        return self._healthy

    def apply(self, desired: PolicySet) -> None:
        """Make the kernel's rules these; also the periodic check that they still are.

        Raises `KernelError`; the kernel then has the rules it had before.
        """
        self._healthy = False
        generation = read_generation()
        if self._applied is None or not self._intact(generation):
            self._replace(desired, generation)
        elif delta := render_delta(self._applied, desired, self._tag):
            self._change(delta, desired, generation)
        elif self._listing is None and self._generation == generation and self._is_quiet():
            self._remember_listing(generation)
        self._healthy = True

    def check(self, chains: Mapping[str, Chain], sets: Mapping[SetKey, Elements]) -> str:
        """Why the kernel would refuse these alone, in a table that is not made; empty: it takes
        them. Chains may lead to each other and to those of the directions (`allowed-…`)."""
        try:
            self._run("-c", "-f", "-", text=render_check(chains, sets))
        except KernelError as error:
            return first_line(error)
        return ""

    def _intact(self, generation: int) -> bool:
        """Whether our tables are as we left them, although others may have committed since."""
        if generation == self._generation:
            return True
        if self._listing is None:
            return False
        try:
            same = self._read_tables() == self._listing
        except KernelError:
            return False
        if same:
            self._generation = generation
        return same

    def _is_quiet(self) -> bool:
        return self._monotonic() - self._changed >= self._quiet

    def _remember_listing(self, generation: int) -> None:
        """Keep what our tables look like, provided nobody committed while we read them."""
        listing = self._read_tables()
        if read_generation() == generation:
            self._listing = listing

    def _change(self, delta: str, desired: PolicySet, generation: int) -> None:
        try:
            self._commit(delta, desired, generation)
        except KernelError:  # the tables are not what we thought: replace them whole
            self._replace(desired, read_generation())

    def _replace(self, desired: PolicySet, generation: int) -> None:
        """New rules over whatever is there, then, when no packet can be in the old ones any more,
        the removal of what they used."""
        present = {family: self._names(family) for family in ("inet", "arp")}
        tag = free_tag(present)
        try:
            self._commit(render(desired, tag), desired, generation)
        except KernelError:  # base chains of another kind, say
            present = {}
            self._commit(render_anew(desired, tag), desired, read_generation())
        self._tag = tag
        if sweep := render_sweep(present, desired, tag):
            self._commit(sweep, desired, read_generation())

    def _names(self, family: str) -> str:
        """A table's listing without elements; empty when there is no such table."""
        try:
            return self._run("-t", "list", "table", family, TABLE)
        except KernelError:
            return ""

    def _commit(self, text: str, desired: PolicySet, generation: int) -> None:
        """Run one transaction. What the kernel has is unknown until it succeeded."""
        self._applied, self._generation, self._listing = None, None, None
        self._run("-f", "-", text=text)
        self._applied, self._changed = desired, self._monotonic()
        now = read_generation()
        if now == generation + 1:  # ours was the only commit
            self._generation = now

    def _read_tables(self) -> str:
        """Both tables as text, without counters. One call each: nft 1.0.6 cannot list tables of
        two families in one go."""
        return "".join(self._run("-s", "list", "table", one, TABLE) for one in ("inet", "arp"))

    def _run(self, *arguments: str, text: str = "") -> str:
        try:
            with given(text) as file:
                process = subprocess.Popen(
                    [self._binary, *arguments],
                    stdin=file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            stdout, stderr = communicate(process, Deadline(self._deadline))
        except subprocess.TimeoutExpired as error:
            raise KernelError(f"nft did not finish within {self._deadline:g} s") from error
        except OSError as error:
            raise KernelError(f"cannot run {self._binary}: {error}") from error
        if process.returncode != 0:
            raise KernelError(f"nft: {first_line(KernelError(stderr))}")
        return stdout


def read_generation() -> int:
    """The kernel's count of nftables commits in this network namespace. Raises `KernelError`."""
    request = struct.pack("=IHHII4x", 20, _NFT_MSG_GETGEN, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as sock:
            sock.sendto(request, (0, 0))
            reply = _answer(sock, Deadline(_ANSWER_SECONDS))
    except OSError as error:
        raise KernelError(f"nftables generation: {error}") from error
    offset = 20
    while offset + 8 <= len(reply):
        length, kind = struct.unpack_from("=HH", reply, offset)
        if kind == _NFTA_GEN_ID:
            return int(struct.unpack_from(">I", reply, offset + 4)[0])
        offset += max(4, (length + 3) & ~3)
    raise KernelError("nftables generation: the kernel's answer holds none")


def _answer(sock: socket.socket, deadline: Deadline) -> bytes:
    """What comes in time. Raises OSError."""
    while wait := deadline.step():
        sock.settimeout(wait)
        try:
            return sock.recv(4096)
        except TimeoutError:
            continue
    raise TimeoutError(f"no answer within {deadline.seconds:g} s")
