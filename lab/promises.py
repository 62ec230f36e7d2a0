"""What a migration must keep to, and whether it did. Pure.

Every bound is checked from both sides: what happened before its cause is as broken a promise as
what happened too late, and what was not seen at all has not been kept.
"""

from __future__ import annotations

from lab import names
from lab.report import DOWNTIME_MAX_MS, Check, Row

LOCAL_ROUTE_MAX_MS = 50.0
TOR_MAX_MS = 100.0
PROBES_PER_MS = 1.0
TCP_RTO_MIN_MS = 200.0
"""Linux' shortest retransmission time-out (TCP_RTO_MIN)."""


def tcp_gap_max_ms(blackout_ms: float) -> float:
    """The longest silence TCP may make of an outage of blackout and promised downtime, in ms.

    Time-outs double: after an outage of E ms the next retransmission comes within another
    E + 200 ms. (Measured with a pause of 50 ms: 55 to 70 ms, since the next line is sooner.)
    """
    outage = blackout_ms + DOWNTIME_MAX_MS
    return 2 * outage + TCP_RTO_MIN_MS


def checks_of(row: Row, convergence_s: float) -> list[Check]:
    """The promises of one migration, of each family what can be kept in one and broken in the
    other."""
    succeeded = Check("migration succeeded", row.phase == "Succeeded", row.phase)
    where = f"{row.source_node} → {row.target_node}"
    found = {where: (succeeded, *_of_family(row, convergence_s), _policy(row))}
    if row.ipv6 is not None:
        found[f"{where}, IPv6"] = _of_family(row.ipv6, convergence_s)
    return [
        Check(f"{place}: {one.name}", one.ok, one.detail)
        for place, checks in found.items()
        for one in checks
    ]


def _of_family(row: Row, convergence_s: float) -> tuple[Check, ...]:
    same = bool(row.ip_before) and row.ip_before == row.ip_after
    address = Check("same address", same, f"{row.ip_before} → {row.ip_after}")
    return (address, *_traffic(row), *_routes(row, convergence_s))


def _traffic(row: Row) -> tuple[Check, ...]:
    downtime = row.network_downtime_ms
    tcp_max = tcp_gap_max_ms(row.guest_blackout_ms or 0.0)
    return (
        Check(
            "TCP connection survived",
            row.tcp_survived,
            row.tcp_error or f"{row.tcp_lines} lines, each back once, in order",
        ),
        Check(
            "TCP went on at once",
            row.tcp_lines > 0 and 0 <= row.tcp_longest_gap_ms <= tcp_max,
            f"longest gap {row.tcp_longest_gap_ms} ms, at most {tcp_max:g}",
        ),
        Check(
            f"network downtime at most {DOWNTIME_MAX_MS:g} ms",
            _within(downtime, DOWNTIME_MAX_MS),
            f"{downtime} ms beside the guest's {row.guest_blackout_ms} ms;"
            f" other holes {row.other_holes_ms} ms",
        ),
        _probes(row),
    )


def _probes(row: Row) -> Check:
    """Each prober may lose what it sent in the pause and the promised downtime, and no other."""
    allowed = ((row.guest_blackout_ms or 0.0) + DOWNTIME_MAX_MS) * PROBES_PER_MS
    lost = {name: int(one["lost"]) for name, one in row.probers.items()}
    told = ", ".join(f"{name} {count}" for name, count in lost.items())
    kept = (
        bool(lost)
        and all(one["sent"] > one["lost"] for one in row.probers.values())
        and max(lost.values()) <= allowed
        and row.probes_lost_outside == 0
    )
    detail = f"{told or 'no probes'} lost, at most {allowed:.0f} each; {row.probes_lost_outside}"
    return Check("probes lost only around the guest's pause", kept, f"{detail} at other times")


def _routes(row: Row, convergence_s: float) -> tuple[Check, ...]:
    local, reverted_s = row.sign_to_local_route_ms, row.reverted_after_s
    return (
        Check(
            f"route raised by the sign, to {names.METRIC_ELEVATED}",
            row.metric_elevated == names.METRIC_ELEVATED and _within(local, LOCAL_ROUTE_MAX_MS),
            f"metric {row.metric_elevated}, {local} ms after {row.sign or 'no sign'}"
            f" (0 to {LOCAL_ROUTE_MAX_MS:g})",
        ),
        Check(
            "ToR follows",
            _within(row.sign_to_tor_fib_ms, TOR_MAX_MS),
            f"{row.sign_to_tor_fib_ms} ms after the sign (0 to {TOR_MAX_MS:g})",
        ),
        Check(
            f"back to {names.METRIC_NORMAL} after the convergence time",
            row.metric_final == names.METRIC_NORMAL
            and reverted_s is not None
            and convergence_s - 0.5 <= reverted_s <= 2 * convergence_s + 10,
            f"metric {row.metric_final} after {reverted_s} s (convergence {convergence_s:g} s)",
        ),
    )


def _policy(row: Row) -> Check:
    """ADD did not merely run out of time: policy's file came, then ADD's answer, then the guest."""
    timeout_ms = names.POLICY_TIMEOUT_S * 1000
    wait, ready, ahead = row.policy_wait_ms, row.policy_before_add_ms, row.add_before_sign_ms
    kept = (
        wait is not None
        and 0 <= wait < timeout_ms
        and ready is not None
        and ready >= 0
        and ahead is not None
        and ahead >= 0
    )
    detail = f"ADD waited {wait} ms (time-out {timeout_ms:g}); policy's status file {ready} ms"
    return Check(
        "policy before success", kept, f"{detail} before its answer, that {ahead} ms before a sign"
    )


def _within(value: float | None, limit: float) -> bool:
    return value is not None and 0 <= value <= limit
