"""What a preflight finds: one value for each reason, with the fix. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from libtortie.model.move_limits import Severity

__all__ = ["Finding", "Severity", "Subject", "ordered", "worst"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about, as kubectl's users name it."""

    kind: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {where}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason. `code` is KubeVirt's own where it has one."""

    severity: Severity
    subject: Subject
    code: str
    text: str
    fix: str = ""


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first, each once."""
    unique = dict.fromkeys(findings)
    return tuple(
        sorted(unique, key=lambda one: (one.severity.rank, str(one.subject), one.code, one.text))
    )


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The worst severity; None when nothing was found."""
    return min((one.severity for one in findings), key=lambda one: one.rank, default=None)
