"""Rules as nft text: the whole tables, or the difference between two sets of rules. Pure.

Layout of `table inet tortie`:

* `prerouting` (raw, before conntrack): from `cali*`, only the binding (interface, MAC, address).
* `forward`: from `cali*` through the sender's chain, then to `cali*` through the receiver's. The
  dispatch maps `goto` an endpoint's chain, so its `return` leads back behind the dispatch, while
  an interface without an entry falls to the drop.
* `input`: workload to node. What the node sends to its own workloads is not policed.

All base chains have policy accept: other people's traffic is none of our business, and a base
chain is live a moment before its rules are.

`table arp tortie` holds ARP to the same binding, and swallows the node's proxy ARP replies that
would tell a workload that its own address is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from felix_shim.policy import EndpointPolicy, EndpointToHost, PolicySet

TABLE = "tortie"
# Neighbour discovery and multicast listener reports that a workload may send from a link-local
# or unspecified address: RS, NS, NA, MLD report and done, MLDv2 report.
_LINK_LOCAL_ICMPV6 = "{ 131, 132, 133, 135, 136, 143 }"

_SETS = {
    "inet": (
        ("set", "bindings4", "type ifname . ether_addr . ipv4_addr"),
        ("set", "bindings6", "type ifname . ether_addr . ipv6_addr"),
        ("set", "speakers6", "type ifname . ether_addr"),
        ("map", "from-endpoints", "type ifname : verdict"),
        ("map", "to-endpoints", "type ifname : verdict"),
    ),
    "arp": (
        ("set", "bindings", "type ifname . ether_addr . ipv4_addr"),
        ("set", "probers", "type ifname . ether_addr"),
        ("set", "claimed", "type ifname . ipv4_addr"),
    ),
}


def render(desired: PolicySet) -> str:
    """Both tables whole, as one transaction that replaces whatever was there before."""
    return "\n".join(
        [
            *(f"add table {family} {TABLE}" for family in _SETS),
            *(f"delete table {family} {TABLE}" for family in _SETS),
            _inet_table(desired),
            _arp_table(desired),
            "",
        ]
    )


def render_delta(before: PolicySet, after: PolicySet) -> str:
    """The commands that lead from one to the other, as one transaction; empty: nothing to do."""
    if before.endpoint_to_host != after.endpoint_to_host:
        return render(after)
    old, new = before.by_interface(), after.by_interface()
    gone = [old[name] for name in sorted(old) if new.get(name) != old[name]]
    come = [new[name] for name in sorted(new) if old.get(name) != new[name]]
    lines = _element_commands("delete", gone)
    for endpoint in gone:
        lines += [f"flush chain inet {TABLE} {chain}" for chain in _chains(endpoint)]
        if endpoint.interface not in new:
            lines += [f"delete chain inet {TABLE} {chain}" for chain in _chains(endpoint)]
    for endpoint in come:
        for chain in _chains(endpoint):
            lines.append(f"add chain inet {TABLE} {chain}")
            lines += [f"add rule inet {TABLE} {chain} {rule}" for rule in _rules(endpoint, chain)]
    lines += _element_commands("add", come)
    return "".join(f"{line}\n" for line in lines)


def _inet_table(desired: PolicySet) -> str:
    lines = [f"table inet {TABLE} {{", *_sets("inet", desired.endpoints)]
    for endpoint in desired.endpoints:
        for chain in _chains(endpoint):
            lines += _chain(chain, _rules(endpoint, chain))
    lines += _chain(
        "anti-spoofing",
        [
            "iifname . ether saddr . ip saddr @bindings4 return",
            "iifname . ether saddr . ip6 saddr @bindings6 return",
            "ip6 saddr { ::, fe80::/10 } ip6 hoplimit { 1, 255 } icmpv6 type "
            f"{_LINK_LOCAL_ICMPV6} iifname . ether saddr @speakers6 return",
            "counter drop",
        ],
    )
    lines += _chain("from-workload", ["iifname vmap @from-endpoints", "counter drop"])
    lines += _chain("to-workload", ["oifname vmap @to-endpoints", "counter drop"])
    lines += _base_chain("prerouting", "raw", ['iifname "cali*" jump anti-spoofing'])
    lines += _base_chain(
        "forward",
        "filter",
        ['iifname "cali*" jump from-workload', 'oifname "cali*" jump to-workload'],
    )
    lines += _base_chain("input", "filter", _input_rules(desired.endpoint_to_host))
    return "\n".join([*lines, "}"])


def _input_rules(action: EndpointToHost) -> list[str]:
    rules = [
        f'iifname "cali*" icmpv6 type {_LINK_LOCAL_ICMPV6} return',
        'iifname "cali*" jump from-workload',
    ]
    match action:
        case EndpointToHost.DROP:
            rules.append('iifname "cali*" counter drop')
        case EndpointToHost.ACCEPT:
            rules.append('iifname "cali*" accept')
        case EndpointToHost.RETURN:
            pass  # the end of the chain is the node's other rules
    return rules


def _arp_table(desired: PolicySet) -> str:
    lines = [f"table arp {TABLE} {{", *_sets("arp", desired.endpoints)]
    lines += _chain(
        "from-workload",
        [
            "iifname . arp saddr ether . arp saddr ip @bindings return",
            "arp operation request arp saddr ip 0.0.0.0 iifname . arp saddr ether @probers return",
            "counter drop",
        ],
    )
    lines += _base_chain("input", "filter", ['iifname "cali*" jump from-workload'])
    lines += _base_chain(
        "output",
        "filter",
        ["arp operation reply oifname . arp saddr ip @claimed counter drop"],
    )
    return "\n".join([*lines, "}"])


def _chains(endpoint: EndpointPolicy) -> tuple[str, str]:
    return f"cali-fw-{endpoint.interface}", f"cali-tw-{endpoint.interface}"


def _rules(endpoint: EndpointPolicy, chain: str) -> list[str]:
    """An endpoint's chain: known connections, then profiles. The one profile allows all: return."""
    rules = ["ct state established,related accept"]
    if not endpoint.vm:
        rules.append("ct state invalid counter drop")
    if chain.startswith("cali-fw-"):
        # encapsulation is the node's to speak: a workload's could enter an overlay as a peer's
        rules.append("meta l4proto ipip counter drop")
        rules.append("udp dport 4789 counter drop")
    return [*rules, "return"]


