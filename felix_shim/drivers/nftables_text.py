"""Rules as nft text: the whole tables, or the difference between two sets of rules. Pure.

Layout of `table inet tortie`:

* `prerouting` (raw, before conntrack): from `cali*`, only the binding (interface, MAC, address),
  and the networks that an endpoint may send from besides.
* `forward`: from `cali*` through the sender's chain, then to `cali*` through the receiver's. An
  interface without an entry in the dispatch maps falls to the drop. An endpoint's chain goes to
  that of its policies (`felix_shim/policy_order.py`), which goes to `allowed-from` or
  `allowed-to`, or drops: no chain that is gone to ever comes back.
* `input`: workload to node. What the node sends to its own workloads is not policed.
* `host-…`: the node's own traffic and what is forwarded through its links, each stage asked by a
  base chain of its own; `nat-outgoing`: who leaves with the node's address. Their rules are part
  of the model (`felix_shim/host_rules.py`, `nat_rules.py`), empty where there is nothing to do.

All base chains have policy accept: other people's traffic is none of our business, and a base
chain is live a moment before its rules are. Sets and maps carry a tag, as in `bindings4-0`: see
`render`.

`table arp tortie` holds ARP to the same binding, and swallows the node's proxy ARP replies that
would tell a workload that its own address is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import count

from felix_shim.drivers.nftables_change import TABLE, ModelChange
from felix_shim.drivers.nftables_nat import nat_chains, nat_change, nat_declared, nat_maps
from felix_shim.drivers.nftables_rules import chain_text, set_name, set_type
from felix_shim.host_order import HostStage
from felix_shim.host_rules import HOST_CHAINS
from felix_shim.host_settings import EndpointToHost
from felix_shim.nat_rules import NAT_CHAIN
from felix_shim.policy import EndpointPolicy, PolicySet
from felix_shim.policy_order import Direction
from felix_shim.policy_sets import Elements
from felix_shim.rules import Chain, SetKey

FIRST_TAG = "-0"
_RAW, _MANGLE, _AFTER_SRCNAT = -300, -150, 110
_OBJECT = re.compile(r"^\t(set|map|chain) (\S+) \{", re.MULTILINE)
# Neighbour discovery and multicast listener reports that a workload may send from a link-local
# or unspecified address: RS, NS, NA, MLD report and done, MLDv2 report.
_LINK_LOCAL_ICMPV6 = "{ 131, 132, 133, 135, 136, 143 }"

_SETS = {
    "inet": (
        ("set", "bindings4", "type ifname . ether_addr . ipv4_addr"),
        ("set", "bindings6", "type ifname . ether_addr . ipv6_addr"),
        ("set", "speakers6", "type ifname . ether_addr"),
        ("set", "sources4", "type ifname . ether_addr . ipv4_addr; flags interval"),
        ("set", "sources6", "type ifname . ether_addr . ipv6_addr; flags interval"),
        ("map", "from-endpoints", "type ifname : verdict"),
        ("map", "to-endpoints", "type ifname : verdict"),
    ),
    "arp": (
        ("set", "bindings", "type ifname . ether_addr . ipv4_addr"),
        ("set", "probers", "type ifname . ether_addr"),
        ("set", "claimed", "type ifname . ipv4_addr"),
    ),
}


def render(desired: PolicySet, tag: str = FIRST_TAG) -> str:
    """The rules whole, as one transaction on top of whatever is there.

    Base chains stay and every other chain is refilled, which the kernel does for each packet at
    once. A set is not: a packet that is under way in the old rules looks it up as it is by then,
    so emptying one, or deleting it together with its table, drops packets wrongly. Therefore the
    new rules look into new sets, with a `tag` that none of the present ones has, and the old ones
    are swept away by a later transaction.
    """
    lines = [f"add table {family} {TABLE}" for family in _SETS]
    for family in _SETS:
        for name, (hook, _) in _all_chains(family, desired, tag).items():
            declaration = f" {{ {hook} }}" if hook else ""
            lines.append(f"add chain {family} {TABLE} {name}{declaration}")
            lines.append(f"flush chain {family} {TABLE} {name}")
    for family in _SETS:
        lines.append(f"table {family} {TABLE} {{")
        lines += nat_declared(desired.translated, tag) if family == "inet" else []
        lines += _sets(family, desired, tag)
        for name, (_, rules) in _all_chains(family, desired, tag).items():
            lines += [f"\tchain {name} {{", *(f"\t\t{rule}" for rule in rules), "\t}"]
        lines.append("}")
    return "".join(f"{line}\n" for line in lines)


def render_anew(desired: PolicySet, tag: str = FIRST_TAG) -> str:
    """The rules whole, on the ruins of tables that `render` cannot build upon."""
    return (
        "".join(f"add table {one} {TABLE}\ndelete table {one} {TABLE}\n" for one in _SETS)
    ) + render(desired, tag)


def render_check(chains: Mapping[str, Chain], sets: Mapping[SetKey, Elements]) -> str:
    """A table with these chains and sets, and nothing that a packet meets."""
    lines = [f"table inet {TABLE}-check {{"]
    for key, found in sets.items():
        name = set_name(key, sets, "")
        lines += _declared("set", name, set_type(key, found), sorted(found.texts))
    ends = [one.allowed for one in Direction]
    lines += [f"\tchain {name} {{ }}" for name in (*ends, *chains)]
    for name, chain in chains.items():
        rules = chain_text(chain, sets, "")
        lines += [f"\tchain {name} {{", *(f"\t\t{rule}" for rule in rules), "\t}"]
    return "".join(f"{line}\n" for line in (*lines, "}"))


def render_sweep(present: Mapping[str, str], desired: PolicySet, tag: str) -> str:
    """The commands that remove what `render` with this tag left over; empty: nothing to do.

    `present` are the tables as `nft -t list table` showed them before, by family.
    """
    lines = []
    for family, listing in present.items():
        ours = _all_chains(family, desired, tag)
        objects = _OBJECT.findall(listing)
        old_sets = [(kind, name) for kind, name in objects if kind != "chain"]
        old_chains = [name for kind, name in objects if kind == "chain" and name not in ours]
        kept = {f"{name}{tag}" for _, name, _ in _SETS[family]}
        if family == "inet":
            kept |= {set_name(key, desired.sets, tag) for key in desired.sets}
            kept |= {f"{name}{tag}" for name in nat_maps(desired.translated)}
        lines += [f"flush chain {family} {TABLE} {name}" for name in old_chains]
        for kind, name in old_sets:
            if name not in kept:
                lines.append(f"delete {kind} {family} {TABLE} {name}")
        lines += [f"delete chain {family} {TABLE} {name}" for name in old_chains]
    return "".join(f"{line}\n" for line in lines)


def free_tag(present: Mapping[str, str]) -> str:
    """A tag that no set or map of these listings has."""
    names = [name for listing in present.values() for _, name in _OBJECT.findall(listing)]
    tags = (f"-{number}" for number in count())
    return next(tag for tag in tags if not any(name.endswith(tag) for name in names))


def render_delta(before: PolicySet, after: PolicySet, tag: str = FIRST_TAG) -> str:
    """The commands that lead from one to the other, as one transaction; empty: nothing to do.

    What is new comes first, and what is old goes last, when nothing refers to it any more.
    """
    old, new = before.by_interface(), after.by_interface()
    gone = [old[name] for name in sorted(old) if new.get(name) != old[name]]
    come = [new[name] for name in sorted(new) if old.get(name) != new[name]]
    change = ModelChange(before, after, tag)
    lines = [*change.new_sets(), *change.new_elements(), *change.chains()]
    lines += _element_commands("delete", gone, come, tag)
    for endpoint in gone:
        lines += [f"flush chain inet {TABLE} {chain}" for chain in _chains(endpoint)]
        if endpoint.interface not in new:
            lines += [f"delete chain inet {TABLE} {chain}" for chain in _chains(endpoint)]
    for endpoint in come:
        for chain in _chains(endpoint):
            lines.append(f"add chain inet {TABLE} {chain}")
            lines += [f"add rule inet {TABLE} {chain} {rule}" for rule in _rules(endpoint, chain)]
    lines += _element_commands("add", come, gone, tag)
    lines += nat_change(before.translated, after.translated, tag)
    if before.endpoint_to_host != after.endpoint_to_host:
        lines.append(f"flush chain inet {TABLE} to-node")
        lines.append(f"add rule inet {TABLE} to-node {_to_node(after.endpoint_to_host)}")
    lines += [*change.old_chains(), *change.old_elements(), *change.old_sets()]
    return "".join(f"{line}\n" for line in lines)


def _all_chains(family: str, desired: PolicySet, tag: str) -> dict[str, tuple[str, list[str]]]:
    """Every chain of a table, those that others jump to first: name → (hook, rules)."""
    if family == "arp":
        return _arp_chains(tag)
    chains: dict[str, tuple[str, list[str]]] = {}
    for endpoint in desired.endpoints:
        for chain in _chains(endpoint):
            chains[chain] = ("", _rules(endpoint, chain))
    for name, chain_rules in desired.chains.items():
        chains[name] = ("", chain_text(chain_rules, desired.sets, tag))
    chains |= nat_chains(desired.translated, tag)
    return chains | _inet_chains(desired.endpoint_to_host, tag)


def _hook(name: str, priority: int) -> str:
    return f"type filter hook {name} priority {priority}; policy accept;"


def _inet_chains(action: EndpointToHost, tag: str) -> dict[str, tuple[str, list[str]]]:
    return {
        "anti-spoofing": (
            "",
            [
                f"iifname . ether saddr . ip saddr @bindings4{tag} return",
                f"iifname . ether saddr . ip6 saddr @bindings6{tag} return",
                "ip6 saddr { ::, fe80::/10 } ip6 hoplimit { 1, 255 } icmpv6 type "
                f"{_LINK_LOCAL_ICMPV6} iifname . ether saddr @speakers6{tag} return",
                f"iifname . ether saddr . ip saddr @sources4{tag} return",
                f"iifname . ether saddr . ip6 saddr @sources6{tag} return",
                "counter drop",
            ],
        ),
        "allowed-to": ("", ["accept"]),
        "to-workload": ("", [f"oifname vmap @to-endpoints{tag}", "counter drop"]),
        "to-node": ("", [_to_node(action)]),
        "allowed-from": (
            "",
            ['oifname "cali*" goto to-workload', "oif 0 goto to-node", "accept"],
        ),
        "from-workload": ("", [f"iifname vmap @from-endpoints{tag}", "counter drop"]),
        "prerouting": (
            _hook("prerouting", _RAW),
            ['iifname "cali*" goto anti-spoofing', f"jump {HOST_CHAINS[HostStage.UNTRACKED_IN]}"],
        ),
        "forward": (
            _hook("forward", 0),
            ['iifname "cali*" goto from-workload', 'oifname "cali*" goto to-workload'],
        ),
        "input": (
            _hook("input", 0),
            [
                f'iifname "cali*" icmpv6 type {_LINK_LOCAL_ICMPV6} return',
                'iifname "cali*" goto from-workload',
                f"jump {HOST_CHAINS[HostStage.IN]}",
            ],
        ),
    } | _node_chains()


def _node_chains() -> dict[str, tuple[str, list[str]]]:
    """The base chains that ask about what is no workload's; see `felix_shim/host_rules.py`."""
    postrouting = f"type nat hook postrouting priority {_AFTER_SRCNAT}; policy accept;"
    return {
        "output-raw": (_hook("output", _RAW), [_ask(HostStage.UNTRACKED_OUT)]),
        "pre-dnat": (_hook("prerouting", _MANGLE), [_ask(HostStage.PRE_DNAT)]),
        "forward-in": (_hook("forward", -1), [_ask(HostStage.FORWARD_IN)]),
        "forward-out": (_hook("forward", 1), [_ask(HostStage.FORWARD_OUT)]),
        "output": (_hook("output", 0), [_ask(HostStage.OUT)]),
        "postrouting": (postrouting, [f"jump {NAT_CHAIN}"]),
    }


