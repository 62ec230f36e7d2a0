"""Put the rules into the kernel: one transaction per change, old rules kept on any failure.

The first apply replaces our rules whole, as text for the `nft` program, which the kernel does in
one step: each packet meets the old rules or the new ones. Later ones send only the difference, as
netlink messages (see `docs/adr/0012`): `nft` reads what is in the kernel before it changes rules,
100 ms with 10,000 elements; a message costs what it says. No transaction is sent by both ways.

Every commit to nftables, by anyone, raises the kernel's generation by one, and a difference names
the generation that it was made for. The kernel also tells whose tables each commit touched. When
others' commits touched ours, or may have, ours are replaced whole; else they cost nothing.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from felix_shim.drivers.nftables_change import Step, stages, steps
from felix_shim.drivers.nftables_expressions import NeedsNft
from felix_shim.drivers.nftables_messages import Batch, batch
from felix_shim.drivers.nftables_rules import TABLE
from felix_shim.drivers.nftables_text import (
    FIRST_TAG,
    free_tag,
    render,
    render_anew,
    render_check,
    render_delta,
    render_no_sets,
    render_sets,
    render_steps,
    render_sweep,
)
from felix_shim.policy import PolicySet
from felix_shim.policy_blame import RuleRefused
from felix_shim.policy_sets import Elements
from felix_shim.rules import Chain, SetKey
from libtortie.deadline import Deadline, run
from libtortie.errors import KernelError, first_line
from libtortie.linux.nft_batch import (
    BatchRefused,
    FateUnknown,
    GenerationMoved,
    NftSocket,
    next_generation,
    read_generation,
)
from libtortie.linux.nft_watch import TableWatch
from libtortie.linux.settled import Settled

__all__ = ["Nftables", "read_generation", "render", "render_delta"]

_ATTEMPTS = 5
"""Of a change that others' commits keep overtaking."""
_BYTES_A_SECOND = 10_000
"""Of nft text, at the very least; 500,000 where the processor is nft's alone."""
_LINE = re.compile(r"^/dev/stdin:(\d+):")
_COMMAND = re.compile(r"(?:add rule inet \S+ |\tchain )(\S+) ")


class _Crashed(RuleRefused):
    """`nft` did not survive what it was given, and may have sent it to the kernel or not."""