def _elements(family: str, endpoints: Iterable[EndpointPolicy]) -> dict[str, list[str]]:
    """What the endpoints put into each set and map, by its name."""
    found: dict[str, list[str]] = {name: [] for _, name, _ in _SETS[family]}
    for endpoint in endpoints:
        speaker = f'"{endpoint.interface}" . {endpoint.mac}'
        ipv4 = [address for address in endpoint.addresses if address.version == 4]
        ipv6 = [address for address in endpoint.addresses if address.version == 6]
        if family == "arp":
            found["bindings"] += [f"{speaker} . {address}" for address in ipv4]
            found["probers"] += [speaker] if ipv4 else []
            found["claimed"] += [f'"{endpoint.interface}" . {address}' for address in ipv4]
        else:
            out, into = _chains(endpoint)
            found["bindings4"] += [f"{speaker} . {address}" for address in ipv4]
            found["bindings6"] += [f"{speaker} . {address}" for address in ipv6]
            found["speakers6"] += [speaker] if ipv6 else []
            found["from-endpoints"].append(f'"{endpoint.interface}" : goto {out}')
            found["to-endpoints"].append(f'"{endpoint.interface}" : goto {into}')
    return found


def _element_commands(verb: str, endpoints: list[EndpointPolicy]) -> list[str]:
    return [
        f"{verb} element {family} {TABLE} {name} {{ {', '.join(elements)} }}"
        for family in _SETS
        for name, elements in _elements(family, endpoints).items()
        if elements
    ]


def _sets(family: str, endpoints: Iterable[EndpointPolicy]) -> list[str]:
    elements = _elements(family, endpoints)
    lines = []
    for kind, name, declaration in _SETS[family]:
        lines += [f"\t{kind} {name} {{", f"\t\t{declaration}"]
        if elements[name]:
            joined = ",\n\t\t\t".join(elements[name])
            lines.append(f"\t\telements = {{\n\t\t\t{joined}\n\t\t}}")
        lines.append("\t}")
    return lines


def _chain(name: str, rules: Iterable[str]) -> list[str]:
    return [f"\tchain {name} {{", *(f"\t\t{rule}" for rule in rules), "\t}"]


def _base_chain(name: str, priority: str, rules: Iterable[str]) -> list[str]:
    hook = (
        f"type filter hook {name} priority {priority if priority == 'raw' else 0}; policy accept;"
    )
    return _chain(name, [hook, *rules])