def _ask(stage: HostStage) -> str:
    """What is on the other side of a workload's link is the workload's policy's to judge."""
    link = "iifname" if stage.ingress else "oifname"
    return f'{link} != "cali*" jump {HOST_CHAINS[stage]}'


def _arp_chains(tag: str) -> dict[str, tuple[str, list[str]]]:
    return {
        "from-workload": (
            "",
            [
                f"iifname . arp saddr ether . arp saddr ip @bindings{tag} return",
                "arp operation request arp saddr ip 0.0.0.0 "
                f"iifname . arp saddr ether @probers{tag} return",
                "counter drop",
            ],
        ),
        "input": (_hook("input", 0), ['iifname "cali*" jump from-workload']),
        "output": (
            _hook("output", 0),
            [f"arp operation reply oifname . arp saddr ip @claimed{tag} counter drop"],
        ),
    }


def _to_node(action: EndpointToHost) -> str:
    """What becomes of what a workload may send, when it is for the node itself."""
    return "counter drop" if action is EndpointToHost.DROP else "accept"


def _chains(endpoint: EndpointPolicy) -> tuple[str, str]:
    return f"cali-fw-{endpoint.interface}", f"cali-tw-{endpoint.interface}"


def _rules(endpoint: EndpointPolicy, chain: str) -> list[str]:
    """An endpoint's chain: known connections, then what its policies make of new ones."""
    rules = ["ct state established,related accept"]
    if not endpoint.vm:
        rules.append("ct state invalid counter drop")
    if not chain.startswith("cali-fw-"):
        rules.append(f"goto {endpoint.ingress}")
    else:
        # encapsulation is the node's to speak: a workload's could enter an overlay as a peer's
        rules.append("meta l4proto ipip counter drop")
        rules.append("udp dport 4789 counter drop")
        rules.append(f"goto {endpoint.egress}")
    return rules


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
            for network in endpoint.source_prefixes:
                found[f"sources{network.version}"].append(f"{speaker} . {network}")
            found["from-endpoints"].append(f'"{endpoint.interface}" : goto {out}')
            found["to-endpoints"].append(f'"{endpoint.interface}" : goto {into}')
    return found


