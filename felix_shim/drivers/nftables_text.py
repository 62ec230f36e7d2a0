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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from felix_shim.drivers.nftables_change import (
    AddRule,
    Commands,
    OnChain,
    OnElements,
    OnSet,
    Step,
    Verb,
    steps,
)
from felix_shim.drivers.nftables_endpoint import SETS, elements, to_node
from felix_shim.drivers.nftables_endpoint import chains as endpoint_chains
from felix_shim.drivers.nftables_nat import nat_chains, nat_declared, nat_maps
from felix_shim.drivers.nftables_rules import (
    TABLE,
    SetSpec,
    chain_text,
    declared,
    element_lists,
    rule_text,
    set_name,
)
from felix_shim.host_order import UNTRACKED, HostStage
from felix_shim.host_rules import HOST_CHAINS
from felix_shim.nat_rules import NAT_CHAIN
from felix_shim.policy import PolicySet
from felix_shim.policy_order import Direction
from felix_shim.policy_sets import Elements
from felix_shim.rules import Chain, SetKey
from libtortie.model.felix_values import EndpointToHost

FAMILIES = ("inet", "arp")
FIRST_TAG = "-0"
_RAW, _MANGLE, _AFTER_SRCNAT = -300, -150, 110
_OBJECT = re.compile(r"^\t(set|map|chain) (\S+) \{", re.MULTILINE)
# Neighbour discovery and multicast listener reports that a workload may send from a link-local
# or unspecified address: RS, NS, NA, MLD report and done, MLDv2 report.
_LINK_LOCAL_ICMPV6 = "{ 131, 132, 133, 135, 136, 143 }"


def render_sets(desired: PolicySet, tag: str) -> str:
    """The sets with networks, for a transaction of their own before `render` (`stages` says why);
    empty when there are none."""
    lines: list[str] = []
    found = _prepared(desired, tag)
    for family in FAMILIES:
        mine = [one for one in found if one[0].family == family]
        filled = [line for spec, texts in mine for line in _declared(spec, texts)]
        lines += [f"table {family} {TABLE} {{", *filled, "}"] if mine else []
    return "".join(f"{line}\n" for line in lines)


def render_no_sets(desired: PolicySet, tag: str) -> str:
    """The commands that undo `render_sets`."""
    found = _prepared(desired, tag)
    return "".join(f"delete set {spec.family} {TABLE} {spec.name}\n" for spec, _ in found)


def _prepared(desired: PolicySet, tag: str) -> list[tuple[SetSpec, list[str]]]:
    pairs = [one for family in FAMILIES for one in _filled(family, desired, tag)]
    return [(spec, texts) for spec, texts in pairs if spec.interval and texts]


def render(desired: PolicySet, tag: str = FIRST_TAG, *, prepared: bool = False) -> str:
    """The rules whole, as one transaction on top of whatever is there.

    Base chains stay and every other chain is refilled, which the kernel does for each packet at
    once. A set is not: a packet that is under way in the old rules looks it up as it is by then,
    so emptying one, or deleting it together with its table, drops packets wrongly. Therefore the
    new rules look into new sets, with a `tag` that none of the present ones has, and the old ones
    are swept away by a later transaction. `prepared`: those of `render_sets` are there.
    """
    lines = [f"add table {family} {TABLE}" for family in FAMILIES]
    for family in FAMILIES:
        for name, (hook, _) in _all_chains(family, desired, tag).items():
            declaration = f" {{ {hook} }}" if hook else ""
            lines.append(f"add chain {family} {TABLE} {name}{declaration}")
            lines.append(f"flush chain {family} {TABLE} {name}")
    for family in FAMILIES:
        lines.append(f"table {family} {TABLE} {{")
        lines += nat_declared(desired.translated, tag) if family == "inet" else []
        for spec, texts in _filled(family, desired, tag):
            if not (prepared and spec.interval and texts):
                lines += _declared(spec, texts)
        for name, (_, rules) in _all_chains(family, desired, tag).items():
            lines += [f"\tchain {name} {{", *(f"\t\t{rule}" for rule in rules), "\t}"]
        lines.append("}")
    return "".join(f"{line}\n" for line in lines)


