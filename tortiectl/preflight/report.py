"""A preflight's verdict as text, table and JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tortiectl.preflight.examine import Verdict
from tortiectl.preflight.findings import Finding, Severity
from tortiectl.text_tables import columns

_INDENT = "    "


def lines(verdict: Verdict) -> Iterator[str]:
    """For people: the worst first, each reason with its fix."""
    for subject, found in groupby(verdict.findings, key=lambda one: (one.severity, one.subject)):
        severity, about = subject
        yield f"{about}: {severity}"
        for one in found:
            yield f"  {one.code}: {one.text}"
            if one.fix:
                yield f"{_INDENT}fix: {one.fix}"
    yield from _notes(verdict)
    yield summary(verdict)


def table(verdict: Verdict) -> Iterator[str]:
    """One line for each reason."""
    if verdict.findings:
        yield columns(
            ("SEVERITY", "SUBJECT", "REASON", "MESSAGE"),
            [(str(one.severity), str(one.subject), one.code, one.text) for one in verdict.findings],
        )
    yield from _notes(verdict)
    yield summary(verdict)


def _notes(verdict: Verdict) -> Iterator[str]:
    for text in verdict.holes:
        yield f"not judged: {text}"
    for text in verdict.gaps:
        yield f"not looked at: {text}"


def summary(verdict: Verdict) -> str:
    """`3 VMs judged: 1 blocked, 1 would lose connections, 0 at risk; 2 findings about ...`."""
    by_vm: dict[str, Severity] = {}
    others = 0
    for one in verdict.findings:
        if one.subject.kind != "VM":
            others += 1
            continue
        by_vm.setdefault(str(one.subject), one.severity)  # the worst comes first
    counts = {severity: list(by_vm.values()).count(severity) for severity in Severity}
    return (
        f"{_counted(len(verdict.judged), 'VM')} judged: {counts[Severity.BLOCKS]} blocked, "
        f"{counts[Severity.BREAKS]} would lose connections, {counts[Severity.RISK]} at risk; "
        f"{_counted(others, 'finding')} about the cluster"
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def document(verdict: Verdict) -> dict[str, Any]:
    """For programs."""
    return {
        "findings": [_body(one) for one in verdict.findings],
        "judged": list(verdict.judged),
        "not_judged": list(verdict.holes),
        "not_looked_at": list(verdict.gaps),
        "certificate_days_left": dict(verdict.certificates),
        "counts": {
            severity.name.lower(): sum(one.severity is severity for one in verdict.findings)
            for severity in Severity
        },
    }


def _body(one: Finding) -> dict[str, str]:
    return {
        "severity": str(one.severity),
        "kind": one.subject.kind,
        "namespace": one.subject.namespace,
        "name": one.subject.name,
        "reason": one.code,
        "message": one.text,
        "fix": one.fix,
    }
