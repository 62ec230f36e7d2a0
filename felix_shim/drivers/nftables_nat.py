"""Floating addresses as nft text: what is for one is for the endpoint that has it. Pure.

The chains and maps are there only while there is a floating address. Translation comes before the
routing decision and before policy, which sees the endpoint's own address. `output` is for the
node's own connections. An address of the node itself is never translated: who asks for one gets
nothing. An endpoint that calls its own floating address gets the call from that address; from its
own one it would answer itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from felix_shim.drivers.nftables_rules import TABLE
from libtortie.model.ipam import IPAddress

Pairs = Mapping[IPAddress, IPAddress]
"""Floating address → own."""

_DSTNAT, _SRCNAT = -100, 100
_FAMILIES = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}


def nat_chains(pairs: Pairs, tag: str) -> dict[str, tuple[str, list[str]]]:
    """The chains: name → (hook, rules); none without a floating address."""
    if not pairs:
        return {}
    to_own = ["fib daddr type local return"]
    to_own += [f"dnat {ip} to {ip} daddr map @floating{v}{tag}" for v, (ip, _) in _FAMILIES.items()]
    to_floating = [
        f"ct status dnat snat {ip} to {ip} saddr . {ip} daddr map @hairpins{v}{tag}"
        for v, (ip, _) in _FAMILIES.items()
    ]
    return {
        "nat-prerouting": (_hook("prerouting", _DSTNAT), to_own),
        "nat-output": (_hook("output", _DSTNAT), to_own),
        "nat-postrouting": (_hook("postrouting", _SRCNAT), to_floating),
    }


def nat_maps(pairs: Pairs) -> dict[str, tuple[str, list[str]]]:
    """The maps: name without a tag → (type, elements); none without a floating address."""
    if not pairs:
        return {}
    maps = {}
    for version, (_, kind) in _FAMILIES.items():
        ours = {outer: inner for outer, inner in pairs.items() if outer.version == version}
        callers: dict[IPAddress, IPAddress] = {}
        for outer in sorted(ours, key=int):
            callers.setdefault(ours[outer], outer)
        maps[f"floating{version}"] = (
            f"type {kind} : {kind}",
            [f"{outer} : {inner}" for outer, inner in sorted(ours.items(), key=_number)],
        )
        maps[f"hairpins{version}"] = (
            f"type {kind} . {kind} : {kind}",
            [
                f"{inner} . {inner} : {outer}"
                for inner, outer in sorted(callers.items(), key=_number)
            ],
        )
    return maps


def nat_declared(pairs: Pairs, tag: str) -> list[str]:
    """The maps as they stand in a table."""
    lines = []
    for name, (kind, elements) in nat_maps(pairs).items():
        filled = [f"\t\telements = {{ {', '.join(elements)} }}"] if elements else []
        lines += [f"\tmap {name}{tag} {{", f"\t\t{kind}", *filled, "\t}"]
    return lines


def nat_change(before: Pairs, after: Pairs, tag: str) -> Iterator[str]:
    """The commands that lead from one to the other, for one transaction."""
    if before == after:
        return
    old, new = nat_maps(before), nat_maps(after)
    if not before:
        for name, (kind, _) in new.items():
            yield f"add map inet {TABLE} {name}{tag} {{ {kind}; }}"
        for name, (hook, rules) in nat_chains(after, tag).items():
            yield f"add chain inet {TABLE} {name} {{ {hook} }}"
            yield from (f"add rule inet {TABLE} {name} {rule}" for rule in rules)
    if not after:
        gone = nat_chains(before, tag)
        yield from (f"flush chain inet {TABLE} {name}" for name in gone)
        yield from (f"delete chain inet {TABLE} {name}" for name in gone)
        yield from (f"delete map inet {TABLE} {name}{tag}" for name in old)
        return
    for verb, theirs, others in (("delete", old, new), ("add", new, old)):
        for name, (_, elements) in theirs.items():
            kept = set(others[name][1]) if name in others else set()
            if some := [one for one in elements if one not in kept]:
                yield f"{verb} element inet {TABLE} {name}{tag} {{ {', '.join(some)} }}"


def _hook(name: str, priority: int) -> str:
    return f"type nat hook {name} priority {priority}; policy accept;"


def _number(pair: tuple[IPAddress, IPAddress]) -> int:
    return int(pair[0])