def _element_commands(
    verb: str,
    endpoints: Iterable[EndpointPolicy],
    others: Iterable[EndpointPolicy],
    tag: str,
) -> list[str]:
    """Commands for what these endpoints put into sets and maps, and those others do not."""
    lines = []
    for family in _SETS:
        theirs = _elements(family, others)
        for name, elements in _elements(family, endpoints).items():
            kept = set(theirs[name])
            if mine := [one for one in elements if one not in kept]:
                lines.append(f"{verb} element {family} {TABLE} {name}{tag} {{ {', '.join(mine)} }}")
    return lines


def _sets(family: str, desired: PolicySet, tag: str) -> list[str]:
    elements = _elements(family, desired.endpoints)
    lines = []
    for kind, name, declaration in _SETS[family]:
        lines += _declared(kind, f"{name}{tag}", declaration, elements[name])
    for key, found in desired.sets.items() if family == "inet" else ():
        name = set_name(key, desired.sets, tag)
        lines += _declared("set", name, set_type(key, found), sorted(found.texts))
    return lines


def _declared(kind: str, name: str, declaration: str, elements: list[str]) -> list[str]:
    lines = [f"\t{kind} {name} {{", f"\t\t{declaration}"]
    if elements:
        joined = ",\n\t\t\t".join(elements)
        lines.append(f"\t\telements = {{\n\t\t\t{joined}\n\t\t}}")
    return [*lines, "\t}"]