class Nftables:
    """Owner of `table inet tortie` and `table arp tortie` in this thread's network namespace.

    Not thread-safe: one lane owns it. `deadline` bounds each nft process (s), and grows with what
    it is given: on a node whose processors are busy elsewhere, a large text takes long.
    """

    def __init__(self, *, binary: str = "nft", deadline: float = 10.0) -> None:
        self._binary = binary
        self._deadline = deadline
        self._socket = NftSocket()
        self._watch = TableWatch(TABLE)
        self._settled = Settled(deadline)
        self._applied: PolicySet | None = None
        self._tag = FIRST_TAG
        self._generation: int | None = None
        self._refused = False
        self._healthy = False

    def ready(self) -> bool:
        """Whether the kernel has the rules of the last apply; False after a failed one."""
        return self._healthy

    def apply(self, desired: PolicySet) -> None:
        """Make the kernel's rules these; also the periodic check that they still are.

        Raises `KernelError`; the kernel then has the rules it had before.
        """
        self._healthy = False
        generation = self._socket.generation()
        if self._applied is None or not self._intact(generation):
            self._replace(desired, generation)
        else:
            self._go_on(self._applied, desired, generation)
        self._healthy, self._refused = True, False

    def check(self, chains: Mapping[str, Chain], sets: Mapping[SetKey, Elements]) -> str:
        """Why the kernel would refuse these alone, in a table that is not made; empty: it takes
        them. Chains may lead to each other and to where allowed packets go."""
        try:
            self._run("-c", "-f", "-", text=render_check(chains, sets))
        except KernelError as error:
            return first_line(error)
        return ""

    def _intact(self, generation: int) -> bool:
        """Whether our tables are as we left them, although others may have committed since."""
        if self._generation is None or not self._watch.untouched(self._generation, generation):
            return False
        self._generation = generation
        return True

    def _go_on(self, before: PolicySet, desired: PolicySet, generation: int) -> None:
        """From what the kernel has, stage by stage, unless everything had to be replaced."""
        for state in stages(before, desired):
            if self._applied is not before:
                return
            if some := steps(before, state, self._tag):
                self._change(some, state, desired, generation)
                generation = self._generation or self._socket.generation()
            before = state

    def _change(
        self, some: tuple[Step, ...], state: PolicySet, desired: PolicySet, generation: int
    ) -> None:
        """The difference to a state on the way to what is desired. When the kernel refuses a rule
        of it, `nft` is to say what is wrong; when it refuses anything else, or twice, the tables
        are not what we thought."""
        suspect = ""
        try:
            found = batch(some, state, self._tag)
            self._send(found, state, generation)
            return
        except NeedsNft:
            pass
        except RuleRefused as error:
            suspect = error.chain
            if not suspect or self._refused:
                self._replace(desired, self._socket.generation())
                return
        except KernelError:
            self._replace(desired, self._socket.generation())
            return
        self._refused = True
        try:
            self._commit(render_steps(some, state, self._tag), state, self._socket.generation())
        except RuleRefused as error:
            raise RuleRefused(str(error), error.chain or suspect) from error

    def _send(self, found: Batch, desired: PolicySet, generation: int) -> None:
        """One transaction of messages; anew while others' commits overtake it."""
        for _ in range(_ATTEMPTS):
            self._settled.await_all()
            try:
                after = self._socket.commit(found.messages, generation)
            except GenerationMoved:
                generation = self._socket.generation()
                if not self._intact(generation):
                    raise
                continue
            except BatchRefused as error:
                raise RuleRefused(str(error), found.chain_at(error.index)) from error
            except FateUnknown:
                self._settled.begin()
                raise
            self._settled.begin()
            self._applied, self._generation = desired, after
            return
        raise GenerationMoved(f"others committed {_ATTEMPTS} times before our change")

    def _replace(self, desired: PolicySet, generation: int) -> None:
        """New sets, then new rules over whatever is there, then, when no packet can be in the old
        ones any more, the removal of what they used."""
        present = {family: self._names(family) for family in ("inet", "arp")}
        tag = free_tag(present)
        try:
            if sets := render_sets(desired, tag):
                self._run_alone(sets)
                generation = next_generation(generation)
            self._commit(render(desired, tag, prepared=bool(sets)), desired, generation)
        except RuleRefused:  # base chains of another kind, say
            present = {}
            try:
                self._commit(render_anew(desired, tag), desired, self._socket.generation())
            except RuleRefused:
                with suppress(KernelError):  # then they are swept with the next replacement
                    self._run_alone(render_no_sets(desired, tag))
                raise
        self._tag = tag
        if sweep := render_sweep(present, desired, tag):
            self._commit(sweep, desired, self._socket.generation())

    def _names(self, family: str) -> str:
        """A table's listing without elements; empty when there is no such table."""
        try:
            return self._run("-t", "list", "table", family, TABLE)
        except KernelError:
            return ""

    def _commit(self, text: str, desired: PolicySet, generation: int) -> None:
        """Run one transaction. What the kernel has is unknown until it succeeded, or was refused.

        Others' commits are heard anew from then on: of so many messages some might be lost. Where
        they cannot be heard, any of theirs has ours replaced.
        """
        before = self._applied, self._generation
        self._applied, self._generation = None, None
        self._watch.end()
        try:
            self._run_alone(text)
        except _Crashed:
            raise
        except RuleRefused:
            self._applied, self._generation = before
            raise
        self._applied = desired
        with suppress(OSError):
            self._watch.begin()
        now = self._socket.generation()
        if now == generation + 1:  # ours was the only commit
            self._generation = now

    def _run_alone(self, text: str) -> None:
        """One transaction, once the packets are done that the last one found under way."""
        self._settled.await_all()
        try:
            self._run("-f", "-", text=text)
        finally:
            self._settled.begin()

    def _run(self, *arguments: str, text: str = "") -> str:
        deadline = self._deadline + len(text) / _BYTES_A_SECOND
        try:
            done = run([self._binary, *arguments], Deadline(deadline), text)
        except subprocess.TimeoutExpired as error:
            raise KernelError(f"nft did not finish within {deadline:.3g} s") from error
        except OSError as error:
            raise KernelError(f"cannot run {self._binary}: {error}") from error
        if done.returncode < 0:
            raise _Crashed(f"nft was ended by signal {-done.returncode}")
        if done.returncode:
            problem = f"nft: {first_line(KernelError(done.stderr))}"
            raise RuleRefused(problem, _chain_at(done.stderr, text))
        return done.stdout


def _chain_at(problem: str, text: str) -> str:
    """The chain in whose rules nft found a problem; empty when it is not in a rule."""
    place = _LINE.match(problem)
    if place is None:
        return ""
    for line in reversed(text.split("\n")[: int(place[1])]):
        if found := _COMMAND.match(line):
            return found[1]
        if not line.startswith("\t\t"):
            return ""
    return ""