def render_anew(desired: PolicySet, tag: str = FIRST_TAG) -> str:
    """The rules whole, on the ruins of tables that `render` cannot build upon."""
    return (
        "".join(f"add table {one} {TABLE}\ndelete table {one} {TABLE}\n" for one in FAMILIES)
    ) + render(desired, tag)


def render_check(chains: Mapping[str, Chain], sets: Mapping[SetKey, Elements]) -> str:
    """A table with these chains and sets, and nothing that a packet meets."""
    lines = [f"table inet {TABLE}-check {{"]
    for key, found in sets.items():
        lines += _declared(declared(key, sets, ""), sorted(found.texts))
    ends = [*(one.allowed for one in Direction), UNTRACKED]
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
        kept = {f"{spec.name}{tag}" for spec in SETS if spec.family == family}
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
    """The commands that lead from one to the other, as one transaction; empty: nothing to do."""
    return render_steps(steps(before, after, tag), after, tag)


def render_steps(some: Iterable[Step], after: PolicySet, tag: str) -> str:
    """Steps as commands; their rules look into the sets of `after`."""
    return "".join(f"{line}\n" for step in some for line in _commands(step, after, tag))


def _commands(step: Step, after: PolicySet, tag: str) -> list[str]:
    match step:
        case OnSet(verb, spec):
            declaration = f" {{ {spec.type}; }}" if verb is Verb.ADD else ""
            return [f"{verb} set {spec.family} {TABLE} {spec.name}{declaration}"]
        case OnElements(verb, spec, texts):
            command = f"{verb} element {spec.family} {TABLE} {spec.name}"
            return [f"{command} {{ {some} }}" for some in element_lists(texts)]
        case OnChain(verb, name):
            return [f"{verb} chain inet {TABLE} {name}"]
        case AddRule(chain, rule):
            return [f"add rule inet {TABLE} {chain} {rule_text(rule, after.sets, tag)}"]
        case Commands(lines):
            return list(lines)


def _all_chains(family: str, desired: PolicySet, tag: str) -> dict[str, tuple[str, list[str]]]:
    """Every chain of a table, those that others jump to first: name → (hook, rules)."""
    if family == "arp":
        return _arp_chains(tag)
    chains: dict[str, tuple[str, list[str]]] = {}
    theirs = (found for one in desired.endpoints for found in endpoint_chains(one).items())
    for name, chain_rules in (*theirs, *desired.chains.items()):
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
                *(
                    f"ip6 saddr {source} ip6 hoplimit {{ 1, 255 }} icmpv6 type "
                    f"{_LINK_LOCAL_ICMPV6} iifname . ether saddr @speakers6{tag} return"
                    for source in ("::", "fe80::/10")
                ),
                f"iifname . ether saddr . ip saddr @sources4{tag} return",
                f"iifname . ether saddr . ip6 saddr @sources6{tag} return",
                "counter drop",
            ],
        ),
        "allowed-to": ("", ["accept"]),
        "to-workload": ("", [f"oifname vmap @to-endpoints{tag}", "counter drop"]),
        "to-node": ("", chain_text(to_node(drop=action is EndpointToHost.DROP), {}, tag)),
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


def _filled(family: str, desired: PolicySet, tag: str) -> Iterator[tuple[SetSpec, list[str]]]:
    """All sets of a table, and what is in them."""
    for spec, found in elements(desired.endpoints).items():
        if spec.family == family:
            yield replace(spec, name=f"{spec.name}{tag}"), found
    for key in desired.sets if family == "inet" else ():
        yield declared(key, desired.sets, tag), sorted(desired.sets[key].texts)


def _declared(spec: SetSpec, elements: list[str]) -> list[str]:
    lines = [f"\t{spec.kind} {spec.name} {{", f"\t\t{spec.type}"]
    if elements:
        joined = ",\n\t\t\t".join(elements)
        lines.append(f"\t\telements = {{\n\t\t\t{joined}\n\t\t}}")
    return [*lines, "\t}"]
